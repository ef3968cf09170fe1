"""The fabric simulator: a machine that runs a compiled program, and the host's door to it."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, error
from openwafer.sdk.arch.generation import MEMORY_WORDS
from openwafer.sdk.fabric import findings
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.account import Account
from openwafer.sdk.fabric.engine import Engine
from openwafer.sdk.fabric.findings import Found
from openwafer.sdk.fabric.load import load
from openwafer.sdk.fabric.patience import Patience, tell_interrupted
from openwafer.sdk.fabric.report import Lost, Report
from openwafer.sdk.fabric.snapshots import Snapshot
from openwafer.sdk.fabric.state import Array, events_of
from openwafer.sdk.fabric.variables import bits_of_words, fill_unwritten
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.mailbox import Finding
from openwafer.sdk.program.program import Program

LINK_LETTERS = "WESNR"
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
    """

    landing_log: bool = False
    max_cycles: int = 2_000_000_000
    threads: int = 1
    stops_at_overrun: bool = False
    is_checked: bool = False
    has_plans: bool = True
    has_account: bool = False


@dataclass(frozen=True)
class Print:
    """Characters that a PE wrote to the log."""

    cycle: int
    x: int
    y: int
    text: str


@dataclass(frozen=True)
class Landing:
    """A wavelet arrived at a router; `link` is W, E, S, N or R, the ramp."""

    cycle: int
    x: int
    y: int
    color: int
    link: str
    is_control: bool
    data: int


@dataclass(frozen=True)
class Statistics:
    """Counts since the start; of code that has run ahead of the present cycle, too.

    Attributes:
        cycles: the present one.
        wavelets: what PEs have sent.
        landings: arrivals of wavelets at routers.
        elements: what vector operations have computed or moved, whoever served them.
        tasks: what PEs have started: tasks, handlers, commands of the host.
        switch_changes: positions that control wavelets have changed.
    """

    cycles: int
    wavelets: int
    landings: int
    elements: int
    tasks: int
    switch_changes: int


@dataclass
class _Books:
    """What the host has taken of a machine, and what it has not given to it yet."""

    collected: dict[tuple[int, int], deque[int]] = field(default_factory=dict)
    pending: dict[tuple[int, int], list[NDArray[np.uint32]]] = field(default_factory=dict)
    prints: list[Print] = field(default_factory=list)
    landings: list[Landing] = field(default_factory=list)
    lost: Counter[Lost] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)

    def copy(self) -> "_Books":
        """The same books, to be written on apart from these."""
        return _Books(
            {key: words.copy() for key, words in self.collected.items()},
            {key: parts.copy() for key, parts in self.pending.items()},
            self.prints.copy(),
            self.landings.copy(),
            self.lost.copy(),
            self.found.copy(),
        )


@dataclass(frozen=True)
class Moment:
    """A simulation between two cycles: the machine, and the host's side of it."""

    machine: Snapshot
    books: _Books


