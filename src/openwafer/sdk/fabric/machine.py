"""The machine between two cycles: what the host may do with it, and the one of compiled code.

:class:`Machine` is all that the simulator knows of it. Its numbers of PEs go column after column.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.account import Account, MainTime, account_of, main_time_of
from openwafer.sdk.fabric.edge import Edge, Passed, Port, passed, place_ports
from openwafer.sdk.fabric.engine import (
    ELEMENT_TYPE,
    RUN_TYPE,
    NativeFunction,
    advance_all,
)
from openwafer.sdk.fabric.events import Rows, Scope, look_at, rows_of
from openwafer.sdk.fabric.host_links import HostLinks, place_links
from openwafer.sdk.fabric.load import load
from openwafer.sdk.fabric.report import Lost, Report
from openwafer.sdk.fabric.snapshots import Identity, Snapshot, put_back, taken, version
from openwafer.sdk.fabric.state import Array, Tables
from openwafer.sdk.fabric.stepping import Stepping
from openwafer.sdk.fabric.variables import bits_of_words, fill_unwritten
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.digest import digest_of
from openwafer.sdk.program.program import Program

MAX_BANDS: Final = w.MAX_BANDS
Pes: TypeAlias = NDArray[np.int64]
Wavelets: TypeAlias = NDArray[np.int64]
"""33 bits each: a word, and above it 1 for a control wavelet."""
Stream: TypeAlias = tuple[int, int, int]
"""Number of a PE, color, and the direction of the port that words of the host come by, or
INTO_CORE."""
INTO_CORE: Final = w.FROM_HOST


class Goal(IntEnum):
    """What an advance waits for, beside its limit."""

    CYCLES = w.GOAL_CYCLES
    """Nothing."""
    COMMAND = w.GOAL_COMMAND
    """Every PE has ended the last command and opened its stream again."""
    INJECTED = w.GOAL_INJECTED
    """All words of the host are in the PEs' queues, or have passed their ports."""
    COLLECTED = w.GOAL_COLLECTED
    """PEs have sent what :meth:`Machine.expect` says."""


class Stop(IntEnum):
    """Why an advance came back."""

    GOAL = w.STOP_GOAL
    IDLE = w.STOP_IDLE
    """Nothing moves any more."""
    LIMIT = w.STOP_LIMIT
    DRAIN = w.STOP_DRAIN
    """Events have to be taken."""
    ERROR = w.STOP_ERROR
    STEP = w.STOP_STEP
    """Stepped code has come to where it shall stop; what goes on is the rest of the cycle."""


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


class Machine(Protocol):
    """A rectangle of PEs and their routers, as the host reaches it between two cycles."""

    @property
    def now(self) -> int:
        """The present cycle."""

    @property
    def num_bands(self) -> int:
        """How many bands of columns are simulated side by side."""

    def advance(self, goal: Goal, limit: int) -> Stop:
        """Let cycles go by until a goal is reached, or the cycle `limit`; gives why it stopped."""

    def read(self, pes: Pes, address: int, num_words: int) -> NDArray[np.uint16]:
        """A copy of words of PEs' memory, a row for each."""

    def write(self, pes: Pes, address: int, words: NDArray[np.uint16]) -> None:
        """Put words, a row for each PE or one for all, into memory, in no time."""

    def is_unwritten(self, pes: Pes, address: int, num_words: int) -> bool:
        """Whether words are known to have no value on any of the PEs, as checked runs know."""

    def start_command(
        self, entry_of_image: Sequence[int], arguments: Sequence[int], late: Pes
    ) -> None:
        """Start an entry on every PE, by number of its image; -1 leaves the image's PEs alone.

        The command goes from column to column, hop by hop. Each PE begins once it is idle and its
        command stream is open; those of `late` not before :meth:`deliver_command`.
        """

    def deliver_command(self, pes: Pes) -> None:
        """Let the last command reach PEs that were late."""

    def is_command_done(self) -> bool:
        """Whether every PE has ended the last command and opened its stream again."""

    def inject(self, streams: Mapping[Stream, Sequence[Wavelets]]) -> None:
        """Stream words into cores and ports, behind those that they have not taken yet.

        Raises OpenwaferError, and takes none of them, where there is no room for all.
        """

    def expect(self, color: int, missing: Mapping[int, int]) -> None:
        """Set how many more words PEs have to send on a color until it is reached as a goal.

        Raises OpenwaferError for a color that leads no stream to the host.
        """

    def expect_of_port(self, pe: int, direction: int, num_words: int) -> None:
        """Set how many more words have to leave through a port until that is reached as a goal."""

    def passed(self, port: Port, *, is_into: bool) -> Passed:
        """Words that have passed a port on one of its ways."""

    def count_code(self, addresses: NDArray[np.int64]) -> None:
        """Let code that counts do so from a native address on, each PE's from its own."""

    def events(self) -> Iterator[tuple[Rows, str]]:
        """Take what was noted since it was last asked, band by band, with the text of all prints.

        The data of a print is the number of its first character.
        """

    def statistics(self) -> Statistics:
        """Counts since the start."""

    def account(self, first: int, end: int) -> Account:
        """Where the cycles went of PEs with numbers in a range, of a machine that books time."""

    def main_time(self, first: int, end: int) -> MainTime:
        """The part of the account that is of main threads, and all beats."""

    def report(self, lost: Mapping[Lost, int]) -> Report:
        """What can be told of the present; the host knows of `lost` wavelets."""

    @property
    def stepping(self) -> Stepping:
        """What the host may do with code that is stepped."""

    def overrun_pe(self) -> int | None:
        """The PE that an operation over the end of a variable has stopped; None for none."""

    def snapshot(self) -> Snapshot:
        """What the machine is now; what it has recorded has to be taken before."""

    def restore(self, snapshot: Snapshot) -> None:
        """Make the machine what it was, or what another one of the same program was.

        Raises OpenwaferError for a snapshot of another program, size or version.
        """


