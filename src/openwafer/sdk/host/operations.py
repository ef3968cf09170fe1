"""What a host script asks of the fabric, as records, and the one interpreter that carries them out.

A copy moves its data between simulated cycles and then lets the fabric run for as many cycles as
the transport of the data takes. That is ideal, one wavelet a cycle for each channel, plus the
rectangle's columns and rows, or by the links at the edge. What goes through a port moves as
wavelets do, from cycle to cycle.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity
from openwafer.sdk.host import copies
from openwafer.sdk.host.checks import Warnings
from openwafer.sdk.host.copies import RegionMemory, overrun_of_copy, region_memory
from openwafer.sdk.host.region import Region
from openwafer.sdk.host.rules import Rules
from openwafer.sdk.host.symbols import HostSymbols
from openwafer.sdk.host.tensors import DataType

if TYPE_CHECKING:
    from openwafer.sdk.fabric import Simulator

SETTLE_CYCLES: Final = 100_000
"""How long a copy, or the end of a run, waits for the fabric to come to rest."""

Words: TypeAlias = NDArray[np.uint32]


@dataclass(frozen=True)
class CopyTo:
    """Write a tensor to the memory of a region of PEs.

    Attributes:
        variable: id of the exported variable or pointer.
        data_type: size of an element on the device.
        words: shape (h, w, l); 16-bit data stands in the low halves.
    """

    variable: int
    region: Region
    data_type: DataType
    words: Words


@dataclass(frozen=True)
class CopyFrom:
    """Read a tensor, shape (h, w, l), from the memory of a region of PEs."""

    variable: int
    region: Region
    data_type: DataType


@dataclass(frozen=True)
class Launch:
    """Start an exported function, by its id, on every PE that exports it.

    Attributes:
        arguments: raw bits of each.
    """

    function: int
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Send:
    """Stream a tensor, shape (h, w, l), to the cores of a region, and let the fabric rest."""

    color: int
    region: Region
    words: Words


@dataclass(frozen=True)
class Receive:
    """Take a tensor, shape (h, w, l), that the cores of a region stream to the host."""

    color: int
    region: Region


@dataclass(frozen=True)
class ReceiveRest:
    """Take what PE (x, y) streams to the host until the fabric is at rest: shape (n,)."""

    color: int
    x: int
    y: int


@dataclass(frozen=True)
class SendPort:
    """Let words wait to enter the fabric through a port; no time goes by.

    Attributes:
        port: its name.
        words: shape (n,), or (2, n): behind the words 1 for each that is a control wavelet.
    """

    port: str
    color: int
    words: Words


@dataclass(frozen=True)
class ReceivePort:
    """Take words that leave the fabric through a port, once they have.

    The host gets the shape (2, n): behind the words 1 for each that is a control wavelet.
    """

    port: str
    color: int
    num_words: int


@dataclass(frozen=True)
class Wait:
    """Let what was launched end and the fabric come to rest."""


@dataclass(frozen=True)
class Stop:
    """The same at the run's end, with what is left over noted."""


Operation: TypeAlias = (
    CopyTo | CopyFrom | Launch | Send | Receive | ReceiveRest | Wait | Stop | SendPort | ReceivePort
)
OPERATIONS: Final[Mapping[str, type[Operation]]] = MappingProxyType(
    {
        "copy to": CopyTo,
        "copy from": CopyFrom,
        "launch": Launch,
        "send": Send,
        "receive": Receive,
        "receive rest": ReceiveRest,
        "wait": Wait,
        "stop": Stop,
        "send port": SendPort,
        "receive port": ReceivePort,
    }
)
"""By the name that a journal has for them; their order is that of the numbers in a record."""


