"""What to write instead, told from the words around a mistake."""

import re
from collections.abc import Sequence
from itertools import pairwise

from openwafer.sdk.csl.tokens import Token, TokenKind

_FOREIGN_WORDS = {
    "not": "negation is written '!'",
    "let": "declare with 'const' or 'var'",
    "def": "a function is declared with 'fn', or 'task' if wavelets start it",
    "func": "a function is declared with 'fn', or 'task' if wavelets start it",
    "function": "a function is declared with 'fn', or 'task' if wavelets start it",
    "import": 'a module is imported with: const name = @import_module("file.csl");',
    "case": "a case of a switch is written: value => expression,",
    "default": "the default of a switch is written: else => expression,",
    "do": "a loop is written: while (condition) { ... }",
}
_INTEGERS = "integers have a width: i16, u16, i32, u32"
_FLOATS = "floats have a width: f16, f32"
_FOREIGN_TYPES = {
    "int": _INTEGERS,
    "uint": _INTEGERS,
    "unsigned": _INTEGERS,
    "long": _INTEGERS,
    "short": _INTEGERS,
    "size_t": _INTEGERS,
    "usize": _INTEGERS,
    "isize": _INTEGERS,
    "float": _FLOATS,
    "double": _FLOATS,
    "half": _FLOATS,
    "char": "a byte is a u8",
    "string": "text is known to the compiler only: comptime_string",
}
_TYPE_WITH_WIDTH = re.compile(r"(u?)(int|float)(8|16|32|64)(_t)?")
_PAIRS = {
    "++": "CSL has no '++'; write '+= 1'",
    "--": "CSL has no '--'; write '-= 1'",
    "**": "CSL has no '**'; multiply, or call pow of <math>",
}
_STRAYS = {
    "?": "a choice is written: if (condition) a else b",
    "#": "comments start with //",
}


def remedy_for_words(words: Sequence[Token]) -> str:
    """Remedy for a mistake noticed at the last of `words`, or ""."""
    for word in reversed(words):
        remedy = _FOREIGN_WORDS.get(word.text) or _FOREIGN_TYPES.get(word.text)
        if remedy:
            return remedy
    for first, second in pairwise(words):
        if first.end == second.start and first.text + second.text in _PAIRS:
            return _PAIRS[first.text + second.text]
    if len(words) > 2 and words[-1].text == "=":
        return _remedy_for_equals(words[-3:])
    return ""


def _remedy_for_equals(words: Sequence[Token]) -> str:
    """Remedy for an '=', the last of three words, where no assignment can be."""
    if words[0].text == ".":
        return f"a ',' is missing before '.{words[1].text}'"
    return "compare with '=='; an assignment is a statement of its own"


def remedy_for_type(name: str) -> str:
    """Remedy for a type's name in another language, or ""."""
    width = _TYPE_WITH_WIDTH.fullmatch(name)
    if width is None:
        return _FOREIGN_TYPES.get(name, "")
    letter = "f" if width[2] == "float" else width[1] or "i"
    return f"did you mean '{letter}{width[3]}'?"


def remedy_for_name(token: Token) -> str:
    """Remedy for `token` where a name belongs, or ""."""
    if token.kind in {TokenKind.INT, TokenKind.FLOAT}:
        return "names start with a letter or _"
    if token.kind is TokenKind.BUILTIN:
        return "only builtins start with @"
    return ""


def stray_remedy(characters: str) -> str:
    """Remedy for characters that CSL has no use for."""
    if not characters.isascii():
        codes = " ".join(f"U+{ord(char):04X}" for char in characters)
        return f"remove {codes}; outside of strings and comments CSL is written in ASCII"
    return _STRAYS.get(characters, "remove it")
