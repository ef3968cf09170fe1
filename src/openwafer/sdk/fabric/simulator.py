"""The fabric simulator: a machine that runs a compiled program, and the host's door to it."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, counted, error
from openwafer.sdk.arch.generation import MEMORY_WORDS
from openwafer.sdk.fabric import findings
from openwafer.sdk.fabric.account import Account, MainTime
from openwafer.sdk.fabric.edge import NO_PORTS, Edge, Passed, Port
from openwafer.sdk.fabric.events import EventKind, Rows, Scope, color_and_link, is_for_host
from openwafer.sdk.fabric.host_links import Transport, links_of
from openwafer.sdk.fabric.machine import (
    INTO_CORE,
    MAX_BANDS,
    Engine,
    Goal,
    Machine,
    MachineOptions,
    Statistics,
    Stop,
    Stream,
    Wavelets,
)
from openwafer.sdk.fabric.moments import Books, Landing, Moment, Print, Standing
from openwafer.sdk.fabric.patience import Patience, tell_interrupted
from openwafer.sdk.fabric.pe_state import PeState
from openwafer.sdk.fabric.report import Lost, Report
from openwafer.sdk.fabric.stepping import Stepping
from openwafer.sdk.program.mailbox import Finding
from openwafer.sdk.program.program import Program

LINK_LETTERS: Final = "WESNR"
_CONTROL_BIT: Final = 1 << 32
"""Of a wavelet, above its 32 bits of data."""
_FROM_CORE: Final = -1
_NO_PES: Final = np.zeros(0, np.int64)
"""In place of a link: words that a core sends to the host pass none."""
_LOOK_CYCLES = 200_000
"""How many cycles go by before the host looks up again: it may be interrupted, or impatient."""


@dataclass(frozen=True)
class SimulatorOptions:
    """How to run.

    Attributes:
        landing_log: record every landing of a wavelet at a router.
        max_cycles: cycles that one wait of the host may take.
        threads: bands of columns of PEs that are simulated side by side, at most one a column;
            results do not depend on it.
        stops_at_overrun: a vector operation that goes over the end of a variable is an error.
        is_checked: look also at what code and operations do to what is in flight.
        has_plans: the beats of simple operations take a short way, with the same results.
        has_account: the time of each slot is booked, see :meth:`Simulator.account`.
        scope: what :meth:`Simulator.record_to` gets; None records nothing.
        is_stepped: the code of PEs can be stopped before each statement, see
            :meth:`Simulator.when_stopped`; on one thread.
        code: how the code of PEs was made, in a word; snapshots go back only where it is the same.
        edge: ports of the rectangle.
        transport: of words that the host copies and streams.
    """

    landing_log: bool = False
    max_cycles: int = 2_000_000_000
    threads: int = 1
    stops_at_overrun: bool = False
    is_checked: bool = False
    has_plans: bool = True
    has_account: bool = False
    scope: Scope | None = None
    is_stepped: bool = False
    code: str = ""
    edge: Edge = NO_PORTS
    transport: Transport = Transport.IDEAL


class Simulator:
    """A rectangle of PEs and their routers.

    `run_address` and `element_address` are the two native functions of
    :mod:`openwafer.sdk.program.mailbox`; their owner keeps them alive. Coordinates count in the
    rectangle. Waiting raises OpenwaferError `fabric-deadlock` when nothing moves any more,
    `fabric-cycle-limit`, or what stopped a PE. `links` are those that the host's copies and streams
    take; None where these are ideal.
    """

    def __init__(
        self,
        program: Program,
        run_address: int,
        element_address: int,
        options: SimulatorOptions = SimulatorOptions(),
    ) -> None:
        options.edge.check(program)
        self._program = program
        self._options = options
        self.links: Final = links_of(program, options.transport, options.edge)
        self._machine: Machine = Engine(
            program,
            run_address,
            element_address,
            MachineOptions(
                num_bands=max(1, min(options.threads, program.width, MAX_BANDS)),
                landing_log=options.landing_log,
                scope=options.scope,
                stops_at_overrun=options.stops_at_overrun,
                is_checked=options.is_checked,
                has_plans=options.has_plans,
                has_account=options.has_account,
                is_stepped=options.is_stepped,
                code=options.code,
                edge=options.edge,
                links=self.links,
            ),
        )
        self._books = Books()
        self._looks: dict[int, list[Callable[[], None]]] = {}
        self._records: list[Callable[[Rows], None]] = []
        self._counters = np.zeros(0, np.int64)
        self._look_at_stop: Callable[[], None] | None = None
        self._hear: Callable[[Rows], None] | None = None
        self._num_waits = self._limit = 0
        self._going_on: Standing | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of PEs."""
        return self._program.width, self._program.height

    @property
    def options(self) -> SimulatorOptions:
        """How it runs."""
        return self._options

    @property
    def engine(self) -> Machine:
        """The machine itself, without what the host has taken of it."""
        return self._machine

    def snapshot(self) -> Moment:
        """What the simulation is now, with what the host has taken of it so far."""
        return Moment(self._machine.snapshot(), self._books.copy(), self._counters.copy())

    def restore(self, moment: Moment) -> None:
        """Make the simulation what it, or another one of the same program, was.

        Raises OpenwaferError for a moment of another program, size or version, and where the
        simulation is recorded.
        """
        if self._records:
            raise error(
                "record-goes-back",
                "a simulation that is recorded does not go back: cycles would stand there twice",
                help="restore the moment into a simulation without a record, or replay the journal",
            )
        self._machine.restore(moment.machine)
        self._books = moment.books.copy()
        self._counters[:] = moment.counters

    def begin_operation(self, standing: Standing | None = None) -> None:
        """Count the waits of an operation of the host from here on.

        With `standing` the operation, which is done once more, goes on from there: its earlier
        waits take no time, and what it does to the fabric between them is lost.
        """
        self._num_waits = 0
        if standing is not None:
            self._going_on = standing if standing.num_waits else None
            self.restore(standing.moment)

    def standing(self) -> Standing:
        """Where the operation stands that is being done."""
        return Standing(self.snapshot(), self._num_waits, self._limit)

    def _limit_of_wait(self, num_cycles: int) -> int | None:
        """The last cycle of a wait that begins now; None where it is over already."""
        self._num_waits += 1
        self._limit = self.cycle + num_cycles
        going_on = self._going_on
        if going_on is not None and self._num_waits < going_on.num_waits:
            return None
        if going_on is not None:
            self._going_on, self._limit = None, going_on.limit
            self.restore(going_on.moment)
        return self._limit

    def count_code(self, counters: NDArray[np.int64], first: NDArray[np.int64]) -> None:
        """Let code that counts raise `counters`; those of each PE, by number, begin at `first`."""
        self._counters = counters
        self._machine.count_code(counters.ctypes.data + counters.itemsize * first)

    @property
    def num_threads(self) -> int:
        """How many bands are simulated side by side."""
        return self._machine.num_bands

    @property
    def cycle(self) -> int:
        """The present."""
        return self._machine.now

    @property
    def last_cycle(self) -> int:
        """The present; after a trap the cycle of the PE's code, which runs ahead of the fabric."""
        return self._report().last_cycle()

    def write(self, x: int, y: int, address: int, words: NDArray[np.uint16]) -> None:
        """Put 16-bit words into a PE's memory, in no time."""
        pe = self._pe_with(x, y, address, words.size)
        self._machine.write(np.array([pe]), address, words)

    def read(self, x: int, y: int, address: int, num_words: int) -> NDArray[np.uint16]:
        """A copy of 16-bit words of a PE's memory."""
        pe = self._pe_with(x, y, address, num_words)
        return self._machine.read(np.array([pe]), address, num_words).ravel()

    def write_all(
        self, pes: NDArray[np.int64], addresses: NDArray[np.int64], words: NDArray[np.uint16]
    ) -> None:
        """Put words, a row for each of many PEs, at an address of each, in no time.

        `pes` are their numbers; what is written must lie in the PEs' memory.
        """
        for address in np.unique(addresses):
            own = addresses == address
            self._machine.write(pes[own], int(address), words[own])

    def is_unwritten(
        self, pes: NDArray[np.int64], addresses: NDArray[np.int64], num_words: int
    ) -> bool:
        """Whether all that :meth:`read_all` reads is known to have no value."""
        return all(
            self._machine.is_unwritten(pes[addresses == address], int(address), num_words)
            for address in np.unique(addresses)
        )

    def read_all(
        self, pes: NDArray[np.int64], addresses: NDArray[np.int64], num_words: int
    ) -> NDArray[np.uint16]:
        """A copy of words of many PEs, a row for each; see :meth:`write_all`."""
        words = np.empty((pes.size, num_words), np.uint16)
        for address in np.unique(addresses):
            own = addresses == address
            words[own] = self._machine.read(pes[own], int(address), num_words)
        return words

    def start_command(
        self,
        entry_of_image: Sequence[int],
        arguments: Sequence[int] = (),
        late: Sequence[NDArray[np.int64]] = (),
    ) -> None:
        """Start an entry on every PE, by number of its image; -1 leaves the image's PEs alone.

        The command goes from column to column, hop by hop. Each PE begins once it is idle and its
        command stream is open; those of `late` not before :meth:`deliver_command`.
        """
        self._machine.start_command(entry_of_image, arguments, np.concatenate([_NO_PES, *late]))

    def deliver_command(self, pes: NDArray[np.int64]) -> None:
        """Let the last command reach PEs that were late, by their numbers in ascending order."""
        self._machine.deliver_command(pes)

    def is_command_done(self) -> bool:
        """Whether every PE has ended the last command and opened its stream again."""
        return self._machine.is_command_done()

    def inject(self, color: int, x: int, y: int, words: NDArray[np.uint32]) -> None:
        """Stream words into a PE's core on a color, behind those that were injected before."""
        pe = self._pe(x, y)
        if words.size:
            pending = self._books.pending.setdefault((pe, color, INTO_CORE), [])
            pending.append(words.astype(np.uint32).astype(np.int64).ravel())

    def num_collected(self, color: int, x: int, y: int) -> int:
        """How many words that a PE sent to the host on a color wait for `take`."""
        return len(self._books.collected.get((self._pe(x, y), color, _FROM_CORE), ()))

    def take(self, color: int, x: int, y: int, num_words: int) -> NDArray[np.uint32]:
        """The next words that a PE sent to the host on a color, which must be there."""
        key = self._pe(x, y), color, _FROM_CORE
        return self._taken(key, num_words, f"PE ({x}, {y})").astype(np.uint32)

    @property
    def edge(self) -> Edge:
        """Ports of the rectangle."""
        return self._options.edge

    def send_to_port(self, port: Port, color: int, wavelets: Wavelets) -> None:
        """Let wavelets, 33 bits each, enter through a port, behind those that wait there."""
        if wavelets.size:
            key = self._pe(port.x, port.y), color, int(port.side.direction)
            self._books.pending.setdefault(key, []).append(wavelets.astype(np.int64).ravel())

    def take_of_port(self, port: Port, color: int, num_words: int) -> Wavelets:
        """Run until wavelets of a color have left through a port, and take the next ones."""
        pe, direction = self._pe(port.x, port.y), int(port.side.direction)
        key = pe, color, direction
        awaited = f"{num_words} words of color {color} from {port}"
        while (missing := num_words - len(self._books.collected.get(key, ()))) > 0:
            self._machine.expect_of_port(pe, direction, missing)
            self._wait(Goal.COLLECTED, awaited)
        return self._taken(key, num_words, str(port))

    def passed(self, port: Port, *, is_into: bool) -> Passed:
        """Words that have passed a port on one of its ways."""
        return self._machine.passed(port, is_into=is_into)

    def _taken(self, key: Stream, num_words: int, sender: str) -> Wavelets:
        """The next wavelets that came to the host on a way."""
        waiting = self._books.collected.get(key, deque())
        if len(waiting) < num_words:
            raise error(
                "fabric-stream-short",
                f"{sender} has sent {len(waiting)} words on color {key[1]}, not {num_words}",
                help="wait with run_until_collected before",
            )
        return np.array([waiting.popleft() for _ in range(num_words)], np.int64)

    def record_to(self, take: Callable[[Rows], None]) -> None:
        """Give all events of the options' scope to one more function from now on.

        It is called between two cycles, with events of the bands one behind the other.
        """
        self._records.append(take)

    def record_no_more(self, take: Callable[[Rows], None]) -> None:
        """Give a function of :meth:`record_to` no more events."""
        self._records.remove(take)

    def run_until_command_done(self) -> None:
        """Run until :meth:`is_command_done`."""
        self._wait(Goal.COMMAND, "PEs to open their command stream")

    def lacks_open_streams_only(self) -> bool:
        """Whether all PEs rest, and some have not opened their stream since the last command."""
        report = self._report()
        return not self.is_command_done() and report.lacks_open_streams_only()

    def run_until_injected(self) -> None:
        """Run until all injected words are in the PEs' queues, or have passed their ports."""
        self._wait(Goal.INJECTED, "PEs to take streamed words")

    def run_until_collected(
        self, color: int, pes: Sequence[tuple[int, int]], num_words: int
    ) -> None:
        """Run until each of the PEs has sent that many words that were not taken yet."""
        missing = {
            self._pe(x, y): num_words - self.num_collected(color, x, y)
            for x, y in pes
            if num_words > self.num_collected(color, x, y)
        }
        self._machine.expect(color, missing)
        self._wait(Goal.COLLECTED, f"{num_words} words of color {color} from each PE")

    def run_until_idle(self, max_cycles: int | None = None) -> bool:
        """Run until nothing moves; false when that has not come after `max_cycles`."""
        limit = self._limit_of_wait(self._options.max_cycles if max_cycles is None else max_cycles)
        return limit is None or self._advance(Goal.CYCLES, limit) == Stop.IDLE

    def run_cycles(self, num_cycles: int) -> None:
        """Let that many cycles go by, fewer if nothing moves any more."""
        limit = self._limit_of_wait(num_cycles)
        if limit is not None:
            self._advance(Goal.CYCLES, limit)

    def look_at(self, cycle: int, look: Callable[[], None]) -> None:
        """Call a function at the end of a cycle, once, in whatever waits then; it may raise.

        Nothing is called where the machine never comes so far. Raises OpenwaferError for a cycle of
        the past.
        """
        if cycle < self.cycle:
            raise error(
                "fabric-past",
                f"cycle {cycle} is over: the present is {self.cycle}",
                help="ask for a later one, or go back to a snapshot before",
            )
        self._looks.setdefault(cycle, []).append(look)

    def when_stopped(self, look: Callable[[], None]) -> None:
        """Call a function whenever code comes to where `stepping` lets it stop; it may raise.

        The rest of the cycle is still to come for the PEs that `stepping` names.
        """
        self._look_at_stop = look

    def when_heard(self, take: Callable[[Rows], None]) -> None:
        """Call a function with what the machine notes, once the host has taken its part; it may
        raise.

        Stepping says what that is, and when.
        """
        self._hear = take

    @property
    def stepping(self) -> Stepping:
        """Where code stops, of a simulation that is stepped."""
        return self._machine.stepping

    def look_no_more(self) -> None:
        """Call nothing that was asked of :meth:`look_at`."""
        self._looks.clear()

    def prints(self) -> tuple[Print, ...]:
        """What PEs wrote to the log so far, by cycle, then by PE."""
        return tuple(sorted(self._books.prints, key=lambda p: (p.cycle, p.y, p.x)))

    def landings(self) -> tuple[Landing, ...]:
        """Landings so far, if they are recorded, by cycle, then by PE."""
        return tuple(
            sorted(self._books.landings, key=lambda e: (e.cycle, e.y, e.x, e.color, e.link, e.data))
        )

    def findings(self) -> tuple[Diagnostic, ...]:
        """A warning for each mistake that was found so far: overruns by cycle, then the others.

        One for each kind, place in the source and variable, or operand that leaves its variable:
        the first one, by PE in a cycle. Where overruns are errors, they are no warnings.
        """
        return tuple(
            findings.diagnostic(one, self._program, num_images=num)
            for one, num in findings.by_place(self._books.found, self._program)
            if not (self._options.stops_at_overrun and one.kind is Finding.OVERRUN)
        )

    def left_over(self, *, is_at_rest: bool) -> tuple[Diagnostic, ...]:
        """A warning for each kind of wavelets that no PE has taken, or that still move."""
        report = self._report()
        return tuple(report.left_over(is_at_rest=is_at_rest))

    def waiting(self) -> list[str]:
        """What PEs and wavelets wait for now, as the report of a deadlock says it."""
        return self._report().waiting()

    def pe_state(self, pe: int) -> PeState:
        """What the machine of a PE, by its number, is at."""
        return self._report().pe_state(pe)

    def statistics(self) -> Statistics:
        """Counts since the start."""
        return self._machine.statistics()

    @property
    def has_account(self) -> bool:
        """Whether the time of slots is booked."""
        return self._options.has_account

    def account(self, first: int = 0, end: int | None = None) -> Account:
        """Where the cycles of each slot of each PE went since the start: 2 KB a PE.

        Args:
            first: number of the first PE that it is of.
            end: the one behind the last; None for all behind the first.

        Raises OpenwaferError `fabric-no-account` where the options ask for none.
        """
        self._require_account()
        num_pes = self._program.width * self._program.height
        return self._machine.account(first, num_pes if end is None else end)

    def main_time(self, first: int, end: int) -> MainTime:
        """The part of :meth:`account` that is of main threads, and all beats."""
        self._require_account()
        return self._machine.main_time(first, end)

    def _require_account(self) -> None:
        if not self._options.has_account:
            raise error(
                "fabric-no-account",
                "the time of this run is not booked",
                help="ask for it when the run begins: compiled.run(account=True), or the option"
                " has_account",
            )

    def _pe(self, x: int, y: int) -> int:
        if not (0 <= x < self._program.width and 0 <= y < self._program.height):
            size = f"{self._program.width} x {self._program.height}"
            message = f"PE ({x}, {y}) lies outside of the {size} rectangle"
            raise error("fabric-no-such-pe", message, help="columns and rows count from 0 on")
        return self._program.number_of(x, y)

    def _pe_with(self, x: int, y: int, address: int, num_words: int) -> int:
        """Number of a PE, which has such words of memory."""
        if address < 0 or address + num_words > MEMORY_WORDS:
            raise error(
                "fabric-bad-address",
                f"{counted(num_words, 'word')} from {address} on leave PE ({x}, {y})'s memory of"
                f" {MEMORY_WORDS} words",
                help="addresses count words of 16 bits, from 0 on",
            )
        return self._pe(x, y)

    def _wait(self, goal: Goal, awaited: str) -> None:
        limit = self._limit_of_wait(self._options.max_cycles)
        if limit is None:
            return
        begin, patience = self.cycle, Patience(awaited)
        stop = Stop.LIMIT
        while stop == Stop.LIMIT and self.cycle < limit:
            stop = self._advance(goal, min(limit, self.cycle + _LOOK_CYCLES))
            if stop == Stop.LIMIT:
                patience.look(self.cycle - begin, self._busy)
        if stop == Stop.IDLE:
            raise self._report().deadlock(awaited)
        if stop == Stop.LIMIT:
            raise error(
                "fabric-cycle-limit",
                f"the host has waited {self._options.max_cycles} cycles for {awaited}",
                notes=tuple(self._busy()),
                help="look for tasks that activate each other for ever, or raise max_cycles",
            )

    def _busy(self) -> list[str]:
        return self._report().busy()

    def _advance(self, goal: Goal, limit: int) -> Stop:
        self._place_sources()
        while True:
            due = min(self._looks, default=limit + 1)
            stop = self._advance_to(goal, min(due, limit))
            if stop == Stop.STEP:
                if self._look_at_stop is not None:
                    self._look_at_stop()
                continue
            if due > limit or self.cycle < due:
                return stop
            for look in self._looks.pop(due):
                look()
            if stop != Stop.LIMIT:
                return stop

    def _advance_to(self, goal: Goal, limit: int) -> Stop:
        while True:
            try:
                stop = self._machine.advance(goal, limit)
            except KeyboardInterrupt:
                tell_interrupted(self.cycle, self._busy())
                raise
            finally:
                for rows, text in self._machine.events():
                    self._note_all(rows, text)
            if stop == Stop.ERROR:
                raise self._stopped()
            if stop != Stop.DRAIN:
                return stop

    def _stopped(self) -> OpenwaferError:
        pe = self._machine.overrun_pe()
        if pe is None:
            return self._report().stopped()
        ours = [one for one in self._books.found if one.pe == pe and one.kind is Finding.OVERRUN]
        first = min(ours, key=lambda one: one.cycle)
        return OpenwaferError(findings.diagnostic(first, self._program, Severity.ERROR))

    def _report(self) -> Report:
        return self._machine.report(self._books.lost)

    def _place_sources(self) -> None:
        """Hand what waits to be injected to the machine."""
        if self._books.pending:
            self._machine.inject(self._books.pending)
            self._books.pending = {}

    def _note_all(self, rows: Rows, text: str) -> None:
        """Take what a band has noted."""
        for take in self._records if rows.size else ():
            take(rows)
        is_told = is_for_host(rows["kind"])
        if not self._options.landing_log:
            is_told &= rows["kind"] != EventKind.LANDING
        for event in rows[is_told].tolist():
            self._note(event, text)
        if self._hear is not None and rows.size:
            self._hear(rows)

    def _note(self, event: tuple[int, ...], text: str) -> None:
        """Note what the machine tells the host."""
        kind, cycle, pe, where, number, data = event
        x, y = self._program.place_of(pe)
        color, link = color_and_link(where)
        if kind == EventKind.SINK:
            self._books.collected.setdefault((pe, color, link), deque()).append(data)
        elif kind in (EventKind.LOST, EventKind.NOWHERE):
            self._books.lost[Lost(pe, color, link, EventKind(kind), number)] += 1
        elif kind == EventKind.PRINT:
            self._books.prints.append(Print(cycle, x, y, text[data : data + number]))
        elif kind == EventKind.FINDING:
            self._books.found.append(findings.read_event(event))
        else:
            is_control, word = bool(data & _CONTROL_BIT), data & 0xFFFFFFFF
            self._books.landings.append(
                Landing(cycle, x, y, color, LINK_LETTERS[link], is_control, word)
            )