@dataclass(frozen=True)
class MachineOptions:
    """What a machine does besides its program; the simulator's options say what it means."""

    num_bands: int
    landing_log: bool
    scope: Scope | None
    stops_at_overrun: bool
    is_checked: bool
    has_plans: bool
    has_account: bool
    is_stepped: bool
    code: str
    edge: Edge
    links: HostLinks | None


class Engine(Machine):
    """The machine of the compiled core.

    Code of PEs is native or interpreted; both come as the two addresses of
    :mod:`openwafer.sdk.program.mailbox`, and everything here holds for either but for snapshots:
    those of interpreted code can be brought back only where no PE waits in the middle of its code.

    Attributes:
        states: the array of each band; the first one has the sums.
        tables: views of what all bands share.
    """

    def __init__(
        self, program: Program, run_address: int, element_address: int, options: MachineOptions
    ) -> None:
        # PEs of several columns share the time of a port.
        num_bands = options.num_bands if options.links is None else 1
        self.states: Final = tuple(load(program, num_bands))
        self.tables: Final = Tables(self.state)
        self._program = program
        self._options = options
        num_pes = program.width * program.height
        self._run = NativeFunction(run_address, RUN_TYPE)
        self._element = NativeFunction(element_address, ELEMENT_TYPE)
        look_at(self.states, options.scope, has_landings=options.landing_log)
        self.state[w.G_STOPS_AT_OVERRUN] = options.stops_at_overrun
        self.state[w.G_IS_CHECKED] = options.is_checked
        self.state[w.G_HAS_PLANS] = options.has_plans
        self.state[w.G_HAS_ACCOUNT] = options.has_account
        self._links = options.links
        if self._links is None:
            place_ports(self.tables, program, options.edge)
        else:
            place_ports(self.tables, program, self._links.edge)
            self._ports = place_links(self.tables, program, self._links)
        self._stepping = Stepping(self.state, self.tables, num_pes, len(program.places))
        if options.is_stepped:
            self._stepping.begin()
        if options.is_checked:
            fill_unwritten(self.states, program)
        self._wake(np.arange(num_pes))

    @property
    def state(self) -> Array:
        """The array of :mod:`openwafer.sdk.fabric.words`, as the first band has it."""
        return self.states[0]

    @property
    def now(self) -> int:
        return int(self.state[w.G_NOW])

    @property
    def num_bands(self) -> int:
        return len(self.states)

    def advance(self, goal: Goal, limit: int) -> Stop:
        return Stop(advance_all(self.states, self._run, self._element, int(goal), limit))

    def read(self, pes: Pes, address: int, num_words: int) -> NDArray[np.uint16]:
        return self.tables.memory[pes, address : address + num_words]

    def write(self, pes: Pes, address: int, words: NDArray[np.uint16]) -> None:
        num_words = words.shape[-1]
        self.tables.memory[pes, address : address + num_words] = words
        if self.state[w.G_IS_CHECKED]:
            self.tables.unwritten[pes] &= ~bits_of_words(address, num_words)

    def is_unwritten(self, pes: Pes, address: int, num_words: int) -> bool:
        is_at_work = self.tables.core[pes, w.C_THREADS] & w.MICROTHREADS != 0
        if not self.state[w.G_IS_CHECKED] or is_at_work.any():
            return False
        bits = bits_of_words(address, num_words)
        return bool(((self.tables.unwritten[pes] & bits) == bits).all())

    def start_command(
        self, entry_of_image: Sequence[int], arguments: Sequence[int], late: Pes
    ) -> None:
        state = self.state
        if not self.is_command_done():
            raise error(
                "fabric-command-runs",
                "the command before has not ended on every PE",
                help="wait with run_until_command_done before",
            )
        state[w.G_ARGUMENTS : w.G_ARGUMENTS + mb.NUM_ARGUMENTS] = 0
        bits = np.array(arguments, np.uint64)
        state[w.G_ARGUMENTS : w.G_ARGUMENTS + len(arguments)] = bits.view(np.int64)
        entries = np.array(entry_of_image, np.int64) + 1
        self.tables.image[: entries.size, w.I_COMMAND] = entries
        started = np.flatnonzero(entries[self._program.images_by_number])
        state[w.G_COMMANDS] = started.size
        # The first column looks around in the next cycle.
        state[w.G_LAUNCHED] = state[w.G_NOW] + 1
        self.deliver_command(np.setdiff1d(started, late) if late.size else started)

    def deliver_command(self, pes: Pes) -> None:
        entries = self.tables.image[:, w.I_COMMAND]
        started = pes[entries[self._program.images_by_number[pes]] > 0]
        self.tables.processor[started, w.P_COMMAND] = w.COMMAND_WAITS
        core = self.tables.core
        resting = started[core[started, w.C_MAIN] == w.MAIN_REST]
        core[resting, w.C_MAIN] = w.MAIN_IDLE
        self._wake(started)

    def is_command_done(self) -> bool:
        return int(self.state[w.G_COMMANDS]) == 0

    def inject(self, streams: Mapping[Stream, Sequence[Wavelets]]) -> None:
        self._check_room(streams)
        state = self.state
        waiting, begun = self._unread_streams()
        for key, parts in streams.items():
            waiting[key] = [*waiting.get(key, ()), *parts]
        start = 0
        for number, (key, parts) in enumerate(waiting.items()):
            words = np.concatenate(parts)
            end = start + words.size
            state[w.SOURCE_DATA + start : w.SOURCE_DATA + end] = words
            self._add_source(number, key, (start, end), begun)
            start = end
        pes, links = np.array([(pe, link) for pe, _, link in waiting], np.int64).reshape(-1, 2).T
        self._wake(np.unique(pes[links == w.FROM_HOST]))
        self._wake_routers(np.unique(pes[links != w.FROM_HOST]))
        state[w.G_SOURCES] = state[w.G_SOURCE_ROWS] = len(waiting)

    def _add_source(
        self, number: int, key: Stream, place: tuple[int, int], begun: Mapping[Stream, int]
    ) -> None:
        """Let words of the table enter a core, or a router by its port.

        Args:
            number: of the row.
            key: of the stream.
            place: of the first word, and of the one behind the last.
            begun: from when words of a stream that is not at its end may have come.
        """
        (pe, color, link), (start, end) = key, place
        if link == w.FROM_HOST:
            awake = int(self.tables.core[pe, w.C_AWAKE])
            before = awake >> w.SOURCE_SHIFT
            chain = (number + 1) << w.SOURCE_SHIFT | awake & w.AWAKE_BIT
            self.tables.core[pe, w.C_AWAKE] = chain
        else:
            port = self.tables.port[link, pe]
            before = int(port[w.N_SOURCE])
            port[w.N_SOURCE] = number + 1
            self.tables.router[pe, w.R_BUSY] |= 1 << (w.PORTS_SHIFT + link)
        way = begin = 0
        if link == w.FROM_HOST and self._links is not None:
            way, hops = int(self._ports[pe]) + w.N_IN, int(self._links.hop_cycles[pe])
            begin = begun.get(key, self.now + hops)
        self.tables.source[number] = (pe, color, start, end, before, link, way, begin)

    def _check_room(self, streams: Mapping[Stream, Sequence[Wavelets]]) -> None:
        """Refuse more words from the host than the machine's table takes."""
        unread = self.tables.source[: self.state[w.G_SOURCE_ROWS]]
        num_words = int((unread[:, w.S_END] - unread[:, w.S_NEXT]).sum())
        num_words += sum(part.size for parts in streams.values() for part in parts)
        room = int(self.state[w.G_SOURCE_ROOM])
        if num_words > room:
            raise error(
                "fabric-stream-too-long",
                f"{num_words:,} words wait to be streamed into PEs, and there is room for {room:,}",
                help="send them in several calls, and wait for each",
            )

    def _unread_streams(self) -> tuple[dict[Stream, list[Wavelets]], dict[Stream, int]]:
        """What is left of the table, and from when on it comes; its PEs and ports forget it."""
        streams: dict[Stream, list[Wavelets]] = {}
        begun: dict[Stream, int] = {}
        for row in self.tables.source[: self.state[w.G_SOURCE_ROWS]].tolist():
            pe, color, start, end, _, link, _, begin = row
            if link == w.FROM_HOST:
                self.tables.core[pe, w.C_AWAKE] &= w.AWAKE_BIT
            else:
                self.tables.port[link, pe, w.N_SOURCE] = 0
            left = self.state[w.SOURCE_DATA + start : w.SOURCE_DATA + end]
            if left.size:
                streams[pe, color, link] = [left.copy()]
                begun[pe, color, link] = begin
        return streams, begun

    def expect(self, color: int, missing: Mapping[int, int]) -> None:
        if not (int(self.state[w.G_SINK_COLORS]) >> color) & 1:
            streams = (f"{name} is {own}" for name, own in self._program.streams)
            raise error(
                "fabric-no-stream",
                f"color {color} leads no stream to the host",
                notes=(", ".join(streams) or "the program has no streams",),
                help="give <memcpy/get_params> a field .MEMCPYD2H_1 with the color",
            )
        slot = int(self.state[w.G_SINK_SLOT + color])
        self._expect_nothing()
        for pe, num_words in missing.items():
            row = self.tables.sink[pe * w.SINKS + slot]
            row[w.K_WANTED] = row[w.K_SENT] + num_words
        self.state[w.G_WANTED] = len(missing)

    def expect_of_port(self, pe: int, direction: int, num_words: int) -> None:
        self._expect_nothing()
        self.tables.port[direction, pe, w.N_WANTED] = num_words
        self.state[w.G_WANTED] = 1

    def _expect_nothing(self) -> None:
        self.tables.sink[:, w.K_WANTED] = -1
        for port in self._options.edge.ports:
            self._port_row(port)[w.N_WANTED] = 0

    def passed(self, port: Port, *, is_into: bool) -> Passed:
        return passed(self._port_row(port), is_into=is_into)

    def _port_row(self, port: Port) -> Array:
        pe = self._program.number_of(port.x, port.y)
        row: Array = self.tables.port[port.side.direction, pe]
        return row

    def count_code(self, addresses: NDArray[np.int64]) -> None:
        self.tables.mailbox[:, mb.COUNTS] = addresses

    def events(self) -> Iterator[tuple[Rows, str]]:
        for state in self.states:
            text = state[w.TEXT : w.TEXT + state[w.G_TEXT]].tolist()
            rows = rows_of(state)
            state[w.G_EVENTS] = state[w.G_TEXT] = 0
            yield rows, "".join(map(chr, text))

    def statistics(self) -> Statistics:
        g, tables = self.state, self.tables
        return Statistics(
            cycles=self.now,
            wavelets=int(g[w.G_WAVELETS]),
            landings=int(g[w.G_LANDINGS]),
            elements=int(g[w.G_ELEMENTS] + tables.mailbox[:, mb.ELEMENTS].sum()),
            tasks=int(tables.processor[:, w.P_TASKS_RUN].sum()),
            switch_changes=int(g[w.G_SWITCHES]),
        )

    def account(self, first: int, end: int) -> Account:
        return account_of(self.state, first, end)

    def main_time(self, first: int, end: int) -> MainTime:
        return main_time_of(self.state, first, end)

    def report(self, lost: Mapping[Lost, int]) -> Report:
        return Report(self._program, self.state, lost)

    @property
    def stepping(self) -> Stepping:
        return self._stepping

    def overrun_pe(self) -> int | None:
        is_overrun = self.state[w.G_ERROR] == w.ERROR_OVERRUN
        return int(self.state[w.G_ERROR_PE]) if is_overrun else None

    def snapshot(self) -> Snapshot:
        return taken(self._identity, self.states)

    def restore(self, snapshot: Snapshot) -> None:
        put_back(self._identity, self.states, snapshot)

    @cached_property
    def _identity(self) -> Identity:
        width, height = self._program.width, self._program.height
        size = f"{width} x {height} PEs in {self.num_bands} bands"
        code = self._options.code + ", its time booked" * self._options.has_account
        edge = f"{self._options.edge}{', for the host as well' * (self._links is not None)}"
        return Identity(digest_of(self._program), size, code, edge, version())

    def _wake(self, pes: Pes) -> None:
        """Let cores look around; `pes` are different ones in ascending order."""
        self._put_on_list(pes, self.tables.core[:, w.C_AWAKE], w.CORE_LIST, w.G_CORES)

    def _wake_routers(self, pes: Pes) -> None:
        """The same of routers."""
        self._put_on_list(pes, self.tables.router[:, w.R_FLAGS], w.ROUTER_LIST, w.G_ROUTERS)

    def _put_on_list(self, pes: Pes, flags: Array, start: int, count: int) -> None:
        pes = pes[flags[pes] & w.AWAKE_BIT == 0]
        flags[pes] |= w.AWAKE_BIT
        for state in self.states:
            own = pes[(pes >= state[w.G_FIRST]) & (pes < state[w.G_END])]
            end = start + int(state[count])
            state[end : end + own.size] = own
            state[count] += own.size