class Interpreter:
    """Carries out operations on a simulated fabric, one after the other.

    Args:
        symbols: names of the program that the fabric runs.
        simulator: the fabric.
        warnings: takes what operations are warned of.
        rules: how mistakes are taken, and what a stop waits for.

    Attributes:
        failure: the error of the last operation that raised one, as it is shown, or that the user
            interrupted it.
        copy_cycles: cycles that copies take; the clock stands still in those in which nothing moves
            on the fabric.
    """

    failure: str | None = None
    copy_cycles: int = 0

    def __init__(
        self, symbols: HostSymbols, simulator: "Simulator", warnings: Warnings, rules: Rules
    ) -> None:
        self.simulator = simulator
        self._symbols = symbols
        self._warnings = warnings
        self._rules = rules

    def carry_out(self, operation: Operation) -> Words | None:
        """Do it; returns what the host gets. Raises OpenwaferError where the program fails."""
        try:
            return self._done(operation)
        except OpenwaferError as failure:
            self.failure = str(failure)
            raise
        except KeyboardInterrupt:
            self.failure = interruption(self.simulator.cycle)
            raise

    def _done(self, operation: Operation) -> Words | None:
        match operation:
            case CopyFrom():
                return self._copy_from(operation)
            case Receive():
                return self._receive(operation)
            case ReceiveRest(color, x, y):
                self.simulator.run_until_idle()
                return self.simulator.take(color, x, y, self.simulator.num_collected(color, x, y))
            case SendPort() | ReceivePort():
                return self._pass_port(operation)
            case CopyTo():
                self._copy_to(operation)
            case Launch():
                self._launch(operation)
            case Send():
                self._send(operation)
            case Wait():
                self._settle()
            case Stop():
                self._come_to_rest()
            case other:
                assert_never(other)
        return None

    def _pass_port(self, operation: SendPort | ReceivePort) -> Words | None:
        simulator, color = self.simulator, operation.color
        port = simulator.edge.named(operation.port)
        if isinstance(operation, SendPort):
            simulator.send_to_port(port, color, _wavelets(operation.words))
            return None
        wavelets = simulator.take_of_port(port, color, operation.num_words)
        return np.stack([wavelets & 0xFFFFFFFF, wavelets >> 32]).astype(np.uint32)

    def _copy_to(self, operation: CopyTo) -> None:
        self._settle()
        memory = self._memory(operation)
        copies.write(self.simulator, memory, operation.words, operation.data_type)
        self._transport(operation.region, is_into=True)

    def _copy_from(self, operation: CopyFrom) -> Words:
        self._settle()
        memory = self._memory(operation)
        variable = self._symbols.variable(operation.variable)
        self._warnings.note(copies.unwritten(self.simulator, memory, variable))
        result = copies.read(self.simulator, memory, operation.region, operation.data_type)
        self._transport(operation.region, is_into=False)
        return result

    def _memory(self, copy: CopyTo | CopyFrom) -> RegionMemory:
        """Where a copy reads or writes; notes when it goes over the end of the variable."""
        variable = self._symbols.variable(copy.variable)
        num_words = copy.region.num_elements * copy.data_type.num_words
        memory = region_memory(self._symbols, self.simulator, variable, copy.region, num_words)
        found = overrun_of_copy(self._symbols, memory, variable, copy.data_type)
        if found is not None and self._rules.stops_at_overrun:
            raise OpenwaferError(replace(found, severity=Severity.ERROR))
        if found is not None:
            self._warnings.overruns.setdefault(found.message, found)
        self._warnings.note_copy(self._symbols, memory, variable, copy.data_type)
        return memory

    def _transport(self, region: Region, *, is_into: bool) -> None:
        program, links = self._symbols.program, self.simulator.links
        if links is None:
            channels = max(1, program.channels)
            cycles = -(-math.prod(region.shape) // channels) + program.width + program.height
        else:
            pes = links.numbers(*region.ranges)
            cycles = links.cycles(pes, region.num_elements, is_into=is_into)
        self.simulator.run_cycles(cycles)
        self.copy_cycles += cycles

    def _launch(self, operation: Launch) -> None:
        entries = self._symbols.entries(self._symbols.function(operation.function))
        self.simulator.run_until_command_done()
        delays, program = self._rules.delays, self._symbols.program
        num_pes = program.width * program.height
        turns = delays.turns(num_pes, operation.function) if delays is not None else []
        late = [pes for _, pes in turns[1:]]
        self.simulator.start_command(entries, operation.arguments, late)
        for cycles, pes in turns[1:]:
            self.simulator.run_cycles(cycles)
            self.simulator.deliver_command(pes)

    def _send(self, operation: Send) -> None:
        for row, column, x, y in operation.region.pes():
            words = np.ascontiguousarray(operation.words[row, column])
            self.simulator.inject(operation.color, x, y, words)
        self._rest()

    def _receive(self, operation: Receive) -> Words:
        color, region = operation.color, operation.region
        pes = [(x, y) for _, _, x, y in region.pes()]
        self.simulator.run_until_collected(color, pes, region.num_elements)
        result = np.empty(region.shape, np.uint32)
        for row, column, x, y in region.pes():
            result[row, column] = self.simulator.take(color, x, y, region.num_elements)
        return result

    def _settle(self) -> None:
        self.simulator.run_until_command_done()
        self._rest()

    def _rest(self) -> bool:
        """Let the fabric come to rest, as long as that is while words pass ports."""
        before = -1
        while before != (now := _num_passed(self.simulator)):
            before = now
            if self.simulator.run_until_idle(SETTLE_CYCLES):
                return True
        return False

    def _come_to_rest(self) -> None:
        try:
            self.simulator.run_until_command_done()
        except OpenwaferError as error:
            is_allowed = self._rules.can_stop_unfinished
            if not (is_allowed and self.simulator.lacks_open_streams_only()):
                raise
            self._warnings.unfinished = tuple(map(_unfinished, error.diagnostics))
        is_at_rest = self.simulator.run_until_idle() if self._rules.can_idle else self._rest()
        self._warnings.left_over = self.simulator.left_over(is_at_rest=is_at_rest)


def _num_passed(simulator: "Simulator") -> int:
    """How many words have passed ports, on both ways."""
    ports = simulator.edge.ports if simulator.links is None else simulator.links.ports
    ways = [(port, is_into) for port in ports for is_into in (True, False)]
    return sum(simulator.passed(port, is_into=is_into).num_words for port, is_into in ways)


def _wavelets(words: Words) -> NDArray[np.int64]:
    """Words of a port as the fabric has them, 33 bits each."""
    wide: NDArray[np.int64] = words.astype(np.int64)
    return wide if wide.ndim == 1 else wide[0] | wide[1] << 32


def interruption(cycle: int) -> str:
    """That the user has interrupted a run, in words."""
    return f"the user interrupted the run at cycle {cycle:,}"


def _unfinished(found: Diagnostic) -> Diagnostic:
    """The warning that takes the place of an error about a command without an end."""
    note = "a launch or a copy behind this one would wait for ever"
    return replace(found, severity=Severity.WARNING, notes=(*found.notes, note))
