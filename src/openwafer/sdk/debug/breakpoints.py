"""Where a run stops: lines of sources, on some PEs, under a condition."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import counted, error
from openwafer.sdk.fabric.stepping import Stepping
from openwafer.sdk.program.program import Program

MOST: Final = 62
"""Breakpoints at a time: each has a bit of its own."""
_STEP_BIT: Final = 1 << 62


class Looks(Protocol):
    """Gives what a condition is of a PE."""

    def holds(self, condition: str, pe: int) -> bool:
        """Whether a condition holds on a PE that has stopped."""


@dataclass
class Breakpoint:
    """A line at which a run stops.

    Attributes:
        number: from 1 on.
        file: name of the source.
        line: of the first statement there; that asked for may lie before it.
        pes: numbers of the PEs that stop.
        is_on_some: these are not all.
        condition: has to hold there; empty for none.
        ignored: how many hits more pass.
        hits: how often PEs have come by, the condition holding.
    """

    number: int
    file: str
    line: int
    places: tuple[int, ...] = field(repr=False)
    pes: NDArray[np.int64] = field(repr=False)
    is_on_some: bool = False
    condition: str = ""
    ignored: int = 0
    hits: int = 0

    def __str__(self) -> str:
        """As it is listed."""
        under = f" if {self.condition}" if self.condition else ""
        where = f" on {counted(self.pes.size, 'PE')}" if self.is_on_some else ""
        return f"{self.number}: {self.file}:{self.line}{where}{under}"


class Breakpoints:
    """The breakpoints of a run; `stepping` is the simulation's."""

    def __init__(self, program: Program, stepping: Stepping) -> None:
        self._stops = stepping
        stepping.places[:] |= _STEP_BIT
        self._by_number: dict[int, Breakpoint] = {}
        self._lines = _lines(program)

    def __iter__(self) -> Iterator[Breakpoint]:
        """In the order of their numbers."""
        return iter(self._by_number.values())

    def add(
        self, file: str, line: int, pes: Sequence[int] | None = None, condition: str = ""
    ) -> Breakpoint:
        """Stop at a line, or at the next one that has code.

        Args:
            file: name of a source, or how its path ends.
            line: from 1 on.
            pes: numbers of the PEs that stop; None for all.
            condition: an expression that has to hold there.

        Raises OpenwaferError for a file or line without code, and for too many.
        """
        name = self._file(file)
        behind = [one for one in sorted(self._lines[name]) if one >= line]
        if not behind:
            raise error(
                "debug-no-code",
                f"{name} has no code from line {line} on; the last line with code is "
                f"{max(self._lines[name])}",
            )
        number = next(n for n in range(1, MOST + 2) if n not in self._by_number)
        if number > MOST:
            raise error("debug-too-many", f"there are {MOST} breakpoints", help="delete one")
        num_pes = self._stops.pes.size
        chosen = np.arange(num_pes) if pes is None else np.array(pes, np.int64)
        places = self._lines[name][behind[0]]
        made = Breakpoint(number, name, behind[0], places, chosen, pes is not None, condition)
        self._by_number[number] = made
        self._set(made, is_on=True)
        return made

    def delete(self, number: int) -> None:
        """Take one away. Raises OpenwaferError where there is none."""
        self._set(self._numbered(number), is_on=False)
        del self._by_number[number]

    def ignore(self, number: int, count: int) -> None:
        """Let the next hits of a breakpoint pass. Raises OpenwaferError where there is none."""
        one = self._numbered(number)
        one.ignored = one.hits + count

    def _numbered(self, number: int) -> Breakpoint:
        if number not in self._by_number:
            known = ", ".join(map(str, self._by_number)) or "none"
            raise error(
                "debug-no-breakpoint", f"there is no breakpoint {number}; there are {known}"
            )
        return self._by_number[number]

    def hit(self, pe: int, place: int, looks: Looks) -> tuple[int, ...]:
        """Numbers of those at which a PE stops at a place; counts them."""
        bits = int(self._stops.pes[pe] & self._stops.places[place]) & ~_STEP_BIT
        return tuple(
            one.number
            for one in self._by_number.values()
            if bits >> (one.number - 1) & 1 and _counts(one, pe, looks)
        )

    @contextmanager
    def each_statement_of(self, pe: int) -> Iterator[None]:
        """Stop at each statement of a PE within it, too."""
        self._stops.pes[pe] |= _STEP_BIT
        try:
            yield
        finally:
            self._stops.pes[pe] &= ~_STEP_BIT

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Stop nowhere within it."""
        kept = self._stops.pes.copy()
        self._stops.pes[:] = 0
        try:
            yield
        finally:
            self._stops.pes[:] = kept

    def _set(self, one: Breakpoint, *, is_on: bool) -> None:
        bit = 1 << (one.number - 1)
        for masks, chosen in (
            (self._stops.pes, one.pes),
            (self._stops.places, np.array(one.places)),
        ):
            masks[chosen] = masks[chosen] | bit if is_on else masks[chosen] & ~bit

    def _file(self, name: str) -> str:
        """The one source that a name means."""
        wanted = PurePath(name).parts
        found = [one for one in self._lines if PurePath(one).parts[-len(wanted) :] == wanted]
        if len(found) != 1:
            known = ", ".join(sorted(found or self._lines))
            told = "several sources are called" if found else "no source with code is called"
            raise error("debug-no-file", f"{told} {name}", help=f"name one of: {known}")
        return found[0]


def _counts(one: Breakpoint, pe: int, looks: Looks) -> bool:
    if one.condition and not looks.holds(one.condition, pe):
        return False
    one.hits += 1
    return one.hits > one.ignored


def _lines(program: Program) -> dict[str, dict[int, tuple[int, ...]]]:
    """By source and line with code, the places there."""
    used = {one.place for frame in program.debug.frames for one in frame.resumes}
    lines: dict[str, dict[int, tuple[int, ...]]] = {}
    for number in sorted(used - {-1}):
        place = program.places[number]
        own = lines.setdefault(place.file, {})
        own[place.line] = (*own.get(place.line, ()), number)
    return lines
