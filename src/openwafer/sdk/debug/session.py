"""A run that is stopped, looked at and taken back: its journal, done again by stepped code.

The run goes on in a greenlet, which gives control back wherever it stops. To go back, the machine
becomes what it was at a snapshot before, and goes forward from there; where it then stands follows
from how many statements a PE has begun.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias

from greenlet import GreenletExit, greenlet

from openwafer import json_files
from openwafer.sdk.codegen.native import NativeCode
from openwafer.sdk.debug.breakpoints import Breakpoints
from openwafer.sdk.debug.names import PeLook
from openwafer.sdk.debug.stack import Frame, frames_of
from openwafer.sdk.fabric import Standing
from openwafer.sdk.host.checks import Warnings
from openwafer.sdk.host.journal import Journal
from openwafer.sdk.host.operations import Interpreter
from openwafer.sdk.host.pe_code import Form
from openwafer.sdk.host.replay import redo
from openwafer.sdk.host.symbols import HostSymbols
from openwafer.sdk.program.debug_info import FrameTable
from openwafer.sdk.program.program import Program, with_frames

SNAPSHOT_SECONDS: Final = 0.1
"""How long the run goes on between two snapshots, as it was the first time."""


class Reason(Enum):
    """Why a run stands still."""

    START = "at the start"
    BREAKPOINT = "at a breakpoint"
    STEP = "behind a step"
    CYCLE = "at a cycle"
    END = "at the end"
    FAILED = "failed"


@dataclass(frozen=True)
class Halt:
    """Where a run stands.

    Attributes:
        cycle: the present one.
        pe: number of the PE whose code has stopped; None where none has.
        place: of the statement that comes next there.
        statement: how many it has begun.
        breakpoints: numbers of those that it, and others, have come to.
        others: numbers of PEs that have come to a breakpoint in the same cycle.
        text: of the error that ended the run.
    """

    reason: Reason
    cycle: int
    pe: int | None = None
    place: int = -1
    statement: int = 0
    breakpoints: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class _Kept:
    """A snapshot: of which operation it is, and where that stood."""

    cycle: int
    operation: int
    standing: Standing


Decide: TypeAlias = Callable[[dict[int, int]], Halt | None]
"""Says of the places of PEs that have stopped whether the run stands still; None lets it go on."""


def _never(_stopped: dict[int, int]) -> Halt | None:
    """Stand still nowhere."""
    return None


class Debugger:
    """A run of a program, from its journal.

    Args:
        program: that the run was of.
        journal: of the run.
        spacing: cycles up to the first snapshot; those up to the others follow from how long they
            take.
        most_snapshots: when there are more, every second one is dropped.

    Attributes:
        breakpoints: where the run stops.
        halt: where it stands now.

    Raises OpenwaferError for the journal of another program.
    """

    def __init__(
        self,
        program: Program,
        journal: Journal,
        *,
        spacing: int = 10_000,
        most_snapshots: int = 64,
    ) -> None:
        journal.require_program(program)
        self._journal = journal
        self.simulator, self._code = journal.rules.machine_of(program, 1, form=Form.STEPPED)
        native: NativeCode = self._code.alive
        table = json_files.decode(FrameTable, native.frames)
        self.program = with_frames(program, table)
        self.breakpoints = Breakpoints(self.program, self.simulator.stepping)
        self.halt = Halt(Reason.START, 0)
        self._interpreter = Interpreter(
            HostSymbols(program), self.simulator, Warnings(), journal.rules
        )
        self._hub = greenlet.getcurrent()
        self._operation = 0
        self._decide: Decide = _never
        self._spacing = spacing
        self._most_snapshots = most_snapshots
        self._kept = [_Kept(0, 0, self.simulator.standing())]
        self._looked_at = time.perf_counter()
        self.simulator.when_stopped(self._stopped)
        self._run = greenlet(self._runs)
        self._keep_later()

    # What the run does.

    def _runs(self, first: int = 0, standing: Standing | None = None) -> Halt:
        """Do the operations of the run from one on; gives where it ends."""
        self._operation = first
        entries = self._journal.entries
        carry_out = self._interpreter.carry_out
        for _ in redo(self._journal, self.simulator, carry_out, first, standing):
            failure = entries[self._operation].failure
            if failure is not None:
                self._hub.switch(Halt(Reason.FAILED, self.simulator.cycle, text=failure))
            self._operation += 1
        return Halt(Reason.END, self.simulator.cycle)

    def _stopped(self) -> None:
        """Ask of all PEs that have stopped whether the run stands still."""
        halt = self._decide(self.simulator.stepping.stopped())
        if halt is not None:
            self._hub.switch(halt)

    def _keep_later(self) -> None:
        """Ask for a snapshot some cycles on, as many as take SNAPSHOT_SECONDS by what was seen."""
        self.simulator.look_at(self.simulator.cycle + self._spacing, self._keep)

    def _keep(self) -> None:
        now = time.perf_counter()
        seconds = now - self._looked_at
        factor = min(8.0, max(0.125, SNAPSHOT_SECONDS / max(seconds, 1e-6)))
        self._spacing = max(1, int(self._spacing * factor))
        if self.simulator.cycle > self._kept[-1].cycle:
            standing = self.simulator.standing()
            self._kept.append(_Kept(self.simulator.cycle, self._operation, standing))
        if len(self._kept) > self._most_snapshots:
            self._kept[1:-1:2] = []
            self._spacing *= 2
        self._looked_at = time.perf_counter()
        self._keep_later()

    @property
    def num_snapshots(self) -> int:
        """How many there are, that of the start among them."""
        return len(self._kept)

    @property
    def snapshot_bytes(self) -> int:
        """How much memory the snapshots take."""
        return sum(one.standing.moment.machine.num_bytes for one in self._kept)

    # Forwards.

    def _go_on(self, decide: Decide) -> Halt:
        """Let the run go on until it is decided that it stands still, or to its end."""
        if self._run.dead:
            return self.halt
        self._decide = decide
        self._looked_at = time.perf_counter()
        try:
            self.halt = self._run.switch()
        except KeyboardInterrupt:
            self._go_back(self._kept_before(self.simulator.cycle)[0])
            raise
        return self.halt

    def _at(self, reason: Reason, pe: int, place: int, numbers: Sequence[int] = ()) -> Halt:
        statement = self.simulator.stepping.statements(pe)
        return Halt(reason, self.simulator.cycle, pe, place, statement, tuple(numbers))

    def _at_breakpoint(self, stopped: dict[int, int]) -> Halt | None:
        """The halt of the first PE that is at a breakpoint, with those of all."""
        hits = {pe: self.breakpoints.hit(pe, place, self) for pe, place in stopped.items()}
        pes = [pe for pe, numbers in hits.items() if numbers]
        if not pes:
            return None
        numbers = sorted({number for one in hits.values() for number in one})
        first = self._at(Reason.BREAKPOINT, pes[0], stopped[pes[0]], numbers)
        return replace(first, others=tuple(pes[1:]))

    def go_on(self) -> Halt:
        """Run until a breakpoint, or to the end."""
        return self._go_on(self._at_breakpoint)

    def run_to_cycle(self, cycle: int) -> Halt:
        """Run to the end of a cycle, or to a breakpoint before; or go back to a cycle of the past.

        A run that ends before stops there.
        """
        decide: Decide = self._at_breakpoint
        if cycle < self.simulator.cycle:
            self._go_back(self._kept_before(cycle)[0])
            decide = _never
        self._stand_at(cycle)
        return self._go_on(decide)

    def _stand_at(self, cycle: int) -> None:
        """Let the run stand still at the end of a cycle."""
        self.simulator.look_at(cycle, lambda: self._hub.switch(Halt(Reason.CYCLE, cycle)))

    def step(self, pe: int, most_frames: int | None = None) -> Halt:
        """Run to the PE's next statement, on another line or in another function.

        Args:
            pe: its number; other PEs go on as far as time does.
            most_frames: statements of functions that are called more deeply are none; None for any.
        """
        before = self._line(self.frames(pe)) if self.halt.pe == pe else None

        def decide(stopped: dict[int, int]) -> Halt | None:
            at_breakpoint = self._at_breakpoint(stopped)
            if at_breakpoint is not None or pe not in stopped:
                return at_breakpoint
            frames = self.frames(pe)
            is_deep = most_frames is not None and len(frames) > most_frames
            if is_deep or self._line(frames) == before:
                return None
            return self._at(Reason.STEP, pe, stopped[pe])

        with self.breakpoints.each_statement_of(pe):
            return self._go_on(decide)

    def _line(self, frames: Sequence[Frame]) -> tuple[object, ...]:
        """What is the same while a PE's code stays in one line of one call."""
        if not frames:
            return ()
        place = self.program.places[frames[0].place]
        return len(frames), frames[0].function.name, place.file, place.line, place.call

    # Backwards.

    def _go_back(self, kept: _Kept) -> None:
        """Make the run what it was at a snapshot."""
        if self._run:
            self._run.throw(GreenletExit)
        self.halt = Halt(Reason.CYCLE if kept.cycle else Reason.START, kept.cycle)
        self._run = greenlet(lambda: self._runs(kept.operation, kept.standing))
        self.simulator.look_no_more()
        self.simulator.restore(kept.standing.moment)
        self._keep_later()

    def _kept_before(self, cycle: int) -> list[_Kept]:
        """Snapshots that are not behind a cycle, the last one first."""
        return [one for one in reversed(self._kept) if one.cycle <= cycle]

    def _run_to_statement(self, pe: int, statement: int) -> Halt:
        """Run to where a PE has begun so many statements, past all breakpoints."""
        stepping = self.simulator.stepping
        stepping.stop_before(pe, statement)

        def decide(stopped: dict[int, int]) -> Halt | None:
            is_there = pe in stopped and stepping.statements(pe) == statement
            return self._at(Reason.STEP, pe, stopped[pe]) if is_there else None

        with self.breakpoints.silent():
            halt = self._go_on(decide)
        stepping.stop_before(-1, 0)
        return halt

    def step_back(self, pe: int) -> Halt:
        """Go back to the statement that the PE has begun last, or to the start."""
        target = self.simulator.stepping.statements(pe) - 1
        for kept in self._kept_before(self.halt.cycle):
            self._go_back(kept)
            if self.simulator.stepping.statements(pe) <= target:
                return self._run_to_statement(pe, target)
        return self.halt

    def go_back(self) -> Halt:
        """Go back to the last breakpoint before, or to the start."""
        here, counts = self.halt, [one.hits for one in self.breakpoints]
        for kept in self._kept_before(here.cycle):
            self._go_back(kept)
            found = self._last_hit_before(here)
            self._go_back(kept)
            if found is not None and found.pe is not None:
                self._run_to_statement(found.pe, found.statement)
                self.halt = found
                break
        for one, hits in zip(self.breakpoints, counts, strict=True):
            one.hits = hits
        return self.halt

    def _last_hit_before(self, here: Halt) -> Halt | None:
        """Run up to a halt; gives the last breakpoint on the way."""
        found: Halt | None = None
        stepping = self.simulator.stepping
        if here.pe is None:
            self._stand_at(here.cycle)
        else:
            stepping.stop_before(here.pe, here.statement)

        def decide(stopped: dict[int, int]) -> Halt | None:
            nonlocal found
            if here.pe in stopped and stepping.statements(here.pe) == here.statement:
                return here
            found = self._at_breakpoint(stopped) or found
            return None

        self._go_on(decide)
        stepping.stop_before(-1, 0)
        return found

    # Looking.

    def frames(self, pe: int) -> list[Frame]:
        """The functions of a PE whose code waits, the innermost first; none for one at rest."""
        if not self.simulator.stepping.is_in_code(pe):
            return []
        x, y = self.program.place_of(pe)
        return frames_of(
            self.program,
            int(self.program.image_of[y, x]),
            lambda address: int(self.simulator.read(x, y, address, 1)[0]),
        )

    def look(self, pe: int, frame: int = 0) -> PeLook:
        """Names and values of a PE, as the function of a frame sees them, 0 the innermost."""
        frames = self.frames(pe)
        return PeLook(self.program, self.simulator, pe, frames[frame] if frames else None)

    def holds(self, condition: str, pe: int) -> bool:
        """Whether a condition holds on a PE that has stopped."""
        return self.look(pe).evaluator.holds(condition)
