"""From text to tokens."""

import pytest

from openwafer.sdk.csl.lexer import tokenize
from openwafer.sdk.csl.tokens import KEYWORDS, TokenKind
from openwafer.source import SourceText


def words(text: str) -> list[str]:
    return [token.text for token in tokenize(SourceText("snippet.csl", text))[0]]


def kinds(text: str) -> list[TokenKind]:
    return [token.kind for token in tokenize(SourceText("snippet.csl", text))[0]]


def test_space_and_comments_are_no_tokens() -> None:
    assert words("a // b\n\t c//") == ["a", "c", ""]


def test_the_longest_symbol_is_taken() -> None:
    assert words("<<=<<<=<..........*.") == [
        "<<=",
        "<<",
        "<=",
        "<",
        "...",
        "...",
        "...",
        ".*",
        ".",
        "",
    ]


def test_a_dereference_is_one_token() -> None:
    assert words("p.*.x") == ["p", ".*", ".", "x", ""]


@pytest.mark.parametrize("keyword", sorted(KEYWORDS))
def test_a_keyword_is_one_only_as_a_whole_word(keyword: str) -> None:
    assert kinds(f"{keyword} {keyword}_")[:2] == [TokenKind.KEYWORD, TokenKind.NAME]


@pytest.mark.parametrize("text", ["color", "layout", "type", "i16", "mem1d_dsd", "undefined"])
def test_names_of_types_are_names(text: str) -> None:
    assert kinds(text) == [TokenKind.NAME, TokenKind.END]


@pytest.mark.parametrize("text", ["0", "1_000", "0xff", "0b1", "0o17", "0xe", "4x"])
def test_an_integer_takes_all_that_is_glued_to_it(text: str) -> None:
    assert kinds(text) == [TokenKind.INT, TokenKind.END]


@pytest.mark.parametrize("text", ["1.0", "1e5", "1.5e-3", "2E+8", "1.", "0.5f", "1_0.0_1"])
def test_a_float_has_a_point_or_an_exponent(text: str) -> None:
    assert kinds(text) == [TokenKind.FLOAT, TokenKind.END]


def test_a_range_of_integers_holds_no_float() -> None:
    assert words("1...3") == ["1", "...", "3", ""]


def test_a_hexadecimal_e_is_no_exponent() -> None:
    assert words("0xe+1") == ["0xe", "+", "1", ""]


def test_a_quote_behind_a_backslash_does_not_close_a_string() -> None:
    assert words(r'"a\"b" c') == [r'"a\"b"', "c", ""]


def test_an_open_string_ends_with_its_line() -> None:
    assert words('"abc\nd') == ['"abc', "d", ""]


def test_comment_marks_inside_a_string_are_text() -> None:
    assert words('"a // b"') == ['"a // b"', ""]


def test_tokens_know_their_place() -> None:
    token = tokenize(SourceText("snippet.csl", "ab  cd"))[0][1]
    assert (token.start, token.end) == (4, 6)


def test_characters_without_meaning_are_tokens_of_their_own() -> None:
    assert kinds("a ? ä") == [TokenKind.NAME, TokenKind.STRAY, TokenKind.STRAY, TokenKind.END]


def test_a_block_comment_is_skipped_up_to_its_end() -> None:
    assert words("a /* b\n c */ d") == ["a", "d", ""]


def test_each_block_comment_is_reported() -> None:
    diagnostics = tokenize(SourceText("snippet.csl", "/* a */ b /* c"))[1]
    assert [diagnostic.code for diagnostic in diagnostics] == ["csl-block-comment"] * 2
