"""Lines and columns as people count them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.source import Position, SourceText, Span

TEXT = SourceText("poem.txt", "one\ntwo\r\n\nfour")


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0, Position(1, 1)), (3, Position(1, 4)), (4, Position(2, 1)), (14, Position(4, 5))],
)
def test_offsets_become_lines_and_columns_from_one(offset: int, expected: Position) -> None:
    assert TEXT.position(offset) == expected


@pytest.mark.parametrize(("number", "expected"), [(1, "one"), (2, "two"), (3, ""), (4, "four")])
def test_a_line_comes_without_its_line_end(number: int, expected: str) -> None:
    assert TEXT.line(number) == expected


@given(st.text(alphabet="ab\n"), st.data())
def test_a_position_leads_back_to_its_character(text: str, data: st.DataObject) -> None:
    source = SourceText("any", text)
    offset = data.draw(st.integers(0, len(text)))
    position = source.position(offset)
    before = [source.line(number) for number in range(1, position.line)]
    assert sum(len(line) + 1 for line in before) + position.column - 1 == offset


def test_an_offset_outside_is_refused_with_both_values() -> None:
    with pytest.raises(ValueError, match=r"offset 15 is outside poem.txt of 14 characters"):
        TEXT.position(15)


def test_a_line_outside_is_refused_with_both_values() -> None:
    with pytest.raises(ValueError, match=r"line 5 is outside poem.txt of 4 lines"):
        TEXT.line(5)


def test_a_span_knows_its_characters() -> None:
    assert Span(TEXT, 4, 7).text == "two"


def test_a_span_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"span 7\.\.4 is outside poem.txt"):
        Span(TEXT, 7, 4)
