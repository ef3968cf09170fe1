"""Errors as data: what is wrong, where, both values and the remedy, rendered once at the edge.

A rendered diagnostic looks like this::

    error[config-unknown-key]: no key 'stpes' here
     --> run.yaml:3:1
      |
    3 | stpes: 20
      | ^^^^^
      = help: did you mean 'steps'?
"""

import difflib
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from openwafer.source import Position, Span

TAB_CELLS = 4
HEAD_LINES = 4
TAIL_LINES = 2
LINE_CHARACTERS = 240
"""Of a line longer than that, so much is shown around what it is about."""
WORD_CHARACTERS = 1000
"""The middle of a longer word in a message, such as a quoted literal, is left out."""


class Severity(StrEnum):
    """How bad it is; only an error stops the work."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Diagnostic:
    """One finding.

    `code` is a stable kebab-case word to search for, `message` says what is wrong with both values,
    `notes` add facts, `help` names the remedy.
    """

    severity: Severity
    code: str
    message: str
    span: Span | None = None
    notes: tuple[str, ...] = ()
    help: str = ""


class OpenwaferError(Exception):
    """Raised with one or more diagnostics; its text is their rendering without color."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        if not diagnostics:
            raise ValueError("an OpenwaferError needs at least one diagnostic")
        super().__init__(*diagnostics)
        self.diagnostics = diagnostics

    def __str__(self) -> str:
        return "\n\n".join(render(diagnostic) for diagnostic in self.diagnostics)


def error(
    code: str,
    message: str,
    *,
    notes: tuple[str, ...] = (),
    help: str = "",
    span: Span | None = None,
) -> OpenwaferError:
    """Build the exception for one diagnostic of severity error."""
    return OpenwaferError(Diagnostic(Severity.ERROR, code, message, span, notes, help))


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return a help text that names the option closest to `word`, or else all of them."""
    known = list(options)
    return suggestion(word, known) or (f"known here: {', '.join(known)}" if known else "")


def suggestion(word: str, options: Iterable[str]) -> str:
    """Return a help text that names the option closest to `word`; empty where none is close."""
    known = list(options)
    close = [option for option in known if option.lower() == word.lower()]
    close = close or difflib.get_close_matches(word, known, n=1)
    return f"did you mean '{close[0]}'?" if close else ""


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts: '1 word', '2 words'."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def wants_color(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user wants color; see https://no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


_COLORS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.NOTE: "36"}


def render(diagnostic: Diagnostic, *, color: bool = False) -> str:
    """Render for a terminal; several lines, no newline at the end."""
    hue = f"1;{_COLORS[diagnostic.severity]}" if color else ""
    title = _paint(f"{diagnostic.severity}[{diagnostic.code}]", hue)
    lines = [f"{title}: {_paint(_shortened(diagnostic.message), '1' if color else '')}"]
    gutter = 1
    if diagnostic.span is not None:
        gutter = len(str(_last(diagnostic.span).line))
        lines += _excerpt(diagnostic.span, gutter, hue)
    remarks = [f"note: {_shortened(note)}" for note in diagnostic.notes]
    remarks += [f"help: {_shortened(diagnostic.help)}"] if diagnostic.help else []
    continuation = " " * (gutter + 3)
    lines += [f"{' ' * gutter} = {r}".replace("\n", f"\n{continuation}") for r in remarks]
    return "\n".join(lines)


def tell(diagnostics: Iterable[Diagnostic]) -> None:
    """Write diagnostics to the standard error, in color where its user wants that."""
    color = wants_color(sys.stderr)
    sys.stderr.writelines(f"{render(diagnostic, color=color)}\n" for diagnostic in diagnostics)


def _last(span: Span) -> Position:
    """Position of the last character inside, so that an end behind a newline adds no line."""
    return span.source.position(max(span.start, span.end - 1))


def _excerpt(span: Span, gutter: int, hue: str) -> Iterator[str]:
    source = span.source
    first, last = source.position(span.start), _last(span)
    margin = " " * gutter
    yield f"{margin}--> {source.name}:{first.line}:{first.column}"
    yield f"{margin} |"
    elided = range(first.line + HEAD_LINES, last.line - TAIL_LINES + 1)
    for number in range(first.line, last.line + 1):
        if number in elided and len(elided) > 1:
            if number == elided.start:
                yield f"{margin} | ... {len(elided)} lines"
            continue
        text = source.line(number)
        start = first.column - 1 if number == first.line else len(text) - len(text.lstrip())
        end = last.column if number == last.line else len(text)
        text, start, end = _window(text, start, end)
        yield f"{number:>{gutter}} | {text.expandtabs(TAB_CELLS)}".rstrip()
        if start < end:
            carets = "^" * max(1, _cells(text[:end]) - _cells(text[:start]))
            yield f"{margin} | {' ' * _cells(text[:start])}{_paint(carets, hue)}"


def _window(text: str, start: int, end: int) -> tuple[str, int, int]:
    """A line cut to what lies around its marked part, and where that part is then."""
    if len(text) <= LINE_CHARACTERS:
        return text, start, end
    first = max(0, min(start - LINE_CHARACTERS // 2, len(text) - LINE_CHARACTERS))
    last = first + LINE_CHARACTERS
    head, tail = "..." if first else "", "..." if last < len(text) else ""
    moved = len(head) - first
    return head + text[first:last] + tail, start + moved, min(end, last) + moved


def _shortened(text: str) -> str:
    """A text whose longest words have lost their middle."""
    half = WORD_CHARACTERS // 2
    return re.sub(rf"(\S{{{half}}})\S+(\S{{{half}}})", r"\1...\2", text)


def _cells(text: str) -> int:
    """Width in terminal cells: wide East Asian characters take two, combining marks none."""
    expanded = text.expandtabs(TAB_CELLS)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in expanded)
    return len(expanded) + wide - sum(unicodedata.combining(char) > 0 for char in expanded)


def _paint(text: str, hue: str) -> str:
    return f"\x1b[{hue}m{text}\x1b[0m" if hue else text
