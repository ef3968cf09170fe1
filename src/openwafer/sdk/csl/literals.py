"""From the text of a literal to its value."""

import math
import re
from typing import Final

_DIGITS = {"x": "0-9a-fA-F", "o": "0-7", "b": "01"}
_INT = re.compile(
    r"(\d+(?:_\d+)*)|" + "|".join(f"(0{p}[{d}]+(?:_[{d}]+)*)" for p, d in _DIGITS.items()),
    re.ASCII,
)
_FLOAT = re.compile(r"\d+(?:_\d+)*(?:\.\d+(?:_\d+)*)?(?:[eE][+-]?\d+(?:_\d+)*)?", re.ASCII)
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)")
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\", "'": b"'", '"': b'"'}
MOST_BITS: Final = 8192
"""Of a comptime_int; no type of CSL has a use for more, and Python writes no longer decimals."""


class LiteralError(ValueError):
    """A literal that is not well formed: what is wrong, and the remedy."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def int_value(text: str) -> int:
    """Value of `42`, `0xff`, `0b1`, `0o7`; LiteralError where `text` is none of them."""
    if not _INT.fullmatch(text):
        raise LiteralError(f"'{text}' is not an integer", _int_remedy(text))
    value = int(text, 0) if text[1:2] in _DIGITS else _decimal(text)
    if value.bit_length() > MOST_BITS:
        raise LiteralError(
            f"an integer of {len(text)} digits has more than {MOST_BITS} bits", "shorten it"
        )
    return value


def _decimal(text: str) -> int:
    """The number, or one that is too large in place of what Python refuses to read."""
    return int(text) if len(text) < MOST_BITS // 2 else 1 << MOST_BITS


def _int_remedy(text: str) -> str:
    prefix = text[1:2].lower()
    if text.startswith("0") and prefix in _DIGITS:
        return f"after 0{prefix} come digits {_DIGITS[prefix]}, with single _ between them"
    if re.fullmatch(r"[\d_]+", text, re.ASCII):
        return "write single _ between digits only"
    return "put an operator between number and name; names do not start with a digit"


def float_value(text: str) -> float:
    """Value of `1.5` or `2e-3` as a double; LiteralError where `text` is none."""
    if not _FLOAT.fullmatch(text):
        raise LiteralError(
            f"'{text}' is not a float",
            "a float has digits on both sides of its point, and digits behind e: 1.0, 2.5e-3",
        )
    value = float(text)
    if math.isinf(value):
        raise LiteralError(
            f"'{text}' is beyond the range of a double", "the largest is about 1.797e308"
        )
    return value


def bytes_value(text: str) -> bytes:
    """Bytes of `"text"`, UTF-8 where not escaped; LiteralError on a bad escape or a missing end."""
    if not _QUOTED.fullmatch(text):
        raise LiteralError(
            "the literal is not closed on its line",
            f"close it with {text[0]}, and write a line break inside as \\n",
        )
    parts = _ESCAPE.split(text[1:-1])
    # The parts alternate: text, escape, text, escape, ..., text.
    return b"".join(
        _escaped(part) if number % 2 else part.encode("utf-8", "surrogatepass")
        for number, part in enumerate(parts)
    )


def _escaped(name: str) -> bytes:
    if name in _ESCAPES:
        return _ESCAPES[name]
    if len(name) == len("x0a"):
        return bytes.fromhex(name[1:])
    raise LiteralError(
        f"'\\{name}' is not an escape", "the escapes are \\n \\r \\t \\0 \\\\ \\' \\\" and \\x0a"
    )


def char_value(text: str) -> int:
    """Code of `'a'`; LiteralError unless it is exactly one byte."""
    value = bytes_value(text)
    if len(value) != 1:
        raise LiteralError(
            f"a character is one byte, {text} has {len(value)}",
            'write text between double quotes: "text"',
        )
    return value[0]
