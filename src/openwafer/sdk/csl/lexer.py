"""From text to tokens."""

import re

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.sdk.csl.tokens import KEYWORDS, Token, TokenKind
from openwafer.source import SourceText, Span

# Longest first: the first alternative that fits is taken.
_SYMBOLS = (
    *("<<=", ">>=", "..."),
    *("+=", "-=", "*=", "/=", "%=", "&=", "|=", "^="),
    *("==", "!=", "<=", ">=", "<<", ">>", "&&", "||", "->", "=>", ".*", ".."),
    *"+-*/%&|^~!<>=()[]{},;:.",
)
# A number takes what is glued to it, and a string that is not closed the rest of its line, so that
# a slip in a literal is one mistake and not many.
_TOKEN = re.compile(
    rf"""(?:[ \t\r\n]+|//[^\n]*)+
    | (?P<NAME>[A-Za-z_]\w*)
    | (?P<COMMENT>/\*)
    | (?P<SYMBOL>{"|".join(re.escape(symbol) for symbol in _SYMBOLS)})
    | (?P<FLOAT>\d[\d_]*(?:\.\d\w*(?:(?<=[eE])[+-]?\w*)?|[eE][+-]?\w*|\.(?![\w.*{{])))
    | (?P<INT>\d\w*)
    | (?P<STRING>"(?:[^"\\\n]|\\[^\n])*"?)
    | (?P<CHAR>'(?:[^'\\\n]|\\[^\n])*'?)
    | (?P<BUILTIN>@[A-Za-z_]\w*)
    | (?P<STRAY>[^\x00-\x7f]+|.)
    """,
    re.VERBOSE | re.ASCII,
)
_KINDS = {kind.name: kind for kind in TokenKind}


def tokenize(source: SourceText) -> tuple[list[Token], list[Diagnostic]]:
    """Tokens of `source`, an END last, and a report of each block comment."""
    tokens: list[Token] = []
    diagnostics: list[Diagnostic] = []
    text, offset, match = source.text, 0, _TOKEN.match
    while found := match(text, offset):
        start, offset = found.span()
        group = found.lastgroup
        if group == "COMMENT":
            close = text.find("*/", offset)
            offset = len(text) if close < 0 else close + 2
            diagnostics.append(_block_comment(Span(source, start, offset)))
        elif group is not None:
            word = found.group()
            kind = TokenKind.KEYWORD if word in KEYWORDS else _KINDS[group]
            tokens.append(Token(kind, word, start, offset))
    tokens.append(Token(TokenKind.END, "", len(text), len(text)))
    return tokens, diagnostics


def _block_comment(span: Span) -> Diagnostic:
    opening = Span(span.source, span.start, span.start + len("/*"))
    return Diagnostic(
        Severity.ERROR,
        "csl-block-comment",
        "CSL has no block comments",
        opening,
        help="start each line of the comment with //",
    )