class Simulator:
    """A rectangle of PEs and their routers.

    `run_address` and `element_address` are the two native functions of
    :mod:`openwafer.sdk.program.mailbox`; their owner keeps them alive. Coordinates count in the
    rectangle. Waiting raises OpenwaferError `fabric-deadlock` when nothing moves any more,
    `fabric-cycle-limit`, or what stopped a PE.
    """

    def __init__(
        self,
        program: Program,
        run_address: int,
        element_address: int,
        options: SimulatorOptions = SimulatorOptions(),
    ) -> None:
        self._program = program
        self._options = options
        num_bands = max(1, min(options.threads, program.width, w.MAX_BANDS))
        self._engine = Engine(load(program, num_bands), run_address, element_address)
        self._state, self._tables = self._engine.state, self._engine.tables
        self._state[w.G_LOG] = options.landing_log
        self._state[w.G_STOPS_AT_OVERRUN] = options.stops_at_overrun
        self._state[w.G_IS_CHECKED] = options.is_checked
        if options.is_checked:
            fill_unwritten(self._engine.states, program)
        self._state[w.G_HAS_PLANS] = options.has_plans
        self._state[w.G_HAS_ACCOUNT] = options.has_account
        self._books = _Books()
        self._looks: dict[int, Callable[[], None]] = {}
        self._wake(np.arange(program.width * program.height))

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of PEs."""
        return self._program.width, self._program.height

    @property
    def engine(self) -> Engine:
        """The machine itself, without what the host has taken of it."""
        return self._engine

    def snapshot(self) -> Moment:
        """What the simulation is now, with what the host has taken of it so far."""
        return Moment(self._engine.snapshot(), self._books.copy())

    def restore(self, moment: Moment) -> None:
        """Make the simulation what it was; raises OpenwaferError for a moment of another one."""
        self._engine.restore(moment.machine)
        self._books = moment.books.copy()

    @property
    def num_threads(self) -> int:
        """How many bands are simulated side by side."""
        return len(self._engine.states)

    @property
    def cycle(self) -> int:
        """The present."""
        return self._engine.now

    def write(self, x: int, y: int, address: int, words: NDArray[np.uint16]) -> None:
        """Put 16-bit words into a PE's memory, in no time."""
        pe = self._pe_with(x, y, address, words.size)
        self._engine.write(pe, address, words)
        self._note_written(np.array([pe]), address, words.size)

    def read(self, x: int, y: int, address: int, num_words: int) -> NDArray[np.uint16]:
        """A copy of 16-bit words of a PE's memory."""
        return self._engine.read(self._pe_with(x, y, address, num_words), address, num_words)

    def write_all(
        self, pes: NDArray[np.int64], addresses: NDArray[np.int64], words: NDArray[np.uint16]
    ) -> None:
        """Put words, a row for each of many PEs, at an address of each, in no time.

        `pes` are their numbers; what is written must lie in the PEs' memory.
        """
        for address in np.unique(addresses):
            own = addresses == address
            self._tables.memory[pes[own], address : address + words.shape[1]] = words[own]
            self._note_written(pes[own], int(address), words.shape[1])

    def _note_written(self, pes: NDArray[np.int64], address: int, num_words: int) -> None:
        if self._options.is_checked:
            self._tables.unwritten[pes] &= ~bits_of_words(address, num_words)

    def is_unwritten(
        self, pes: NDArray[np.int64], addresses: NDArray[np.int64], num_words: int
    ) -> bool:
        """Whether all that :meth:`read_all` reads is known to have no value."""
        is_at_work = self._tables.core[pes, w.C_THREADS] & w.MICROTHREADS != 0
        if not self._options.is_checked or is_at_work.any():
            return False
        own = (bits_of_words(int(address), num_words) for address in addresses)
        return all(
            ((self._tables.unwritten[pe] & bits) == bits).all()
            for pe, bits in zip(pes, own, strict=True)
        )

    def read_all(
        self, pes: NDArray[np.int64], addresses: NDArray[np.int64], num_words: int
    ) -> NDArray[np.uint16]:
        """A copy of words of many PEs, a row for each; see :meth:`write_all`."""
        words = np.empty((pes.size, num_words), np.uint16)
        for address in np.unique(addresses):
            own = addresses == address
            words[own] = self._tables.memory[pes[own], address : address + num_words]
        return words

    def start_command(self, entry_of_image: Sequence[int], arguments: Sequence[int] = ()) -> None:
        """Start an entry on every PE, by number of its image; -1 leaves the image's PEs alone.

        The command goes from column to column, hop by hop. Each PE begins once it is idle and its
        command stream is open.
        """
        state = self._state
        if not self.is_command_done():
            raise error("fabric-command-runs", "the command before has not ended on every PE")
        state[w.G_ARGUMENTS : w.G_ARGUMENTS + mb.NUM_ARGUMENTS] = 0
        bits = np.array(arguments, np.uint64)
        state[w.G_ARGUMENTS : w.G_ARGUMENTS + len(arguments)] = bits.view(np.int64)
        entries = np.array(entry_of_image, np.int64) + 1
        self._tables.image[: entries.size, w.I_COMMAND] = entries
        started = np.flatnonzero(entries[self._program.images_by_number])
        self._tables.processor[started, w.P_COMMAND] = w.COMMAND_WAITS
        core = self._tables.core
        resting = started[core[started, w.C_MAIN] == w.MAIN_REST]
        core[resting, w.C_MAIN] = w.MAIN_IDLE
        state[w.G_COMMANDS] = started.size
        state[w.G_LAUNCHED] = state[w.G_NOW]
        self._wake(started)

    def is_command_done(self) -> bool:
        """Whether every PE has ended the last command and opened its stream again."""
        return int(self._state[w.G_COMMANDS]) == 0

    def inject(self, color: int, x: int, y: int, words: NDArray[np.uint32]) -> None:
        """Stream words into a PE's core on a color, behind those that were injected before."""
        pe = self._pe(x, y)
        if words.size:
            self._books.pending.setdefault((pe, color), []).append(words.astype(np.uint32).ravel())

    def num_collected(self, color: int, x: int, y: int) -> int:
        """How many words that a PE sent to the host on a color wait for `take`."""
        return len(self._books.collected.get((self._pe(x, y), color), ()))

    def take(self, color: int, x: int, y: int, num_words: int) -> NDArray[np.uint32]:
        """The next words that a PE sent to the host on a color, which must be there."""
        waiting = self._books.collected.get((self._pe(x, y), color), deque())
        if len(waiting) < num_words:
            raise error(
                "fabric-stream-short",
                f"PE ({x}, {y}) has sent {len(waiting)} words on color {color}, not {num_words}",
                help="wait with run_until_collected before",
            )
        return np.array([waiting.popleft() for _ in range(num_words)], np.uint32)

    def run_until_command_done(self) -> None:
        """Run until :meth:`is_command_done`."""
        self._wait(w.GOAL_COMMAND, "PEs to open their command stream")

    def lacks_open_streams_only(self) -> bool:
        """Whether all PEs rest, and some have not opened their stream since the last command."""
        report = Report(self._program, self._state, self._books.lost)
        return not self.is_command_done() and report.lacks_open_streams_only()

    def run_until_injected(self) -> None:
        """Run until all injected words are in the PEs' queues."""
        self._wait(w.GOAL_INJECTED, "PEs to take streamed words")

    def run_until_collected(
        self, color: int, pes: Sequence[tuple[int, int]], num_words: int
    ) -> None:
        """Run until each of the PEs has sent that many words that were not taken yet."""
        state = self._state
        if not (int(state[w.G_SINK_COLORS]) >> color) & 1:
            raise error("fabric-no-stream", f"color {color} leads no stream to the host")
        slot = int(state[w.G_SINK_SLOT + color])
        self._tables.sink[:, 1] = -1
        state[w.G_WANTED] = 0
        for x, y in pes:
            missing = num_words - self.num_collected(color, x, y)
            if missing > 0:
                row = self._tables.sink[self._pe(x, y) * w.SINKS + slot]
                row[1] = row[0] + missing
                state[w.G_WANTED] += 1
        self._wait(w.GOAL_COLLECTED, f"{num_words} words of color {color} from each PE")

    def run_until_idle(self, max_cycles: int | None = None) -> bool:
        """Run until nothing moves; false when that has not come after `max_cycles`."""
        limit = self.cycle + (self._options.max_cycles if max_cycles is None else max_cycles)
        return self._advance(w.GOAL_CYCLES, limit) == w.STOP_IDLE

    def run_cycles(self, num_cycles: int) -> None:
        """Let that many cycles go by, fewer if nothing moves any more."""
        self._advance(w.GOAL_CYCLES, self.cycle + num_cycles)

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
        self._looks[cycle] = look

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
        report = Report(self._program, self._state, self._books.lost)
        return tuple(report.left_over(is_at_rest=is_at_rest))

    def statistics(self) -> Statistics:
        """Counts since the start."""
        g, tables = self._state, self._tables
        return Statistics(
            cycles=self.cycle,
            wavelets=int(g[w.G_WAVELETS]),
            landings=int(g[w.G_LANDINGS]),
            elements=int(g[w.G_ELEMENTS] + tables.mailbox[:, mb.ELEMENTS].sum()),
            tasks=int(tables.processor[:, w.P_TASKS_RUN].sum()),
            switch_changes=int(g[w.G_SWITCHES]),
        )

    def account(self) -> Account:
        """Where the cycles of each slot of each PE went since the start.

        Raises OpenwaferError `fabric-no-account` where the options ask for none.
        """
        if not self._options.has_account:
            raise error(
                "fabric-no-account",
                "the time of this run is not booked",
                help="ask for it when the run begins: compiled.run(account=True), or the option"
                " has_account",
            )
        return self._engine.account()

    def _pe(self, x: int, y: int) -> int:
        if not (0 <= x < self._program.width and 0 <= y < self._program.height):
            size = f"{self._program.width} x {self._program.height}"
            raise error("fabric-no-such-pe", f"PE ({x}, {y}) lies outside of the {size} rectangle")
        return self._program.number_of(x, y)

    def _wake(self, pes: NDArray[np.int64]) -> None:
        """Let cores look around; `pes` are different ones in ascending order."""
        pes = pes[self._tables.core[pes, w.C_AWAKE] & w.AWAKE_BIT == 0]
        self._tables.core[pes, w.C_AWAKE] |= w.AWAKE_BIT
        for state in self._engine.states:
            own = pes[(pes >= state[w.G_FIRST]) & (pes < state[w.G_END])]
            end = w.CORE_LIST + int(state[w.G_CORES])
            state[end : end + own.size] = own
            state[w.G_CORES] += own.size

    def _pe_with(self, x: int, y: int, address: int, num_words: int) -> int:
        """Number of a PE, which has such words of memory."""
        if address < 0 or address + num_words > MEMORY_WORDS:
            raise error(
                "fabric-bad-address",
                f"words {address} to {address + num_words} lie outside of a PE's memory of"
                f" {MEMORY_WORDS} words",
            )
        return self._pe(x, y)

    def _wait(self, goal: int, awaited: str) -> None:
        begin, patience = self.cycle, Patience(awaited)
        limit = begin + self._options.max_cycles
        stop = w.STOP_LIMIT
        while stop == w.STOP_LIMIT and self.cycle < limit:
            stop = self._advance(goal, min(limit, self.cycle + _LOOK_CYCLES))
            if stop == w.STOP_LIMIT:
                patience.look(self.cycle - begin, self._busy)
        if stop == w.STOP_IDLE:
            raise Report(self._program, self._state, self._books.lost).deadlock(awaited)
        if stop == w.STOP_LIMIT:
            raise error(
                "fabric-cycle-limit",
                f"the host has waited {self._options.max_cycles} cycles for {awaited}",
                notes=tuple(self._busy()),
                help="look for tasks that activate each other for ever, or raise max_cycles",
            )

    def _busy(self) -> list[str]:
        return Report(self._program, self._state, self._books.lost).busy()

    def _advance(self, goal: int, limit: int) -> int:
        self._place_sources()
        while self._looks and min(self._looks) <= limit:
            due = min(self._looks)
            stop = self._advance_to(goal, due)
            if self.cycle < due:
                return stop
            self._looks.pop(due)()
            if stop != w.STOP_LIMIT:
                return stop
        return self._advance_to(goal, limit)

    def _advance_to(self, goal: int, limit: int) -> int:
        while True:
            try:
                stop = self._engine.advance(goal, limit)
            except KeyboardInterrupt:
                tell_interrupted(self.cycle, self._busy())
                raise
            finally:
                for state in self._engine.states:
                    self._drain(state)
            if stop == w.STOP_ERROR:
                raise self._stopped()
            if stop != w.STOP_DRAIN:
                return stop

    def _stopped(self) -> OpenwaferError:
        if self._state[w.G_ERROR] != w.ERROR_OVERRUN:
            return Report(self._program, self._state, self._books.lost).stopped()
        pe = int(self._state[w.G_ERROR_PE])
        ours = [one for one in self._books.found if one.pe == pe and one.kind is Finding.OVERRUN]
        first = min(ours, key=lambda one: one.cycle)
        return OpenwaferError(findings.diagnostic(first, self._program, Severity.ERROR))

    def _place_sources(self) -> None:
        """Hand what waits to be injected to the compiled core, as one table."""
        if not self._books.pending:
            return
        self._check_room()
        state, core, source = self._state, self._tables.core, self._tables.source
        streams = self._unread_streams()
        for key, parts in self._books.pending.items():
            streams[key] = [*streams.get(key, ()), *parts]
        core[[pe for pe, _ in streams], w.C_AWAKE] &= w.AWAKE_BIT
        start = 0
        for number, ((pe, color), parts) in enumerate(streams.items()):
            words = np.concatenate(parts)
            end = start + words.size
            state[w.SOURCE_DATA + start : w.SOURCE_DATA + end] = words
            awake = core[pe, w.C_AWAKE]
            source[number] = (pe, color, start, end, awake >> w.SOURCE_SHIFT)
            core[pe, w.C_AWAKE] = (number + 1) << w.SOURCE_SHIFT | awake & w.AWAKE_BIT
            start = end
        self._wake(np.unique([pe for pe, _ in streams]))
        state[w.G_SOURCES] = state[w.G_SOURCE_ROWS] = len(streams)
        self._books.pending = {}

    def _check_room(self) -> None:
        """Refuse more words from the host than the machine's table takes."""
        unread = self._tables.source[: self._state[w.G_SOURCE_ROWS]]
        num_words = int((unread[:, w.S_END] - unread[:, w.S_NEXT]).sum())
        num_words += sum(part.size for parts in self._books.pending.values() for part in parts)
        room = int(self._state[w.G_SOURCE_ROOM])
        if num_words > room:
            raise error(
                "fabric-stream-too-long",
                f"{num_words:,} words wait to be streamed into PEs, and there is room for {room:,}",
                help="send them in several calls, and wait for each",
            )

    def _unread_streams(self) -> dict[tuple[int, int], list[NDArray[np.uint32]]]:
        """What is left of the table; its PEs forget it."""
        streams: dict[tuple[int, int], list[NDArray[np.uint32]]] = {}
        for row in self._tables.source[: self._state[w.G_SOURCE_ROWS]].tolist():
            pe, color, start, end, _ = row
            self._tables.core[pe, w.C_AWAKE] &= w.AWAKE_BIT
            left = self._state[w.SOURCE_DATA + start : w.SOURCE_DATA + end]
            if left.size:
                streams[pe, color] = [left.astype(np.uint32)]
        return streams

    def _drain(self, state: Array) -> None:
        """Take the records of a band."""
        for kind, cycle, pe, a, b, _ in events_of(state).tolist():
            x, y = self._program.place_of(pe)
            if kind == w.E_SINK:
                self._books.collected.setdefault((pe, a), deque()).append(b)
            elif kind == w.E_LOST:
                self._books.lost[pe, a >> 3, a & 7] += 1
            elif kind == w.E_PRINT:
                text = "".join(chr(c) for c in state[w.TEXT + a : w.TEXT + a + b].tolist())
                self._books.prints.append(Print(cycle, x, y, text))
            elif kind == w.E_FINDING:
                self._books.found.append(findings.read_event(cycle, pe, a, b))
            else:
                link = LINK_LETTERS[a & 7]
                is_control = bool(b & w.CONTROL_BIT)
                self._books.landings.append(
                    Landing(cycle, x, y, a >> 3, link, is_control, b & 0xFFFFFFFF)
                )
        state[w.G_EVENTS] = 0
        state[w.G_TEXT] = 0
