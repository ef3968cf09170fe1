"""Chats become the tokens of their template, and only what the assistant wrote is learned."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import (
    DataConfig,
    DataSource,
    Sampling,
    SavedTokenizer,
    SourceKind,
    TokenDataset,
    TokenizerTraining,
    prepare,
)
from openwafer.training.labels import IGNORED_LABEL
from tests.training.data.templates import CHATML, LAST_ALONE, TEMPLATES, save_tokenizer

Messages = list[dict[str, str]]
ANSWERS = ("fine, thanks", "it is four")


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


CHAT = [
    turn("user", "how are you?"),
    turn("assistant", ANSWERS[0]),
    turn("user", "what is 2 + 2?"),
    turn("assistant", ANSWERS[1]),
]
APART = Sampling(sequence_length=512, global_batch=1, cross_documents=False)


def prepared(folder: Path, rows: Sequence[Any], **options: Any) -> TokenDataset:
    """Rows of JSON, each a sample, with the tokenizer of the folder."""
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = DataSource(SourceKind.JSONL, (str(file),), **{"column": "messages", **options})
    tokenizer = SavedTokenizer(folder, split_special_tokens=False)
    return prepare(DataConfig(source, tokenizer, APART, validation_share=0.0), folder / "data")


def learned(dataset: TokenDataset) -> list[str]:
    """What the targets of each sample spell, in the order of the rows."""
    rows = [row for batch in dataset.once() for row in batch.labels.tolist()]
    kept = [[label for label in row if label != IGNORED_LABEL] for row in rows]
    tokenizer = AutoTokenizer.from_pretrained(dataset.folder)
    return [tokenizer.decode(ids) for ids in kept]


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_tokens_are_those_of_the_template(name: str, tmp_path: Path) -> None:
    dataset = prepared(save_tokenizer(tmp_path, TEMPLATES[name]), [{"messages": CHAT}])
    theirs = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(CHAT, return_dict=True)
    assert next(dataset.once()).without_padding[0].tolist() == theirs["input_ids"]


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("chatml", "<|im_end|>\n"),
        ("marked", "<|im_end|>"),
        ("brackets", "</s>"),
        ("headers", "<|turn|>"),
        ("turns", "<|end|>\n"),
        ("names", "</s>"),
        ("angles", "</s>\n"),
        ("sections", "</s>\n\n"),
    ],
)
def test_answers_alone_are_learned(name: str, ends: str, tmp_path: Path) -> None:
    dataset = prepared(save_tokenizer(tmp_path, TEMPLATES[name]), [{"messages": CHAT}])
    # These two write a space behind the mark by which an answer is asked for.
    space = " " if name in ("brackets", "names") else ""
    assert learned(dataset) == ["".join(f"{space}{answer}{ends}" for answer in ANSWERS)]


def test_all_is_learned_where_that_is_asked_for(tmp_path: Path) -> None:
    dataset = prepared(save_tokenizer(tmp_path, CHATML), [{"messages": CHAT}], learn="all")
    batch = next(dataset.once())
    assert batch.num_targets == batch.num_tokens - 1
    assert dataset.stream.is_marked is False


def test_messages_of_other_keys_are_the_same_chat(tmp_path: Path) -> None:
    names = {"user": "human", "assistant": "gpt"}
    rows = [{"from": names[one["role"]], "value": one["content"]} for one in CHAT]
    dataset = prepared(save_tokenizer(tmp_path, CHATML), [{"messages": rows}, {"messages": CHAT}])
    ours, same = (sample.tolist() for batch in dataset.once() for sample in batch.without_padding)
    assert ours == same


def test_behind_a_prompt_only_the_last_messages_are_learned(tmp_path: Path) -> None:
    row = {"prompt": CHAT[:3], "completion": CHAT[3:]}
    options = {"column": "completion", "prompt_column": "prompt"}
    dataset = prepared(save_tokenizer(tmp_path, CHATML), [row], **options)
    assert learned(dataset) == ["it is four<|im_end|>\n"]


def test_behind_a_prompt_of_text_only_the_completion_and_the_end_are_learned(
    tmp_path: Path,
) -> None:
    row = {"question": "2 + 2 is", "answer": " four"}
    options = {"column": "answer", "prompt_column": "question"}
    dataset = prepared(save_tokenizer(tmp_path, None), [row], **options)
    assert learned(dataset) == [" four</s>"]
    assert dataset.tokenizer.decode(next(dataset.once()).without_padding[0].tolist()) == (
        "2 + 2 is four"
    )


def test_samples_without_an_answer_are_left_out(tmp_path: Path) -> None:
    rows = [{"messages": CHAT[:1]}, {"messages": CHAT}, {"messages": CHAT[2:3]}]
    dataset = prepared(save_tokenizer(tmp_path, CHATML), rows)
    assert dataset.num_samples == 1
    assert dataset.stream.document_bounds().size == 4


def test_joined_samples_mark_the_same_tokens_as_whole_documents(tmp_path: Path) -> None:
    dataset = prepared(save_tokenizer(tmp_path, CHATML), [{"messages": CHAT}] * 9)
    joined = TokenDataset.open(dataset.folder, Sampling(sequence_length=24, global_batch=1))
    rows = np.concatenate([batch.labels.numpy() for batch in joined.once()])
    marks = dataset.stream.are_targets((np.array([0]), np.array([dataset.num_tokens])), 10**4)[0]
    whole = marks[: marks.size // 24 * 24].reshape(-1, 24)
    taught = whole[whole[:, 1:].any(axis=1)]
    assert (rows != IGNORED_LABEL).tolist() == taught[: len(rows)].tolist()


def with_settings(folder: Path, **values: object) -> Path:
    """The tokenizer folder, with other values in its tokenizer_config.json."""
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    return folder


def texts_with_a_template(folder: Path, settings: Path, template: str | None) -> TokenDataset:
    """A text, with a tokenizer that has a template or none."""
    file = folder / "a.txt"
    if not file.exists():
        file.write_text("some text of some words")
    tokenizer = SavedTokenizer(save_tokenizer(settings, template), split_special_tokens=False)
    source = DataSource(SourceKind.TEXT, (str(file),))
    return prepare(DataConfig(source, tokenizer, Sampling(4, 1), 0.0), folder / "data")


def test_a_token_that_a_template_names_and_that_changes_makes_other_tokens(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"messages": CHAT}))
    source = DataSource(SourceKind.JSONL, (str(file),), column="messages")
    save_tokenizer(tmp_path, TEMPLATES["turns"])
    firsts = []
    for name in ("<s>", "<|header|>"):
        tokenizer = SavedTokenizer(
            with_settings(tmp_path, bos_token=name), split_special_tokens=False
        )
        dataset = prepare(DataConfig(source, tokenizer, APART, 0.0), tmp_path / "data")
        firsts.append(int(next(dataset.once()).input_ids[0, 0]))
    assert firsts == AutoTokenizer.from_pretrained(tmp_path).convert_tokens_to_ids(
        ["<s>", "<|header|>"]
    )


def test_texts_of_releases_that_took_no_chats_are_not_tokenised_again(tmp_path: Path) -> None:
    # Without a template the key is theirs.
    before = texts_with_a_template(tmp_path, tmp_path / "plain", None)
    after = texts_with_a_template(tmp_path, tmp_path / "chat", CHATML)
    assert before.folder == after.folder


def test_a_table_may_hold_messages_of_both_pairs_of_keys(tmp_path: Path) -> None:
    empty = {"role": None, "content": None}
    rows = [{"from": "human", "value": "a", **empty}, {"from": "gpt", "value": "b", **empty}]
    dataset = prepared(save_tokenizer(tmp_path, CHATML), [{"messages": rows}])
    assert learned(dataset) == ["b<|im_end|>\n"]


def test_tokens_that_only_the_settings_have_are_told(tmp_path: Path) -> None:
    template = CHATML.replace("<|im_end|>", "{{ pad_token }}")
    folder = with_settings(save_tokenizer(tmp_path, template), pad_token="<pad>")
    problem = problem_of(folder, [{"messages": CHAT}])
    assert "rows.jsonl: row 1: the chat template" in problem
    assert "writes token 263, and its tokenizer.json has 263 tokens" in problem


def test_an_answer_to_nothing_is_told_with_the_row(tmp_path: Path) -> None:
    problem = problem_of(save_tokenizer(tmp_path, CHATML), [{"messages": CHAT[1:]}])
    assert "rows.jsonl: row 1: " in problem
    assert "its first message is an answer, and nothing before says where" in problem


def problem_of(folder: Path, rows: Sequence[Any], **source: Any) -> str:
    with pytest.raises(OpenwaferError) as caught:
        prepared(folder, rows, **source)
    return str(caught.value)


def test_a_tokenizer_without_a_template_is_told(tmp_path: Path) -> None:
    problem = problem_of(save_tokenizer(tmp_path, None), [{"messages": CHAT}])
    assert f"{tmp_path} has no chat template" in problem


def test_a_template_that_refuses_a_chat_is_told_with_the_row(tmp_path: Path) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    problem = problem_of(save_tokenizer(tmp_path, template), [{"messages": CHAT}])
    assert f"{tmp_path}/rows.jsonl: row 1: the chat template of {tmp_path} does not take" in problem
    assert "roles must alternate" in problem


def test_a_template_that_hides_where_answers_are_is_told_with_both_texts(tmp_path: Path) -> None:
    problem = problem_of(save_tokenizer(tmp_path, LAST_ALONE), [{"messages": CHAT}])
    assert "does not say where answers are" in problem
    assert "alone: ...'* how are you?" in problem
    assert "set learn: all" in problem


def test_a_template_without_roles_is_told_and_learned_whole(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path, "{% for m in messages %}{{ m.content }}\n{% endfor %}")
    problem = problem_of(folder, [{"messages": CHAT}])
    assert "rows.jsonl: row 1: the chat template of" in problem
    assert "writes an answer as it writes a question" in problem
    whole = "\n".join(one["content"] for one in CHAT)
    assert whole in learned(prepared(folder, [{"messages": CHAT}], learn="all"))[0]


def test_split_special_tokens_are_told(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"messages": CHAT}))
    source = DataSource(SourceKind.JSONL, (str(file),), column="messages")
    config = DataConfig(source, SavedTokenizer(save_tokenizer(tmp_path, CHATML)))
    with pytest.raises(OpenwaferError, match=r"set tokenizer\.split_special_tokens: false"):
        prepare(config, tmp_path / "data")


def test_a_tokenizer_that_is_trained_has_no_template(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"messages": CHAT}))
    source = DataSource(SourceKind.JSONL, (str(file),), column="messages")
    with pytest.raises(OpenwaferError, match="a tokenizer that is trained has no template"):
        prepare(DataConfig(source, TokenizerTraining(300)), tmp_path / "data")
