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


def batch_of(found: Rows) -> Batch:
    return Batch(found["input_ids"], found["labels"], found["attention_mask"])


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
        "error[pair-answers]: a prompt has 1 answer, expected 2: sample 2 of 2 in a micro-batch\n"
        "  = note: its tokens are 8, 11, 0, 1, 1, 1, 1, 1, 1, 1 ...\n"
        "  = help: write the chosen answer, the end of text and the rejected one in its row"
    )


def test_samples_of_which_none_is_a_pair_are_refused(preferences: Preferences) -> None:
    batch = batch_of({name: value[2:] for name, value in pieces().items()})
    with pytest.raises(OpenwaferError, match="none of 1 sample in a micro-batch holds a prompt"):
        checked_inputs(preferences, batch)


def test_pieces_beside_pairs_are_not_refused(preferences: Preferences) -> None:
    assert checked_inputs(preferences, batch_of(pieces())).keys() == pieces().keys()


def test_samples_without_any_question_are_refused() -> None:
    heads = {"num_attention_heads": 2, "vocab_size": 16, "max_position_embeddings": 16}
    model = Retriever({**SIZES, **heads})
    found = {**rows(CHOSEN), "labels": rows(CHOSEN)["input_ids"]}
    with pytest.raises(OpenwaferError) as caught:
        forward_of(model, batch_of(found), torch.device("cpu"))
    assert caught.value.diagnostics[0].message == (
        "none of 2 samples in a micro-batch holds a question and a passage: 2 begin with a passage"
    )
