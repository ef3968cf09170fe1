"""Tools of a chat, and calls of them, are written as the template of the tokenizer writes them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import DataConfig, DataSource, SavedTokenizer, SourceKind, prepare
from tests.training.data.templates import CALLING, CHATML, save_tokenizer
from tests.training.data.test_chats import APART, CHAT, learned, prepared, problem_of

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds numbers"}}]
OUTSIDE = (
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}"
)
OLDER = CHATML.replace("m.content", "m.content or m.function_call | tojson")
ROW: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "what is 2 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "name": "add", "content": "4"},
        {"role": "assistant", "content": "it is four"},
    ],
    "tools": TOOLS,
}
WITH_TOOLS = {"tools_column": "tools"}


def ids_of(folder: Path, row: dict[str, Any] = ROW) -> list[int]:
    dataset = prepared(folder, [row], **WITH_TOOLS)
    return next(dataset.once()).without_padding[0].tolist()


def test_tokens_are_those_of_the_template_with_the_tools(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(save_tokenizer(tmp_path, CALLING))
    theirs = tokenizer.apply_chat_template(ROW["messages"], tools=TOOLS, return_dict=True)
    assert ids_of(tmp_path) == theirs["input_ids"]


def test_calls_are_learned_and_what_a_tool_answers_is_not(tmp_path: Path) -> None:
    dataset = prepared(save_tokenizer(tmp_path, CALLING), [ROW], **WITH_TOOLS)
    call = json.dumps(CALL["function"])
    assert learned(dataset) == [f"<call>{call}</call><|im_end|>\nit is four<|im_end|>\n"]


def test_tools_may_be_the_json_of_a_list(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, CALLING)
    assert ids_of(tmp_path, {**ROW, "tools": json.dumps(TOOLS)}) == ids_of(tmp_path)


def test_nulls_that_a_table_writes_in_calls_are_not_in_the_chat(tmp_path: Path) -> None:
    other = {"type": "function", "function": {"name": "now", "arguments": {"zone": "UTC"}}}
    messages = [*ROW["messages"][:1], {"role": "assistant", "content": "", "tool_calls": [other]}]
    rows = [ROW, {"messages": messages, "tools": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    paths = (str(tmp_path / "rows.parquet"),)
    source = DataSource(SourceKind.PARQUET, paths, column="messages", tools_column="tools")
    tokenizer = SavedTokenizer(save_tokenizer(tmp_path, CALLING), split_special_tokens=False)
    dataset = prepare(DataConfig(source, tokenizer, APART, validation_share=0.0), tmp_path / "data")
    lines = prepared(tmp_path, rows, **WITH_TOOLS)
    assert [learned(dataset), dataset.num_tokens] == [learned(lines), lines.num_tokens]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"messages": CHAT, "tools": TOOLS}, "does not write the tools of this chat"),
        ({**ROW, "tools": []}, "does not write the calls of tools of this chat"),
        ({**ROW, "tools": ["add"]}, "'tools' holds ['add'], expected a list of objects"),
        ({"messages": "text", "tools": []}, "holds a text, and only chats have tools"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}], "tools": []},
            "message 1: its tool_calls hold {'id': 1}, which names no function",
        ),
    ],
)
def test_what_would_be_lost_is_told_with_the_row(
    row: dict[str, Any], told: str, tmp_path: Path
) -> None:
    save_tokenizer(tmp_path, CHATML)
    with pytest.raises(OpenwaferError) as caught:
        prepared(tmp_path, [row], **WITH_TOOLS)
    assert "rows.jsonl:1" in str(caught.value) or "rows.jsonl: row 1" in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("m.tool_calls or []", "(m.tool_calls or [])[:1]", "the calls of tools of this chat, or"),
        ("c.function | tojson", "c.function.name", "the arguments of calls of this chat, or"),
        ("in tools", "in tools[:1]", "the tools of this chat, or not all"),
        ("in messages", "in messages if m.role != 'tool'", "the answers of tools of this chat, or"),
        (
            "{{ m.content }}",
            OUTSIDE,
            "none is learned",
        ),
    ],
)
def test_what_a_template_loses_of_calls_and_answers_is_told(
    old: str, new: str, told: str, tmp_path: Path
) -> None:
    calls = {"role": "assistant", "tool_calls": [CALL, CALL]}
    row = {**ROW, "messages": [ROW["messages"][0], calls, *ROW["messages"][2:]]}
    row["tools"] = [*TOOLS, {"type": "function", "function": {"name": "subtract"}}]
    template = CALLING.replace(old, new, 1)
    assert template != CALLING
    assert told in problem_of(save_tokenizer(tmp_path, template), [row], **WITH_TOOLS)


def test_arguments_that_a_template_writes_by_their_names_are_not_lost(tmp_path: Path) -> None:
    by_name = "c.function.name ~ c.function.arguments.a"
    template = CALLING.replace("c.function | tojson", by_name)
    dataset = prepared(save_tokenizer(tmp_path, template), [ROW], **WITH_TOOLS)
    assert learned(dataset) == ["<call>add2</call><|im_end|>\nit is four<|im_end|>\n"]


def test_a_call_without_arguments_loses_none(tmp_path: Path) -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": {}}}]}
    template = CALLING.replace("c.function | tojson", "c.function.name")
    dataset = prepared(save_tokenizer(tmp_path, template), [{"messages": [CHAT[0], call]}])
    assert learned(dataset) == ["<call>now</call><|im_end|>\n"]


def test_a_text_beside_a_call_that_a_template_leaves_out_is_told(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": "let me see", "tool_calls": [CALL]}
    template = CALLING.replace(
        "{{ m.content }}", "{% if not m.tool_calls %}{{ m.content }}{% endif %}"
    )
    assert template != CALLING
    problem = problem_of(save_tokenizer(tmp_path, template), [{"messages": [CHAT[0], call]}])
    assert "does not write the texts beside calls of this chat" in problem


@pytest.mark.parametrize("content", [None, "", "let me see"])
def test_a_call_of_the_older_form_is_told_where_the_template_leaves_it_out(
    content: str | None, tmp_path: Path
) -> None:
    call = {"role": "assistant", "content": content, "function_call": CALL["function"]}
    problem = problem_of(save_tokenizer(tmp_path, CALLING), [{"messages": [CHAT[0], call]}])
    assert "does not write the calls in function_call of this chat" in problem
    assert "write each call as tool_calls: [{function: ...}]" in problem


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (
            OLDER.replace("m.function_call | tojson", "m.function_call.name"),
            "the arguments of calls",
        ),
        (OLDER.replace("in messages", "in messages if m.role != 'function'"), "answers of tools"),
    ],
)
def test_what_a_template_loses_of_the_older_form_is_told(
    template: str, told: str, tmp_path: Path
) -> None:
    call = {"role": "assistant", "content": None, "function_call": CALL["function"]}
    answer = {"role": "function", "name": "add", "content": "4"}
    rows = [{"messages": [CHAT[0], call, answer]}]
    assert told in problem_of(save_tokenizer(tmp_path, template), rows)


def test_a_call_of_the_older_form_is_learned_where_the_template_writes_it(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "function_call": CALL["function"]}
    rows = [{"messages": [CHAT[0], call]}]
    dataset = prepared(save_tokenizer(tmp_path, OLDER), rows)
    assert learned(dataset) == [f"{json.dumps(CALL['function'])}<|im_end|>\n"]


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        (CALL, "its tool_calls are {'type': 'function'"),
        ([{"function": {"name": "add", "arguments": '{"a": 2}'}}], "writes it in quotes"),
    ],
)
def test_calls_that_no_template_takes_are_told(calls: Any, told: str, tmp_path: Path) -> None:
    row = {"messages": [*ROW["messages"][:1], {"role": "assistant", "tool_calls": calls}]}
    assert told in problem_of(save_tokenizer(tmp_path, CALLING), [row])


def test_arguments_that_a_template_writes_as_they_are_may_be_a_text(tmp_path: Path) -> None:
    calls = [{"function": {"name": "add", "arguments": '{"a": 2}'}}]
    row = {"messages": [*ROW["messages"][:1], {"role": "assistant", "tool_calls": calls}]}
    template = CALLING.replace("c.function | tojson", "c.function.name + c.function.arguments")
    dataset = prepared(save_tokenizer(tmp_path, template), [row])
    assert learned(dataset) == ['<call>add{"a": 2}</call><|im_end|>\n']


def test_a_message_without_content_and_calls_is_told(tmp_path: Path) -> None:
    row = {"messages": [*CHAT, {"role": "assistant", "content": None}]}
    problem = problem_of(save_tokenizer(tmp_path, CHATML), [row])
    assert "message 5: its content is None, expected a text" in problem
