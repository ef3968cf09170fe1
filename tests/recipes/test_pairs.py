"""Recipes whose samples hold two texts: what is computed of a row is what each text alone gives."""

from pathlib import Path

import pytest
import torch
import transformers

from openwafer.diagnostics import OpenwaferError
from openwafer.recipes.dpo.model import Answers, Preferences
from openwafer.recipes.dpr.model import Retriever
from openwafer.training.data import Batch
from openwafer.training.labels import IGNORED_LABEL
from openwafer.training.session.forward import checked_inputs, forward_of

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
END = 0
PROMPTS = ([5, 6, 7], [8])
CHOSEN = ([9, 10, END], [11, END])
REJECTED = ([10, END], [12, 13, 14, END])
Rows = dict[str, torch.Tensor]


def rows(*answers: tuple[list[int], ...]) -> Rows:
    """A prompt and what follows it in each row, padded to the same length."""
    ids, labels, mask = [], [], []
    for prompt, *parts in zip(PROMPTS, *answers, strict=True):
        answer = [token for part in parts for token in part]
        padding = [1] * (10 - len(prompt) - len(answer))
        ids.append([*prompt, *answer, *padding])
        labels.append([-100] * len(prompt) + answer + [IGNORED_LABEL] * len(padding))
        mask.append([1] * (10 - len(padding)) + [0] * len(padding))
    named = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    return {name: torch.tensor(values) for name, values in named.items()}


@pytest.fixture(scope="module")
def policy() -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES, vocab_size=16, num_attention_heads=2, max_position_embeddings=16
    )
    return transformers.LlamaForCausalLM(config)


@pytest.fixture
def preferences(policy: transformers.LlamaForCausalLM, tmp_path: Path) -> Preferences:
    policy.save_pretrained(tmp_path)
    return Preferences(str(tmp_path), END)


def batch_of(found: Rows, *row_ends: tuple[bool, bool]) -> Batch:
    """A batch; without more, each of its samples is a whole row."""
    ends = torch.tensor(row_ends or [(True, True)] * len(found["labels"]))
    return Batch(found["input_ids"], found["labels"], found["attention_mask"], row_ends=ends)


def likelihood(model: torch.nn.Module, answers: tuple[list[int], ...]) -> torch.Tensor:
    """Sums of the log-probabilities of answers that each follow their prompt alone, (B,)."""
    found = rows(answers)
    logits_BTV = model(found["input_ids"], attention_mask=found["attention_mask"]).logits
    target_BT = found["labels"][:, 1:]
    losses_BT = torch.nn.functional.cross_entropy(
        logits_BTV[:, :-1].transpose(1, 2), target_BT, reduction="none"
    )
    return -losses_BT.sum(1)


def test_neither_answer_sees_the_other(policy: transformers.LlamaForCausalLM) -> None:
    found = rows(CHOSEN, REJECTED)
    answers = Answers.of(found["input_ids"], found["labels"], END)
    log_probs_BT = answers.log_probs(policy(**answers.inputs(found["attention_mask"])).logits)
    for is_of_answer, answer in (
        (answers.is_chosen, CHOSEN),
        (answers.is_rejected, REJECTED),
    ):
        alone_B = likelihood(policy, answer)
        assert torch.allclose((log_probs_BT * is_of_answer).sum(1), alone_B, atol=1e-5)


def test_a_policy_prefers_what_it_makes_likelier_than_its_reference(
    policy: transformers.LlamaForCausalLM, preferences: Preferences
) -> None:
    model, found = preferences, rows(CHOSEN, REJECTED)
    assert model(**found).loss.item() == pytest.approx(torch.tensor(2.0).log().item())
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), 0.5)
    for _ in range(5):
        model(**found).loss.backward()
        optimizer.step()
    assert model(**found).preferred.item() == 1
    assert torch.equal(likelihood(model.reference, CHOSEN), likelihood(policy, CHOSEN))


def test_questions_and_passages_are_encoded_as_if_alone() -> None:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "vocab_size": 16, "max_position_embeddings": 16}
    model = Retriever({**SIZES, **heads, "hidden_dropout_prob": 0}).eval()
    questions_BD, passages_BD = (
        # Without a mask the library's encoders take the id 0 for padding.
        torch.cat([encoder(torch.tensor([ids]), torch.ones(1, len(ids)))[0] for ids in texts])
        for encoder, texts in ((model.questions, PROMPTS), (model.passages, CHOSEN))
    )
    own_B = torch.arange(2)
    expected = torch.nn.functional.cross_entropy(questions_BD @ passages_BD.T, own_B)
    assert model(**rows(CHOSEN)).loss.item() == pytest.approx(expected.item(), abs=1e-5)


def pieces() -> Rows:
    """Two pairs, and a third row that is the end of the second."""
    found = {name: value.repeat_interleave(torch.tensor([1, 2]), 0) for name, value in
             rows(CHOSEN, REJECTED).items()}  # fmt: skip
    return {name: torch.cat((value[:2], value[2:].roll(-2, 1))) for name, value in found.items()}


