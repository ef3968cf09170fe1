"""Expressions of many levels."""

import sys
from types import FrameType
from typing import Any

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.csl.parser import parse
from openwafer.sdk.csl.sema import builder
from openwafer.sdk.csl.text import render_module
from openwafer.source import SourceText
from tests.sdk.csl.sema.programs import messages


def test_a_sum_may_have_thousands_of_terms() -> None:
    total = " + ".join(["1"] * 3000)
    assert messages(f"comptime {{ @comptime_assert({total} == 3000); }}") == []


def test_the_tree_of_a_long_sum_has_a_text() -> None:
    module, _ = parse(SourceText("sum.csl", f"const it = {' + '.join(['1'] * 3000)};"))
    assert render_module(module).count("1") == 3000


def test_levels_without_end_are_refused() -> None:
    body = " and ".join(["a"] * 30_000)
    program = f"fn f(a: bool) bool {{ return {body}; }} comptime {{ @export_symbol(f); }}"
    assert messages(program) == ["an expression of the program has too many levels"]


def test_a_text_without_end_is_refused() -> None:
    module, _ = parse(SourceText("sum.csl", f"const it = {' + '.join(['1'] * 20_000)};"))
    with pytest.raises(OpenwaferError, match="too many levels"):
        render_module(module)


def lines_for(num_conditions: int) -> int:
    """Lines of the builder that run for a condition of as many parts, searches included."""
    body, count = " and ".join(["a"] * num_conditions), 0

    def note(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return note if frame.f_code.co_filename == builder.__file__ else None

    before = sys.gettrace()
    sys.settrace(note)
    try:
        found = messages(
            f"fn f(a: bool) bool {{ return {body}; }} comptime {{ @export_symbol(f); }}"
        )
    finally:
        sys.settrace(before)
    assert found == []
    return count


def test_twice_as_many_conditions_take_twice_the_work() -> None:
    assert lines_for(400) < 2.2 * lines_for(200)
