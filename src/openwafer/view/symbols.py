"""Variables of a PE at a cycle, by doing the run again up to there."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.debug import Debugger, Halt
from openwafer.sdk.debug.names import PeLook
from openwafer.sdk.debug.stack import Frame, sites_of
from openwafer.sdk.host.journal import Journal
from openwafer.sdk.program.debug_info import Home, VariableInfo
from openwafer.sdk.program.program import Program
from openwafer.view.shown import Going, Way

NOWHERE: Final = Going()
_SHOWN: Final = (Home.MEMORY, Home.PARAMETER, Home.CONSTANT)


@dataclass(frozen=True)
class Symbol:
    """A variable as CSL has it; bytes where it lies, -1 for nowhere."""

    name: str
    type: str
    text: str
    address: int
    num_bytes: int


@dataclass(frozen=True)
class PeLooked:
    """What a PE holds where the run stands: at the end of a cycle, or before a statement.

    Attributes:
        cycle: the present one; that which was asked for, or the last one of the run.
        told: why the run stands there.
        place: number of the source and line of what the PE's code comes to next; none for no code.
        machine: what its operations, tasks, queues and routes are at, and what PEs wait for.
        frames: places where functions wait, the innermost first, with those of expansions.
        symbols: locals of the innermost one, then globals.
        memory: all of it, as hexadecimal digits.
    """

    cycle: int
    frames: tuple[str, ...]
    symbols: tuple[Symbol, ...]
    memory: str
    told: str = ""
    place: tuple[int, int] | None = None
    machine: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Symbols:
    """One debugger of a run for all pages, forwards and backwards, on one thread of its own."""

    def __init__(self, program: Program, journal: Journal) -> None:
        self._program = program
        self._journal = journal
        self._debugger: Debugger | None = None
        self._page: int | None = None
        self._thread = ThreadPoolExecutor(1, "symbols of the viewer")

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def at(self, pe: tuple[int, int], cycle: int, going: Going = NOWHERE) -> PeLooked:
        """What a PE holds.

        Args:
            pe: column and row.
            cycle: where to begin.
            going: where to go from there.

        Raises OpenwaferError where there is no such PE or source, and for a line without code.
        """
        x, y = pe
        if not (x < self._program.width and y < self._program.height):
            size = f"{self._program.width} by {self._program.height}"
            raise error("view-no-pe", f"there is no PE ({x}, {y}): the program has {size}")
        num_sources = len(self._program.debug.sources)
        if going.line is not None and going.line[0] >= num_sources:
            told = f"there is no source {going.line[0]}: the program has {num_sources}, from 0 on"
            raise error("view-no-source", told)
        number = self._program.number_of(x, y)
        return self._thread.submit(self._at, number, cycle, going).result()

    def _at(self, pe: int, cycle: int, going: Going) -> PeLooked:
        if self._debugger is None:
            self._debugger = Debugger(self._program, self._journal)
        is_moved = self._page not in (None, going.page)
        self._page = going.page
        if going.way is Way.HERE or is_moved or self._debugger.simulator.cycle != cycle:
            self._debugger.run_to_cycle(cycle)
        found = self._looked(self._debugger, pe, _gone(self._debugger, pe, going))
        if going.way is Way.HERE or not is_moved:
            return found
        begin = f"begun at the end of cycle {cycle:,}, as another page had moved the run"
        return replace(found, told=f"{found.told}, {begin}")

    def _looked(self, debugger: Debugger, pe: int, halt: Halt) -> PeLooked:
        look = debugger.look(pe)
        frames = (
            str(site) for frame in debugger.frames(pe) for site in sites_of(debugger.program, frame)
        )
        variables = [*look.locals(), *look.globals(*_SHOWN)]
        state = debugger.simulator.pe_state(pe)
        machine = {
            "operations": state.operations,
            "tasks": state.tasks,
            "queues": state.queues,
            "routes": state.routes,
            "waits of all PEs": tuple(debugger.simulator.waiting()),
        }
        return PeLooked(
            debugger.simulator.cycle,
            tuple(frames),
            tuple(_symbol(look, one) for one in variables),
            look.read(0, WORD_BYTES * MEMORY_WORDS).hex(),
            ": ".join(filter(None, [halt.reason.value, halt.text])),
            self._line_of(debugger.frames(pe)),
            tuple(machine.items()),
        )

    def _line_of(self, frames: Sequence[Frame]) -> tuple[int, int] | None:
        if not frames:
            return None
        place = self._program.places[frames[0].place]
        names = [one.name for one in self._program.debug.sources]
        return (names.index(place.file), place.line) if place.file in names else None


def _gone(debugger: Debugger, pe: int, going: Going) -> Halt:
    """Where the run stands once it has gone a way."""
    match going.way:
        case Way.STEP:
            return debugger.step(pe)
        case Way.STEP_BACK:
            return debugger.step_back(pe)
        case Way.LINE | Way.LINE_BACK if going.line is not None:
            source = debugger.program.debug.sources[going.line[0]].name
            made = debugger.breakpoints.add(source, going.line[1], [pe], going.condition)
            try:
                return debugger.go_on() if going.way is Way.LINE else debugger.go_back()
            finally:
                debugger.breakpoints.delete(made.number)
        case _:
            return debugger.halt


def _symbol(look: PeLook, one: VariableInfo) -> Symbol:
    try:
        value = look.value(one)
    except OpenwaferError:
        return Symbol(one.name, "", "no value here", -1, 0)
    address = -1 if value.address is None else value.address
    kind = look.values.type_of(value).name
    return Symbol(one.name, kind, look.values.text(value), address, len(value.content))
