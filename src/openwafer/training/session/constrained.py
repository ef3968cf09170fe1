"""Constrained decoding: what a text is asked at each of its tokens."""

import ast
import codeop
import keyword
import re
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

Constraint = Callable[[str], bool]
"""Whether a text, which may end within a word, can be the beginning of one that is wanted."""

LONGEST_LINE: Final = 100
"""Characters."""
JOINTS: Final = ("\\\n", "\\\r\n")
# By the last character of a text: what may follow it and makes another token of it.
GROWING: Final = {
    "!": ("=",),
    ".": ("0", ".", ".."),
    "-": (">", "0"),
    "+": ("0",),
    ":": ("=",),
    "=": ("=",),
    "*": ("*",),
    "\\": ("\n", "\\"),
}
# Comments and strings; a group has a name where a string is open.
STRINGS: Final = re.compile(
    r"""
    \#[^\n]*
    | ('{3}|"{3}) (?:\\.|[^\\])*? (?:\1|(?P<long>\\?\Z))
    | (['"]) (?:\\.|[^\\\n])*? (?:\3|(?P<short>\\?\Z))
    """,
    re.VERBOSE | re.DOTALL,
)
STRING_PREFIXES: Final = frozenset({"r", "u", "b", "f", "br", "rb", "fr", "rf"})


def can_become_python(text: str) -> bool:
    """Whether Python reads a text with more behind it, as one writes it.

    In a string anything is read, and in brackets line ends mean nothing, so that a text that leaves
    one open would hardly be a program. So a string ends in its line, a line in brackets is indented
    more than the one that opens them, or begins by closing one, and no line has more than 100
    characters. All this is asked of the last line alone.
    """
    whole = text[: text.rfind("\n") + 1]
    if len(text) - len(whole) > LONGEST_LINE:
        return False
    if whole and not whole.endswith(JOINTS) and not _is_begun(whole):
        return False
    for string in STRINGS.finditer(text):
        if string.lastgroup is not None:
            # What an open one says is not read yet, and what comes before it is not refused.
            return "\n" not in string.group() and _is_begun(f'{text[: string.start()]}""\\')
    if not any(_is_begun(f"{text}{more}\\") for more in ("", *_continuations(text))):
        return False
    return _is_indented_in_brackets(STRINGS.sub('""', text))


def whole_program(text: str) -> str:
    """The longest beginning of a text, in whole lines, that is a Python program."""
    # What is under way is no line yet.
    lines = text[: text.rfind("\n") + 1].splitlines(keepends=True)
    while lines and not _is_program("".join(lines)):
        lines.pop()
    return "".join(lines)


def num_statements(program: str) -> int:
    """Statements of a program, without those that are strings, such as docstrings."""
    return sum(
        isinstance(node, ast.stmt)
        and not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.JoinedStr)
        )
        for node in ast.walk(ast.parse(program))
    )


def _continuations(text: str) -> Iterator[str]:
    """What would make another token of the one that a text ends with."""
    yield from GROWING.get(text[-1:], ())
    name = _trailing_name(text)
    if name:
        yield from ("0", ".") if name[0].isdigit() else ("0",)
        yield from (word.removeprefix(name) for word in keyword.kwlist if word.startswith(name))
    if name.lower() in STRING_PREFIXES:
        yield "'"


def _trailing_name(text: str) -> str:
    start = len(text)
    while start and (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    return text[start:]


# The lines before the one under way are asked about at each token of it.
@lru_cache(maxsize=8)
def _is_begun(text: str) -> bool:
    """Whether Python's parser reads a text to its end."""
    try:
        with warnings.catch_warnings():
            # Such as one for an escape that strings do not know: it is no mistake.
            warnings.simplefilter("ignore")
            codeop.compile_command(text, symbol="exec")
    except SyntaxError as cause:
        # The function around may give it a value in a later line.
        return str(cause.msg).startswith("no binding for nonlocal")
    # Null characters, numbers too large, and brackets too deep.
    except (ValueError, OverflowError, MemoryError, RecursionError):
        return False
    return True


def _is_indented_in_brackets(code: str) -> bool:
    """Whether the last line of a code is no line in brackets, or is indented as one."""
    opened: list[int] = []
    for bracket in re.finditer(r"[()\[\]{}]", code):
        if bracket.group() in "([{":
            opened.append(bracket.start())
        elif opened:
            opened.pop()
    start = code.rfind("\n") + 1
    content = code[start:].lstrip()
    if not content or content[0] in ")]}" or not opened or opened[0] >= start:
        return True
    opening_line = code[code.rfind("\n", 0, opened[0]) + 1 :]
    return _indentation(code[start:]) > _indentation(opening_line)


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_program(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