def test_a_piece_of_a_pair_is_passed_over(preferences: Preferences) -> None:
    model = preferences
    with torch.no_grad():
        model.policy.get_parameter("lm_head.weight").mul_(2)
    whole, found = model(**rows(CHOSEN, REJECTED)), model(**pieces())
    assert found.loss.item() == pytest.approx(whole.loss.item(), abs=1e-6)
    assert found.preferred == whole.preferred


def test_a_passage_without_a_question_is_passed_over() -> None:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "vocab_size": 16, "max_position_embeddings": 16}
    model = Retriever({**SIZES, **heads, "hidden_dropout_prob": 0}).eval()
    found = rows(CHOSEN)
    alone = {name: value[:1].roll(-3, 1) for name, value in found.items()}
    more = {name: torch.cat((value, alone[name])) for name, value in found.items()}
    model(**more).loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model(**more).loss.item() == pytest.approx(model(**found).loss.item(), abs=1e-6)
    assert model(**more).recall == model(**found).recall


def test_a_prompt_with_one_answer_is_refused_before_its_step(preferences: Preferences) -> None:
    found = rows(CHOSEN, (REJECTED[0], []))
    with pytest.raises(OpenwaferError) as caught:
        checked_inputs(preferences, batch_of(found))
    assert str(caught.value) == (
        "error[pair-answers]: a row has a prompt of 1 token and 1 answer, expected a prompt and 2 "
        "answers: sample 2 of 2 in a micro-batch\n"
        "  = note: its tokens are 8, 11, 0, 1, 1, 1, 1, 1, 1, 1 ...\n"
        "  = help: write the chosen answer, the end of text and the rejected one in its row"
    )


@pytest.mark.parametrize(
    ("prompt", "message"), [(3, "a prompt of 3 tokens and 1 answer"), (0, "0 tokens and 2 answers")]
)
def test_a_row_that_fills_its_sample_is_no_beginning_of_another(
    preferences: Preferences, prompt: int, message: str
) -> None:
    ids = torch.tensor([[5, 6, 7, END if prompt == 0 else 8, 9, END]])
    labels = ids.where(torch.arange(6) >= prompt, IGNORED_LABEL)
    found = {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}
    with pytest.raises(OpenwaferError, match=message):
        checked_inputs(preferences, batch_of(found))


def test_samples_of_which_none_is_a_pair_are_refused(preferences: Preferences) -> None:
    found = {name: value[2:] for name, value in pieces().items()}
    with pytest.raises(OpenwaferError, match="none of 1 sample in a micro-batch holds a prompt"):
        checked_inputs(preferences, batch_of(found, (False, True)))


def test_pieces_beside_pairs_are_not_refused(preferences: Preferences) -> None:
    batch = batch_of(pieces(), (True, True), (True, True), (False, True))
    assert checked_inputs(preferences, batch).keys() == pieces().keys()


@pytest.fixture
def retriever() -> Retriever:
    heads = {"num_attention_heads": 2, "vocab_size": 16, "max_position_embeddings": 16}
    return Retriever({**SIZES, **heads})


def questions(row: list[int], num_question: int) -> Rows:
    """A question and its passage, and a row of its own, all begin with the token 1."""
    ids = torch.tensor([[1, 5, 1, 6, 7, END], row])
    lengths = torch.tensor([[2], [num_question]])
    labels = ids.where(torch.arange(6) >= lengths, IGNORED_LABEL)
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize(
    ("row", "num_question", "is_longer", "message"),
    [
        ([1, 6, 7, 8, 9, END], 0, False, "question of a row has 0 tokens, expected at least 2"),
        ([1, 6, 7, 8, 9, 9], 0, True, "question of a row has 0 tokens, expected at least 2"),
        ([1, 1, 7, 8, 9, END], 1, False, "question of a row has 1 token, expected at least 2"),
        ([1, 6, 7, 8, 1, END], 4, False, "passage of a row has 2 tokens, expected at least 3"),
    ],
)
def test_an_empty_text_among_good_ones_is_told(
    retriever: Retriever, row: list[int], num_question: int, is_longer: bool, message: str
) -> None:
    batch = batch_of(questions(row, num_question), (True, True), (True, not is_longer))
    with pytest.raises(OpenwaferError, match=f"{message}: sample 2 of 2 in a micro-batch"):
        checked_inputs(retriever, batch)


@pytest.mark.parametrize(
    ("num_question", "row_ends"), [(0, (False, True)), (6, (True, False)), (4, (True, False))]
)
def test_pieces_of_longer_rows_are_not_told(
    retriever: Retriever, num_question: int, row_ends: tuple[bool, bool]
) -> None:
    found = questions([1, 6, 7, 8, 9, 9], num_question)
    assert checked_inputs(retriever, batch_of(found, (True, True), row_ends))


def test_samples_without_any_question_are_refused(retriever: Retriever) -> None:
    found = {**rows(CHOSEN), "labels": rows(CHOSEN)["input_ids"]}
    with pytest.raises(OpenwaferError) as caught:
        forward_of(retriever, batch_of(found, *[(False, True)] * 2), torch.device("cpu"))
    assert caught.value.diagnostics[0].message == (
        "none of 2 samples in a micro-batch holds a question and a passage: 2 begin with a passage"
    )
