"""The words of CSL."""

from enum import Enum, auto
from typing import NamedTuple

KEYWORDS = frozenset(
    {
        *("align", "and", "anytype", "asm", "break", "comptime", "const", "continue", "else"),
        *("enum", "export", "extern", "false", "fn", "for", "if", "inline", "linkname"),
        *("linksection", "or", "packed", "param", "return", "struct", "switch", "task", "true"),
        *("union", "var", "volatile", "while"),
    }
)


class TokenKind(Enum):
    """What a token is; keywords and symbols are told apart by their text.

    STRAY are characters without a meaning; whoever meets one reports it.
    """

    NAME = auto()
    BUILTIN = auto()
    KEYWORD = auto()
    SYMBOL = auto()
    INT = auto()
    FLOAT = auto()
    CHAR = auto()
    STRING = auto()
    STRAY = auto()
    END = auto()


class Token(NamedTuple):
    """One word: its characters `text` from offset `start` up to, not including, `end`.

    No two kinds share a text, since literals keep their quotes and builtins their `@`.
    """

    kind: TokenKind
    text: str
    start: int
    end: int
