"""What there is to see of a PE where a run stands, in lines: for the console and for editors."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.debug.disassembly import rows_of
from openwafer.sdk.debug.session import running
from openwafer.sdk.debug.stand import Stand

_WORDS_OF_LINE: Final = 8
_FEW_WORDS: Final = 4 * _WORDS_OF_LINE
_AROUND: Final = 6
"""Lines of code that are shown before and behind those of the present place."""


@dataclass(frozen=True)
class Sight:
    """Where somebody looks: a PE by its number, a function that waits there, 0 the innermost."""

    debugger: Stand
    pe: int
    depth: int = 0


Look: TypeAlias = Callable[[Sight, str], Iterable[str]]
"""Gives lines of what is seen, as the words behind its name ask for."""


def _of_state(name: str, none: str) -> Look:
    """Gives lines of one kind of a PE's state.

    Args:
        name: of the kind, as :class:`PeState` has it.
        none: what is said of a PE that has none of it.
    """

    def look(sight: Sight, rest: str) -> Iterable[str]:
        _nothing_behind(name, rest)
        found: tuple[str, ...] = getattr(sight.debugger.simulator.pe_state(sight.pe), name)
        return found or [none.format(sight.debugger.name_of(sight.pe))]

    return look


def memory(sight: Sight, rest: str) -> Iterator[str]:
    """Words of the PE's memory from a byte address on: ADDRESS [, WORDS]."""
    begin, _, length = rest.partition(",")
    evaluator = sight.debugger.look(sight.pe, sight.depth).evaluator
    address = int(evaluator.number(begin)) if begin.strip() else 0
    num = int(evaluator.number(length)) if length.strip() else _FEW_WORDS
    first, end = address // WORD_BYTES, address // WORD_BYTES + num
    if address < 0 or num < 1 or end > MEMORY_WORDS:
        raise error(
            "debug-no-memory",
            f"{num} words from byte {address:#x} on do not lie in a PE's memory",
            help=f"it has {MEMORY_WORDS} words, bytes 0 to {WORD_BYTES * MEMORY_WORDS - 1:#x}",
        )
    x, y = sight.debugger.program.place_of(sight.pe)
    words = sight.debugger.simulator.read(x, y, first, num).tolist()
    for at in range(0, num, _WORDS_OF_LINE):
        shown = " ".join(f"{word:04x}" for word in words[at : at + _WORDS_OF_LINE])
        yield f"{WORD_BYTES * (first + at):#07x}: {shown}"


def code(sight: Sight, rest: str) -> Iterator[str]:
    """Instructions of the function around its present place, as the compiler's IR has them."""
    _nothing_behind("code", rest)
    debugger = sight.debugger
    frames = debugger.frames(sight.pe)
    if not frames:
        raise error("debug-no-line", f"{debugger.name_of(sight.pe)} runs no code")
    frame = frames[min(sight.depth, len(frames) - 1)]
    image = debugger.program.images[int(debugger.program.images_by_number[sight.pe])]
    rows = rows_of(image, frame.function.name)
    here = [n for n, row in enumerate(rows) if row.place == frame.place] or [0]
    for number in range(max(0, here[0] - _AROUND), min(len(rows), here[-1] + _AROUND + 1)):
        row = rows[number]
        mark = ">" if row.place == frame.place else " "
        place = debugger.program.places[row.place] if row.place >= 0 else None
        where = f"  ; {place.file}:{place.line}" if place is not None else ""
        yield f"{mark}{number:4} {row.text}{where}"


def came_from(sight: Sight, rest: str) -> Iterable[str]:
    """Where wavelets that came to the PE were sent, and their ways: [COLOR [NUMBER]].

    By default those that came last.
    """
    words = rest.split()
    if len(words) > 2 or not all(map(str.isdecimal, words)):
        raise error(
            "debug-usage",
            f"{rest.strip()!r} is no color with, or without, the number of a wavelet",
            help="write: came-from [COLOR [NUMBER]]",
        )
    found = running(sight.debugger).came_from(sight.pe, *map(int, words))
    return found or [f"no wavelet has come to {sight.debugger.name_of(sight.pe)} yet"]


def _nothing_behind(name: str, rest: str) -> None:
    if rest.strip():
        raise error("debug-usage", f"{name} takes no more words: {rest.strip()!r}")


LOOKS: Final[Mapping[str, Look]] = MappingProxyType(
    {
        "routes": _of_state("routes", "{} routes no color"),
        "queues": _of_state("queues", "no queue of {} has a color"),
        "tasks": _of_state("tasks", "{} has no tasks"),
        "operations": _of_state("operations", "no operation of {} is in flight"),
        "memory": memory,
        "code": code,
        "came-from": came_from,
    }
)
"""By the name that a user gives."""
