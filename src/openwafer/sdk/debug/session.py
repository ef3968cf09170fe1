"""A run that is stopped, looked at and taken back: its journal, done again by stepped code.

The run goes on in a greenlet, which gives control back wherever it stops. To go back, the machine
becomes what it was at a snapshot before, and goes forward from there; where it then stands follows
from how many statements a PE has begun.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np
from greenlet import GreenletExit, greenlet

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.debug.breakpoints import FINDING, Arrival, Breakpoint, Breakpoints, Seen
from openwafer.sdk.debug.changes import ITS_CODE, change_of, writer_of
from openwafer.sdk.debug.halt import Decide, Halt, Reason, never
from openwafer.sdk.debug.origins import Origins
from openwafer.sdk.debug.snapshots import Kept, Snapshots
from openwafer.sdk.debug.stack import Frame
from openwafer.sdk.debug.stand import Stand
from openwafer.sdk.debug.values import Value
from openwafer.sdk.fabric import EventKind, Standing
from openwafer.sdk.fabric.events import Rows, color_and_link
from openwafer.sdk.fabric.stepping import Change
from openwafer.sdk.host.checks import Warnings
from openwafer.sdk.host.journal import Journal
from openwafer.sdk.host.operations import Interpreter, Operation, Words
from openwafer.sdk.host.pe_code import Form
from openwafer.sdk.host.replaying import compare, redo
from openwafer.sdk.host.symbols import HostSymbols
from openwafer.sdk.program.program import Program

_IN_BRACES: Final = re.compile(r"\{([^}]*)\}")
OTHER_RUN: Final = "from here on it is another run: the host does what it did, whatever it gets"
"""Is told where a value has been set."""


class Debugger(Stand):
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
        tell: gets messages of breakpoints that do not stop.

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
        machine = journal.rules.machine_of(program, 1, form=Form.STEPPED)
        super().__init__(program, *machine, Halt(Reason.START, 0))
        self.breakpoints = Breakpoints(self.program, self.simulator.stepping)
        self._interpreter = Interpreter(
            HostSymbols(program), self.simulator, Warnings(), journal.rules
        )
        self._hub = greenlet.getcurrent()
        self._operation = 0
        self._decide: Decide = never
        self._kept = Snapshots(self._kept_now(), spacing, most_snapshots)
        self._arrivals: list[Arrival] = []
        self._is_to_pause = threading.Event()
        self._may_pause = True
        self._refusals: list[str] = []
        self._failures: list[str] = []
        self._changed: Halt | None = None
        self._is_changed = False
        self._origins = Origins(program, journal)
        self.tell: Callable[[str], None] = lambda _text: None
        self.simulator.when_stopped(self._stopped)
        self.simulator.when_heard(self._heard)
        self._run = greenlet(self._runs)
        self._keep_later()

    # What the run does.

    def _runs(self, first: int = 0, standing: Standing | None = None) -> Halt:
        """Do the operations of the run from one on; gives where it ends."""
        self._operation = first
        self._failures.clear()
        run = redo(self._journal, self.simulator, self._carry_out, first, standing, self._compare)
        for _ in run:
            while self._failures:
                failure = self._failures.pop()
                self._hub.switch(Halt(Reason.FAILED, self.simulator.last_cycle, text=failure))
            self._see(Seen(changes=self._changes(None), host=self._operation))
            self._operation += 1
        return Halt(Reason.END, self.simulator.cycle)

    def _carry_out(self, operation: Operation) -> Words | None:
        """Do an operation, and keep how it failed."""
        try:
            return self._interpreter.carry_out(operation)
        except OpenwaferError as raised:
            self._failures.append(str(raised))
            raise

    def _compare(self, what: str, before: object, now: object) -> None:
        """Compare with the run, until a value has been set that it did not have."""
        if not self.has_changed:
            compare(what, before, now)

    def _see(self, seen: Seen) -> None:
        """Stand still where that is decided of what is seen."""
        halt = self._decide(seen)
        if halt is not None:
            self._hub.switch(halt)

    def _stopped(self) -> None:
        """Look at PEs that have stopped; where none has, at what the cycle has changed.

        Others than these may still have something to do in this cycle, which comes first.
        """
        stopped = self.simulator.stepping.stopped()
        self._see(Seen(stopped, self._changes(list(stopped) or None)))
        if self._arrivals:
            self._arrivals, arrivals = [], self._arrivals
            self._see(Seen(arrivals=tuple(arrivals)))

    def _heard(self, rows: Rows) -> None:
        """Look at wavelets that have come into queues, and at mistakes that were found."""
        for row in rows[np.isin(rows["kind"], (EventKind.ENTERED, EventKind.FINDING))]:
            color = int(color_and_link(int(row["where"]))[0])
            is_entry = row["kind"] == EventKind.ENTERED
            self._arrivals.append(Arrival(int(row["pe"]), color if is_entry else FINDING))
        if self._arrivals and not self.simulator.stepping.stopped():
            self._arrivals, arrivals = [], self._arrivals
            self._see(Seen(arrivals=tuple(arrivals)))

    def _changes(self, pes: Sequence[int] | None) -> tuple[Change, ...]:
        return tuple(self.simulator.stepping.changes(pes))

    def _keep_later(self) -> None:
        self.simulator.look_at(self.simulator.cycle + self._kept.spacing, self._keep)

    def _keep(self) -> None:
        self._kept.space()
        if self.simulator.cycle > self._kept.last_cycle:
            self._kept.add(self._kept_now())
        self._kept.begin()
        self._keep_later()
        paused = self._paused() if self._may_pause else None
        if paused is not None:
            self._hub.switch(paused)

    def _paused(self) -> Halt | None:
        """The halt of a pause that was asked for, which is over by that."""
        if not self._is_to_pause.is_set():
            return None
        self._is_to_pause.clear()
        return Halt(Reason.PAUSED, self.simulator.cycle)

    def _kept_now(self) -> Kept:
        return Kept(self.simulator.cycle, self._operation, self.simulator.standing())

    def pause(self) -> None:
        """Let the run stand still soon: where the next snapshot is due; any thread may ask."""
        self._is_to_pause.set()

    def go_unpaused(self) -> None:
        """Forget a pause that was asked for while the run stood."""
        self._is_to_pause.clear()

    @property
    def has_changed(self) -> bool:
        """Whether a value was set before, so that the run may not be what it was."""
        return self._is_changed

    @property
    def num_snapshots(self) -> int:
        """How many there are, that of the start among them."""
        return len(self._kept)

    @property
    def snapshot_bytes(self) -> int:
        """How much memory the snapshots take."""
        return self._kept.num_bytes

    # Forwards.

    def _go_on(self, decide: Decide) -> Halt:
        """Let the run go on until it is decided that it stands still, or to its end."""
        if self._run.dead:
            return self.halt
        self._decide = decide
        self._kept.begin()
        try:
            self.halt = self._run.switch()
        except KeyboardInterrupt:
            self._go_back(self._kept.before(self.simulator.cycle)[0])
            raise
        return self.halt

    def _await_cycles(self) -> None:
        """Ask for the next snapshot, and for breakpoints at cycles to come."""
        self._keep_later()
        for one in self.breakpoints:
            if one.cycle > self.simulator.cycle:
                self._await_cycle(one.cycle)

    def _await_cycle(self, cycle: int) -> None:
        self.simulator.look_at(cycle, lambda: self._see(Seen(cycle=cycle)))

    def stop_at_cycle(self, cycle: int) -> Breakpoint:
        """Add a breakpoint at the end of a cycle."""
        if cycle > self.simulator.cycle:
            self._await_cycle(cycle)
        return self.breakpoints.add_cycle(cycle)

    def _at(self, reason: Reason, pe: int, place: int, numbers: Sequence[int] = ()) -> Halt:
        statement = self.simulator.stepping.statements(pe)
        return Halt(reason, self.simulator.cycle, pe, place, statement, tuple(numbers))

    def _at_breakpoint(self, seen: Seen) -> Halt | None:
        """The halt of the first PE that is at a breakpoint, with those of all."""
        self._refusals.clear()
        hits = self.breakpoints.hit(seen, self)
        if not hits:
            return None
        numbers = sorted({number for one in hits.values() for number in one})
        pe, *others = sorted(hits, key=lambda pe: pe not in seen.stopped)
        told = "\n".join([*self._told_changes(seen, numbers), *self._refusals])
        if pe in seen.stopped:
            halt = self._at(Reason.BREAKPOINT, pe, seen.stopped[pe], numbers)
        else:
            cycle = self.simulator.cycle
            halt = Halt(Reason.BREAKPOINT, cycle, pe, breakpoints=tuple(numbers))
        return replace(halt, others=tuple(others), text=told)

    def _told_changes(self, seen: Seen, numbers: Sequence[int]) -> Iterator[str]:
        """What has changed the values of breakpoints: before, now, and by whom."""
        stepping = self.simulator.stepping
        for one in self.breakpoints:
            changes = [change for change in seen.changes if change.word in one.words]
            if one.number in numbers and changes:
                told = change_of(one, changes, self.look(changes[0].word.pe).values)
                writer = writer_of(changes[0], seen, self.program, self._journal, stepping)
                yield f"{told}, by {writer}"

    def go_on(self) -> Halt:
        """Run until a breakpoint, or to the end."""
        return self._go_on(self._at_breakpoint)

    def run_to_cycle(self, cycle: int) -> Halt:
        """Run to the end of a cycle, or to a breakpoint before; or go back to a cycle of the past.

        A run that ends before stops there.
        """
        decide: Decide = self._at_breakpoint
        if cycle < self.simulator.cycle:
            self._go_back(self._kept.before(cycle)[0])
            self._forget_other_run()
            decide = never
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

        def decide(seen: Seen) -> Halt | None:
            at_breakpoint = self._at_breakpoint(seen)
            if at_breakpoint is not None or pe not in seen.stopped:
                return at_breakpoint
            frames = self.frames(pe)
            is_deep = most_frames is not None and len(frames) > most_frames
            if is_deep or self._line(frames) == before:
                return None
            return self._at(Reason.STEP, pe, seen.stopped[pe])

        with self.breakpoints.each_statement_of(pe):
            return self._go_on(decide)

    def step_over(self, pe: int) -> Halt:
        """Run to the next statement of the PE's function, or of what called it."""
        return self.step(pe, max(1, len(self.frames(pe))))

    def step_out(self, pe: int) -> Halt:
        """Run to where the PE's function was called, or to the PE's next task."""
        return self.step(pe, max(1, len(self.frames(pe)) - 1))

    def _line(self, frames: Sequence[Frame]) -> tuple[object, ...]:
        """What is the same while a PE's code stays in one line of one call."""
        if not frames:
            return ()
        place = self.program.places[frames[0].place]
        return len(frames), frames[0].function.name, place.file, place.line, place.call

    # Backwards.

    def _go_back(self, kept: Kept) -> None:
        """Make the run what it was at a snapshot."""
        if self._run:
            self._run.throw(GreenletExit)
        self.halt = Halt(Reason.CYCLE if kept.cycle else Reason.START, kept.cycle)
        self._run = greenlet(lambda: self._runs(kept.operation, kept.standing))
        self._is_changed = self._changed is not None and kept.cycle >= self._changed.cycle
        self.simulator.look_no_more()
        self.simulator.restore(kept.standing.moment)
        self._arrivals = []
        self._changes(None)
        self._await_cycles()

    def _forget_other_run(self) -> None:
        """Drop snapshots of the run with values that were set, where the run stands before that."""
        if self._changed is not None and not self._is_changed:
            self._kept.drop_from(self._changed.cycle)
            self._changed = None

    def _run_to_statement(self, pe: int, statement: int) -> Halt:
        """Run to where a PE has begun so many statements, past all breakpoints."""
        stepping = self.simulator.stepping
        stepping.stop_before(pe, statement)

        def decide(seen: Seen) -> Halt | None:
            is_there = pe in seen.stopped and stepping.statements(pe) == statement
            return self._at(Reason.STEP, pe, seen.stopped[pe]) if is_there else None

        try:
            with self.breakpoints.only(), self._unpaused():
                return self._go_on(decide)
        finally:
            stepping.stop_before(-1, 0)

    @contextmanager
    def _unpaused(self) -> Iterator[None]:
        """Let a way that is short come to its end: a pause that is asked for waits."""
        may_pause, self._may_pause = self._may_pause, False
        try:
            yield
        finally:
            self._may_pause = may_pause

    def step_back(self, pe: int) -> Halt:
        """Go back to the statement that the PE has begun last, or to the start."""
        target = self.simulator.stepping.statements(pe) - 1
        for kept in self._kept.before(self.halt.cycle):
            self._go_back(kept)
            if self.simulator.stepping.statements(pe) <= target:
                self._run_to_statement(pe, target)
                break
        self._forget_other_run()
        return self.halt

    def go_back(self, *, may_be_here: bool = False) -> Halt:
        """Go back to the last breakpoint before, or to the start.

        One that the run has come to just now is before only where it may be here. A pause gives the
        search up: the run stands where it stood.
        """
        here, counts = self.halt, [one.hits for one in self.breakpoints]
        tell, self.tell = self.tell, lambda _text: None
        try:
            for kept, first in self._kept.stretches_before(here.cycle):
                self._go_back(kept)
                # Before a value was set lies what is before that moment, and not behind it.
                until = here if self._is_changed or self._changed is None else self._changed
                if self._is_past(until) or first > until.cycle:
                    continue
                if first > kept.cycle:
                    with self.breakpoints.only(), self._unpaused():
                        self._stand_at(first)
                        self._go_on(never)
                may_be = may_be_here or until is not here
                found = self._last_hit_before(until, may_be_here=may_be)
                is_given_up = self.halt.reason is Reason.PAUSED and self.halt is not until
                self._go_back(self._kept.before(here.cycle)[0] if is_given_up else kept)
                if is_given_up:
                    self._run_to(replace(here, reason=Reason.PAUSED))
                    break
                if found is not None:
                    self._run_to(found)
                    break
        finally:
            self.tell = tell
            for one, hits in zip(self.breakpoints, counts, strict=True):
                one.hits = hits
        self._forget_other_run()
        return self.halt

    def _is_past(self, halt: Halt) -> bool:
        """Whether the run has left a halt behind, of the cycle that it stands at the end of."""
        if halt.pe is None or halt.statement < 0:
            return False
        return self.simulator.stepping.statements(halt.pe) > halt.statement

    def go_to_writer(self, name: str, pe: int, value: Value) -> str:
        """Go back to before what changed a value last, or to the start; says what it was.

        Raises OpenwaferError for a value that lies nowhere, or is too large.
        """
        with self.breakpoints.only_value(name, pe, value):
            found = self.halt
            if found.reason is not Reason.START:
                found = self.go_back(may_be_here=True)
        if found.reason is Reason.PAUSED:
            return f"paused before it was found what has changed {name}"
        if found.reason is Reason.START:
            return f"nothing has changed {name} since the run began"
        if found.text.endswith(ITS_CODE):
            # What it has begun last: it has not come to another statement since.
            before = self.step_back(pe)
            return f"{found.text}, at {self.program.places[before.place]}"
        if found.cycle:
            self.run_to_cycle(found.cycle - 1)
        else:
            self._go_back(self._kept.start)
        return found.text

    def _run_to(self, halt: Halt) -> None:
        """Run to a halt that is to come, past all breakpoints."""
        if halt.statement >= 0 and halt.pe is not None:
            self._run_to_statement(halt.pe, halt.statement)
        else:
            self._stand_at(halt.cycle)
            with self._unpaused():
                self._go_on(never)
        self.halt = halt

    def _last_hit_before(self, here: Halt, *, may_be_here: bool) -> Halt | None:
        """Run up to a halt; gives the last breakpoint on the way."""
        found: Halt | None = None
        stepping = self.simulator.stepping
        pe = here.pe if here.pe is not None else -1
        is_at_end = here.statement < 0
        if is_at_end:
            self._stand_at(here.cycle)
        else:
            stepping.stop_before(pe, here.statement)

        def decide(seen: Seen) -> Halt | None:
            nonlocal found
            is_here = pe in seen.stopped and stepping.statements(pe) == here.statement
            hit = self._at_breakpoint(seen) if may_be_here or not is_here else None
            is_end = hit is not None and hit.statement < 0 and hit.cycle >= here.cycle
            if hit is not None and (may_be_here or not (is_at_end and is_end)):
                found = hit
            # Hits are what takes long.
            return here if is_here else self._paused()

        try:
            self._go_on(decide)
        finally:
            stepping.stop_before(-1, 0)
        return found

    # Looking.

    def came_from(self, pe: int, color: int | None = None, number: int | None = None) -> list[str]:
        """Where wavelets of a color, or of each, came from that a PE has got, in lines.

        Args:
            pe: number of the PE.
            color: None for each.
            number: of the wavelet among those of its color, from 1 on; None for the last.

        The run is done once more for it, up to the present cycle.

        Raises OpenwaferError where it did not come, and in another run than that of the journal.
        """
        if self._is_changed and self._changed is not None:
            raise error(
                "debug-other-run",
                f"a value was set at cycle {self._changed.cycle:,}, and wavelets are followed in"
                " the run that was recorded",
                help="go back to before that",
            )
        return self._origins.of_pe(pe, self.simulator.cycle, color, number)

    def set(self, pe: int, name: str, expression: str, frame: int = 0) -> str:
        """Give a variable, or a part of one, another value; gives it as it is then.

        From here on the run is another one: the host does what it did, whatever it gets. Going back
        before here undoes it.

        Raises OpenwaferError for what lies nowhere in memory, and for no number.
        """
        look = self.look(pe, frame)
        value = look.evaluator.variable(name)
        content = look.values.content(value, look.evaluator.number(expression))
        look.write(value, content)
        # Where values are set one behind the other, the run is another one from the first on.
        self._changed, self._is_changed = self._changed or self.halt, True
        self._changes(None)
        self._kept.end_with(self._kept_now())
        return look.values.text(look.values.again(value))

    def told(self, message: str, pe: int) -> None:
        """Tell a message of a PE, with the values of what it has in braces."""
        look = self.look(pe)

        def value(found: re.Match[str]) -> str:
            try:
                return look.evaluator.bare_text(found[1])
            except OpenwaferError as refused:
                return f"<{refused.diagnostics[0].message}>"

        text = _IN_BRACES.sub(value, message)
        self.tell(f"{self.name_of(pe)}, cycle {self.simulator.cycle:,}: {text}")

    def holds(self, condition: str, pe: int) -> bool:
        """Whether a condition holds on a PE that has stopped.

        One that cannot be worked out does: the run stops there, and says why.
        """
        try:
            return self.look(pe).evaluator.holds(condition)
        except OpenwaferError as refused:
            told = f"{self.name_of(pe)}: its condition {refused.diagnostics[0].message}"
            self._refusals = list(dict.fromkeys([*self._refusals, told]))
            return True


def running(stand: Stand) -> Debugger:
    """The run that stands. Raises OpenwaferError for what is only looked at."""
    if not isinstance(stand, Debugger):
        raise error(
            "debug-core",
            f"this is a core, the moment at cycle {stand.halt.cycle:,}: it is looked at, and does"
            " not go on, go back or change",
            help="debug the run: openwafer csl debug OUT -- run.py, or --replay JOURNAL",
        )
    return stand
