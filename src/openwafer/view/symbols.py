"""Variables of a PE at a cycle, by doing the run again up to there."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.debug import Debugger
from openwafer.sdk.debug.names import PeLook
from openwafer.sdk.debug.stack import sites_of
from openwafer.sdk.host.journal import Journal
from openwafer.sdk.program.debug_info import Home, VariableInfo
from openwafer.sdk.program.program import Program

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
class PeState:
    """What a PE holds at the end of a cycle.

    Attributes:
        cycle: the one that was asked for, or the last one of the run.
        frames: places where functions wait, the innermost first, with those of expansions.
        symbols: locals of the innermost one, then globals.
        memory: all of it, as hexadecimal digits.
    """

    cycle: int
    frames: tuple[str, ...]
    symbols: tuple[Symbol, ...]
    memory: str


class Symbols:
    """One debugger of a run, which goes forwards and backwards; all on one thread of its own."""

    def __init__(self, program: Program, journal: Journal) -> None:
        self._program = program
        self._journal = journal
        self._debugger: Debugger | None = None
        self._thread = ThreadPoolExecutor(1, "symbols of the viewer")

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def at(self, x: int, y: int, cycle: int) -> PeState:
        """What a PE holds. Raises OpenwaferError where there is no such PE."""
        if not (x < self._program.width and y < self._program.height):
            size = f"{self._program.width} by {self._program.height}"
            raise error("view-no-pe", f"there is no PE ({x}, {y}): the program has {size}")
        return self._thread.submit(self._at, x, y, cycle).result()

    def _at(self, x: int, y: int, cycle: int) -> PeState:
        if self._debugger is None:
            self._debugger = Debugger(self._program, self._journal)
        debugger, pe = self._debugger, self._program.number_of(x, y)
        debugger.run_to_cycle(cycle)
        look = debugger.look(pe)
        frames = (
            str(site) for frame in debugger.frames(pe) for site in sites_of(debugger.program, frame)
        )
        variables = [*look.locals(), *look.globals(*_SHOWN)]
        return PeState(
            debugger.simulator.cycle,
            tuple(frames),
            tuple(_symbol(look, one) for one in variables),
            look.read(0, WORD_BYTES * MEMORY_WORDS).hex(),
        )


def _symbol(look: PeLook, one: VariableInfo) -> Symbol:
    try:
        value = look.value(one)
    except OpenwaferError:
        return Symbol(one.name, "", "no value here", -1, 0)
    address = -1 if value.address is None else value.address
    kind = look.values.type_of(value).name
    return Symbol(one.name, kind, look.values.text(value), address, len(value.content))
