"""Where a run stops: at lines, words, wavelets and cycles, on some PEs, under a condition."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import counted, error
from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.debug.values import Value
from openwafer.sdk.fabric.events import Scope
from openwafer.sdk.fabric.stepping import Change, Stepping, Word
from openwafer.sdk.fabric.words import COLORS
from openwafer.sdk.program.program import Program

MOST: Final = 62
"""Breakpoints at a time: each has a bit of its own."""
MOST_WORDS: Final = 4096
"""Words that a breakpoint watches at most."""
_STEP_BIT: Final = 1 << 62


class Looks(Protocol):
    """Gives what expressions are of a PE."""

    def holds(self, condition: str, pe: int) -> bool:
        """Whether a condition holds on a PE that has stopped."""

    def told(self, message: str, pe: int) -> None:
        """Tell a message of a PE, with the values of what it has in braces."""


class Arrival(NamedTuple):
    """A wavelet has come into a queue of a PE, or, of color -1, a mistake was found there."""

    pe: int
    color: int


FINDING: Final = -1
"""In place of a color."""


@dataclass(frozen=True)
class Seen:
    """What may be a hit.

    Attributes:
        stopped: by number of each PE that has come to a statement, its place.
        changes: of words that are watched.
        arrivals: of wavelets, and findings.
        cycle: that has ended; -1 for none.
        host: number of the operation of the host that has changed the words.
    """

    stopped: Mapping[int, int] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    cycle: int = -1
    host: int | None = None


@dataclass
class Breakpoint:
    """Where a run stops, or tells something and goes on.

    Attributes:
        number: from 1 on.
        name: of it, as it is listed.
        file: of a line or a function: name of the source.
        line: of the first statement there; that asked for may lie before it.
        pes: numbers of the PEs that stop.
        is_on_some: these are not all.
        words: that are watched, of `value`.
        colors: those whose wavelets it waits for; :data:`FINDING` for mistakes that are found.
        cycle: at whose end it is; -1 for none.
        condition: has to hold there; empty for none.
        log: message that is told instead of a stop; empty for a stop.
        ignored: how many hits more pass.
        hits: how often PEs have come by, the condition holding.
    """

    number: int
    name: str
    file: str = ""
    line: int = 0
    places: tuple[int, ...] = field(default=(), repr=False)
    pes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    is_on_some: bool = False
    words: tuple[Word, ...] = field(default=(), repr=False)
    value: Value | None = field(default=None, repr=False)
    colors: tuple[int, ...] = ()
    cycle: int = -1
    condition: str = ""
    log: str = ""
    ignored: int = 0
    hits: int = 0

    def __str__(self) -> str:
        """As it is listed."""
        under = f" if {self.condition}" if self.condition else ""
        where = f" on {counted(self.pes.size, 'PE')}" if self.is_on_some else ""
        return f"{self.number}: {self.name}{where}{under}"

    def hit_by(self, seen: Seen) -> list[int]:
        """PEs at which it is hit; PE 0 for a cycle."""
        places, own = frozenset(self.places), frozenset(self.pes.tolist())
        found = [pe for pe, place in seen.stopped.items() if pe in own and place in places]
        found += [one.word.pe for one in seen.changes if one.word in self.words]
        arrived = (one.pe for one in seen.arrivals if one.color in self.colors and one.pe in own)
        found += [*arrived, *([0] if seen.cycle == self.cycle >= 0 else [])]
        return list(dict.fromkeys(found))


class Breakpoints:
    """The breakpoints of a run; `stepping` is the simulation's."""

    def __init__(self, program: Program, stepping: Stepping) -> None:
        self._program = program
        self._stops = stepping
        stepping.places[:] |= _STEP_BIT
        self._by_number: dict[int, Breakpoint] = {}
        self._lines = _lines(program)

    def __iter__(self) -> Iterator[Breakpoint]:
        """In the order of their numbers."""
        return iter(self._by_number.values())

    def line_with_code(self, file: str, line: int) -> tuple[str, int]:
        """A source, by its name or how its path ends, and the first line with code from one on.

        Raises OpenwaferError where there is none.
        """
        name = self._file(file)
        behind = [one for one in sorted(self._lines[name]) if one >= line]
        if not behind:
            raise error(
                "debug-no-code",
                f"{name} has no code from line {line} on; the last line with code is "
                f"{max(self._lines[name])}",
            )
        return name, behind[0]

    def add(
        self,
        file: str,
        line: int,
        pes: Sequence[int] | None = None,
        condition: str = "",
        log: str = "",
    ) -> Breakpoint:
        """Stop at a line, or at the next one that has code.

        Args:
            file: name of a source, or how its path ends.
            line: from 1 on.
            pes: numbers of the PEs that stop; None for all.
            condition: an expression that has to hold there.
            log: message to tell instead; ``{x}`` in it is the value of x.

        Raises OpenwaferError for a file or line without code, and for too many.
        """
        name, first = self.line_with_code(file, line)
        made = self._new(f"{name}:{first}", pes, condition, log)
        made.file, made.line, made.places = name, first, self._lines[name][first]
        return self._placed(made)

    def add_function(
        self, name: str, pes: Sequence[int] | None = None, condition: str = "", log: str = ""
    ) -> Breakpoint:
        """Stop where a task or a function begins. Raises OpenwaferError where none is called so."""
        found = _begins(self._program, name)
        if not found:
            known = ", ".join(sorted({one.function for one in self._program.debug.frames}))
            raise error(
                "debug-no-function",
                f"no function with code of its own is called {name!r}",
                help=f"one that is inlined has lines alone; the others: {known}",
            )
        place = self._program.places[found[0]]
        made = self._new(f"{name}, {place.file}:{place.line}", pes, condition, log)
        made.file, made.line, made.places = place.file, place.line, found
        return self._placed(made)

    def add_value(self, name: str, pe: int, value: Value, condition: str = "") -> Breakpoint:
        """Stop where a value in a PE's memory is changed, whoever does it.

        Raises OpenwaferError for one that lies nowhere, or is too large.
        """
        return self._placed(self._of_value(name, pe, value, condition))

    def only_value(self, name: str, pe: int, value: Value) -> AbstractContextManager[None]:
        """Stop nowhere within it but there. Raises OpenwaferError as :meth:`add_value`."""
        return self.only(self._of_value(name, pe, value, ""))

    def _of_value(self, name: str, pe: int, value: Value, condition: str) -> Breakpoint:
        words = words_of(name, pe, value)
        made = self._new(f"{name} changes", [pe], condition, "")
        made.words, made.value = words, value
        return made

    def add_arrivals(
        self, color: int, pes: Sequence[int] | None = None, condition: str = ""
    ) -> Breakpoint:
        """Stop where a wavelet of a color comes into a queue, or :data:`FINDING` is found.

        Raises OpenwaferError for no color.
        """
        if not FINDING <= color < COLORS:
            raise error("debug-no-color", f"there is no color {color}", help="colors are 0 to 23")
        name = "findings" if color == FINDING else f"arrival on color {color}"
        made = self._new(name, pes, condition, "")
        made.colors = (color,)
        return self._placed(made)

    def add_cycle(self, cycle: int) -> Breakpoint:
        """Stop at the end of a cycle."""
        made = self._new(f"cycle {cycle}", [], "", "")
        made.cycle = cycle
        return self._placed(made)

    def _new(self, name: str, pes: Sequence[int] | None, condition: str, log: str) -> Breakpoint:
        number = next(n for n in range(1, MOST + 2) if n not in self._by_number)
        if number > MOST:
            raise error("debug-too-many", f"there are {MOST} breakpoints", help="delete one")
        chosen = np.arange(self._stops.pes.size) if pes is None else np.array(pes, np.int64)
        is_on_some = pes is not None and bool(pes)
        return Breakpoint(
            number, name, pes=chosen, is_on_some=is_on_some, condition=condition, log=log
        )

    def _placed(self, made: Breakpoint) -> Breakpoint:
        self._by_number[made.number] = made
        self._arm()
        return made

    def delete(self, number: int) -> None:
        """Take one away. Raises OpenwaferError where there is none."""
        self._numbered(number)
        del self._by_number[number]
        self._arm()

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

    def hit(self, seen: Seen, looks: Looks) -> dict[int, tuple[int, ...]]:
        """By PE, numbers of those that stop the run there; counts them, and tells messages."""
        hits: dict[int, tuple[int, ...]] = {}
        for one in self._by_number.values():
            for pe in one.hit_by(seen):
                if _counts(one, pe, looks):
                    if one.log:
                        looks.told(one.log, pe)
                    else:
                        hits[pe] = (*hits.get(pe, ()), one.number)
        return hits

    @contextmanager
    def each_statement_of(self, pe: int) -> Iterator[None]:
        """Stop at each statement of a PE within it, too."""
        self._stops.pes[pe] |= _STEP_BIT
        try:
            yield
        finally:
            self._stops.pes[pe] &= ~_STEP_BIT

    @contextmanager
    def only(self, *chosen: Breakpoint) -> Iterator[None]:
        """Stop nowhere within it but at some breakpoints."""
        kept, self._by_number = self._by_number, {one.number: one for one in chosen}
        self._arm()
        try:
            yield
        finally:
            self._by_number = kept
            self._arm()

    def _arm(self) -> None:
        """Let the machine stop where there are breakpoints."""
        masks, places = self._stops.pes, self._stops.places
        masks &= _STEP_BIT
        places &= _STEP_BIT
        for one in self._by_number.values():
            if one.places:
                masks[one.pes] |= 1 << (one.number - 1)
                places[list(one.places)] |= 1 << (one.number - 1)
        words = (word for one in self._by_number.values() for word in one.words)
        self._stops.watch(list(dict.fromkeys(words)))
        self._stops.listen(self._scope())

    def _scope(self) -> Scope | None:
        """What of the machine's events is heard of."""
        listening = [one for one in self._by_number.values() if one.colors]
        if not listening:
            return None
        x, y = np.divmod(np.concatenate([one.pes for one in listening]), self._program.height)
        left, top = int(x.min()), int(y.min())
        rectangle = left, top, int(x.max()) - left + 1, int(y.max()) - top + 1
        colors = {color for one in listening for color in one.colors if color != FINDING}
        return Scope(rectangle, colors=tuple(colors))

    def _file(self, name: str) -> str:
        """The one source that a name means."""
        wanted = PurePath(name).parts
        found = [one for one in self._lines if PurePath(one).parts[-len(wanted) :] == wanted]
        if len(found) != 1:
            known = ", ".join(sorted(found or self._lines))
            told = "several sources are called" if found else "no source with code is called"
            raise error("debug-no-file", f"{told} {name}", help=f"name one of: {known}")
        return found[0]


def words_of(name: str, pe: int, value: Value) -> tuple[Word, ...]:
    """The words of a PE's memory that a value lies in.

    Raises OpenwaferError where it lies nowhere, or is too large to be watched.
    """
    if value.address is None or not value.content:
        raise error(
            "debug-no-address",
            f"{name} lies nowhere in the PE's memory, so nothing changes it",
            help="name a variable of the file, or an element or a field of one",
        )
    first = value.address // WORD_BYTES
    num = -(-(value.address + len(value.content)) // WORD_BYTES) - first
    if num > MOST_WORDS:
        raise error(
            "debug-too-large",
            f"{name} has {num} words, and {MOST_WORDS} are watched at most",
            help="name an element of it",
        )
    return tuple(Word(pe, first + k) for k in range(num))


def _begins(program: Program, name: str) -> tuple[int, ...]:
    """The places at which functions of a name begin, those of their first line."""
    found: list[int] = []
    for frame in program.debug.frames:
        if frame.function == name or frame.function.rpartition(".")[2] == name:
            places = [one.place for one in frame.resumes if one.place >= 0]
            lines = {place: program.places[place].line for place in places}
            found += [place for place in places if lines[place] == min(lines.values())]
    return tuple(dict.fromkeys(found))


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
