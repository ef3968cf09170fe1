"""Describes a system by the figures that its speed follows from."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from openwafer.figures import Figure

NUM_PASSES = 3
"""Of a training step: forward, gradients of activations, gradients of weights."""


@dataclass(frozen=True)
class SimulatedCycles:
    """Cycles of a network whose weights streamed through a simulated wafer.

    Attributes:
        forward: cycles times cores for each multiply-add with a weight, those of layers without
            weights among them.
        delta: the same of the pass that gives gradients of activations.
        gradient: of the pass that gives gradients of weights.
        told: cycles by kind of layer, and how far the simulator's clock is known to be off.
    """

    forward: Figure
    delta: Figure
    gradient: Figure
    told: tuple[Figure, ...]

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All of them."""
        return self.forward, self.delta, self.gradient, *self.told


@dataclass(frozen=True)
class Fabric:
    """The cores of a wafer, which wavelets reach from core to core.

    Attributes:
        columns, rows: size of the usable rectangle of cores.
        lanes: 16-bit multiply-adds that a core makes in a cycle.
        clock: rate in Hz.
        sum_cycles: cycles that a core spends on each partial sum, beside its products.
        ramp_cycles: cycles from a core to its router, or back.
        core_memory: bytes of one core.
    """

    columns: Figure
    rows: Figure
    lanes: Figure
    clock: Figure
    sum_cycles: Figure
    ramp_cycles: Figure
    core_memory: Figure

    @property
    def memory_bytes(self) -> float:
        """Of all cores that programs use."""
        return self.columns.value * self.rows.value * self.core_memory.value

    @property
    def figures(self) -> Iterator[Figure]:
        """All of them."""
        return (getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class Server:
    """A host with several systems, which share its memory.

    Attributes:
        systems: number of systems in it.
        peers: rate from one of them to another, in bytes/s each way.
        host_memory: memory for all, in bytes.
        host_rate: rate of its reads and writes together, in bytes/s.
    """

    systems: Figure
    peers: Figure
    host_memory: Figure
    host_rate: Figure

    @property
    def figures(self) -> Iterator[Figure]:
        """All of them."""
        return (getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class System:
    """One system; a cluster has several of them.

    Attributes:
        name: name by which a command asks for it.
        title: name for people.
        peak: rate of 16-bit products without zeros to skip, in FLOP/s.
        utilisation: share of the peak that the forward and backward of dense training are known
            to reach.
        forwards_again: forwards that this training repeats to have its activations back.
        memory: memory beside the cores, in bytes.
        memory_rate: rate of reads from it, in bytes/s.
        link: rate to the parameter store and the host, in bytes/s each way.
        network: rate to the other systems, in bytes/s each way.
        hop: time that a message takes at each level of the network, in seconds.
        power: power in W.
        store: parameter store behind the link, in bytes; None where it has none of its own.
        store_rate: rate of its reads and writes together, in bytes/s; None without a store.
        max_systems: most systems of a cluster; None where nobody says.
        fabric: a wafer's fabric; None for a system that computes zeros as other numbers.
        simulated: cycles of a wafer's streamed passes; None where they follow from constants.
        server: server that holds several of them; None where nobody says.
        streams_weights: whether it can train models whose weights it does not hold.
    """

    name: str
    title: str
    peak: Figure
    utilisation: Figure
    forwards_again: Figure
    memory: Figure
    memory_rate: Figure
    link: Figure
    network: Figure
    hop: Figure
    power: Figure
    store: Figure | None = None
    store_rate: Figure | None = None
    max_systems: Figure | None = None
    fabric: Fabric | None = None
    simulated: SimulatedCycles | None = None
    server: Server | None = None
    streams_weights: bool = True

    @property
    def busy_share(self) -> float:
        """Share of the peak that its cores did, forwards again counted.

        A forward and the two passes of a backward take about as many products each.
        """
        return self.utilisation.value * (NUM_PASSES + self.forwards_again.value) / NUM_PASSES

    @property
    def held_memory(self) -> float:
        """Bytes for a model that stays: on a wafer those of the cores that programs use."""
        return self.memory.value if self.fabric is None else self.fabric.memory_bytes

    def peer_rate(self, num_systems: int) -> float:
        """Bytes a second, each way, from one of so many systems to the next."""
        if self.server is not None and num_systems <= self.server.systems.value:
            return self.server.peers.value
        return self.network.value

    def store_bytes(self, num_systems: int) -> float | None:
        """Of the parameter store of so many systems, their share of hosts where it has no own."""
        if self.store is None and self.server is not None:
            return num_systems * self.server.host_memory.value / self.server.systems.value
        return None if self.store is None else self.store.value

    def store_bytes_per_second(self, num_systems: int) -> float | None:
        """That this store reads and writes together."""
        if self.store_rate is None and self.server is not None:
            return num_systems * self.server.host_rate.value / self.server.systems.value
        return None if self.store_rate is None else self.store_rate.value

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All that are known of it."""
        own = [getattr(self, field.name) for field in fields(self)]
        known = [value for value in own if isinstance(value, Figure)]
        parts = (self.fabric, self.simulated, self.server)
        return (*known, *(figure for part in parts if part is not None for figure in part.figures))
