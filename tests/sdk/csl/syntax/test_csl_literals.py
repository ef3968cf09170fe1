"""Values of literals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.sdk.csl.literals import (
    LiteralError,
    bytes_value,
    char_value,
    float_value,
    int_value,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [("42", 42), ("1_000", 1000), ("0xfF", 255), ("0b1010", 10), ("0o17", 15), ("007", 7)],
)
def test_an_integer_has_its_value(text: str, value: int) -> None:
    assert int_value(text) == value


@pytest.mark.parametrize("text", ["1__0", "1_", "0x", "0b2", "0o8", "0xg", "12ab", "0X1"])
def test_a_malformed_integer_is_named(text: str) -> None:
    with pytest.raises(LiteralError, match=f"'{text}' is not an integer"):
        int_value(text)


@pytest.mark.parametrize("text", ["9" * 5000, "0x" + "f" * 4998], ids=["decimal", "hexadecimal"])
def test_an_integer_beyond_reason_is_refused(text: str) -> None:
    with pytest.raises(LiteralError, match="an integer of 5000 digits has more than 8192 bits"):
        int_value(text)


@given(st.integers(min_value=0))
def test_integers_are_read_in_every_base(value: int) -> None:
    texts = (str(value), hex(value), oct(value), bin(value))
    assert [int_value(text) for text in texts] == [value] * 4


@pytest.mark.parametrize(
    ("text", "value"), [("1.5", 1.5), ("2e-3", 0.002), ("1_0.2_5", 10.25), ("0.1", 0.1)]
)
def test_a_float_is_the_nearest_double(text: str, value: float) -> None:
    assert float_value(text) == value


@pytest.mark.parametrize("text", ["1.", "1e", "1.5e+", "0.5f", "1._5"])
def test_a_malformed_float_is_named(text: str) -> None:
    with pytest.raises(LiteralError, match=f"'{text}' is not a float".replace("+", r"\+")):
        float_value(text)


def test_a_float_beyond_a_double_is_refused() -> None:
    with pytest.raises(LiteralError, match="'1e999' is beyond the range of a double"):
        float_value("1e999")


def test_escapes_stand_for_bytes() -> None:
    assert bytes_value(r'"\n\r\t\0\\\"\'\x7f"') == b"\n\r\t\x00\\\"'\x7f"


def test_text_beyond_ascii_is_utf8() -> None:
    assert bytes_value('"👍"') == b"\xf0\x9f\x91\x8d"


@pytest.mark.parametrize("text", ['"', '"abc', '"abc\\"'])
def test_an_open_string_is_refused(text: str) -> None:
    with pytest.raises(LiteralError, match="the literal is not closed on its line"):
        bytes_value(text)


@pytest.mark.parametrize("escape", ["q", "x1", "u0041"])
def test_an_unknown_escape_is_named(escape: str) -> None:
    with pytest.raises(LiteralError, match=rf"'\\{escape[0]}' is not an escape"):
        bytes_value(f'"\\{escape}"')


@pytest.mark.parametrize(("text", "value"), [("'a'", 97), (r"'\n'", 10), (r"'\x0a'", 10)])
def test_a_character_is_its_code(text: str, value: int) -> None:
    assert char_value(text) == value


@pytest.mark.parametrize(("text", "num_bytes"), [("''", 0), ("'ab'", 2), ("'ä'", 2)])
def test_a_character_is_one_byte(text: str, num_bytes: int) -> None:
    with pytest.raises(LiteralError, match=f"a character is one byte, {text} has {num_bytes}"):
        char_value(text)
