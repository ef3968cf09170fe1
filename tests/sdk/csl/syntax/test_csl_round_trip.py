"""Text form and parser are inverse; whatever the text, the parser answers with diagnostics."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import render as render_diagnostic
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.parser import parse
from openwafer.sdk.csl.text import render, render_module
from openwafer.source import SourceText
from tests.examples import examples
from tests.sdk.csl.syntax.test_csl_spans import PROGRAM
from tests.sdk.csl.syntax.trees import modules

FRAGMENTS = st.sampled_from(
    [
        *("(", ")", "[", "]", "{", "}", ".{", "|i|", "->", "=>", ";", ",", ".", ":", "=", "*", "&"),
        *("fn f() void", "task", "const x", "var", "param", "comptime", "if", "else", "switch"),
        *("for", "while", "return", "struct", "enum", "x", "@f", "1", "2.5", "'a'", '"s"', "\n"),
        *("asm", "+", "-", "and", "export", "extern", "inline", "layout", "?", "//", '"', "0x"),
    ]
)


def parsed(text: str) -> ast.Module:
    module, diagnostics = parse(SourceText("text.csl", text))
    assert [render_diagnostic(diagnostic) for diagnostic in diagnostics] == []
    return module


@examples(60, by_default=5)
@given(modules)
def test_a_tree_is_read_back_from_its_text(module: Any) -> None:
    assert parsed(render_module(module)) == module


def test_a_program_is_read_back_from_its_text() -> None:
    assert parsed(render_module(parsed(PROGRAM))) == parsed(PROGRAM)


def test_what_is_no_node_has_no_text() -> None:
    with pytest.raises(TypeError, match="int is not a node of the syntax tree"):
        render(1)  # type: ignore[arg-type]


def check(text: str) -> None:
    """Parse and render every diagnostic; only an exception fails."""
    for diagnostic in parse(SourceText("text.csl", text))[1]:
        assert diagnostic.span is not None
        assert render_diagnostic(diagnostic)


@examples(200, by_default=80)
@given(st.text())
def test_any_text_is_parsed_or_reported(text: str) -> None:
    check(text)


@examples(200, by_default=80)
@given(st.lists(FRAGMENTS, max_size=40))
def test_any_words_are_parsed_or_reported(fragments: list[str]) -> None:
    check(" ".join(fragments))


@examples(200, by_default=80)
@given(st.integers(0, len(PROGRAM)), st.integers(0, 12), FRAGMENTS | st.just(""))
def test_a_changed_program_is_parsed_or_reported(place: int, length: int, put: str) -> None:
    check(PROGRAM[:place] + put + PROGRAM[place + length :])
