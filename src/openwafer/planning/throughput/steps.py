"""The time of a training step on a number of systems."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from openwafer.planning.memory import UPDATE_BYTES_PER_WEIGHT, Sharding
from openwafer.planning.systems import System
from openwafer.planning.throughput.passes import (
    DENSE_BYTES,
    TRAINING,
    ModelShape,
    Pass,
    PassTime,
    Resource,
    Setting,
    pass_time,
    stream_seconds,
)

RING_SHARE: Final = 2
"""Times that a ring moves all gradients over each link: reduced, then gathered."""


@dataclass(frozen=True)
class StepTime:
    """A step of every system at once.

    Attributes:
        passes: the time of each pass over one micro-batch.
        micro_batches: micro-batches that each system works on one after the other.
        update_seconds: time that updates keep the parameter store busy, beside the passes; 0 where
            the store is not known.
        tail_seconds: time at the end that nothing hides.
        stretch: factor by which the passes take longer, as a pipeline of layers fills and drains.
    """

    passes: Mapping[Pass, PassTime]
    micro_batches: int
    update_seconds: float
    tail_seconds: float
    stretch: float = 1.0

    @property
    def passes_seconds(self) -> float:
        """Of all passes over all micro-batches."""
        seconds = sum(time.seconds for time in self.passes.values())
        return self.stretch * self.micro_batches * seconds

    @property
    def seconds(self) -> float:
        """Of the step: passes or updates, whichever take longer, and the tail."""
        return max(self.passes_seconds, self.update_seconds) + self.tail_seconds

    @property
    def limit(self) -> str:
        """What a step waits for longest: a resource, ``store`` or ``network``."""
        by_limit: dict[str, float] = {}
        for time in self.passes.values():
            seconds = self.stretch * self.micro_batches * time.seconds
            by_limit[time.limit] = by_limit.get(time.limit, 0.0) + seconds
        if self.update_seconds > self.passes_seconds:
            by_limit = {"store": self.update_seconds}
        by_limit["network"] = by_limit.get("network", 0.0) + self.tail_seconds
        return max(by_limit, key=lambda limit: by_limit[limit])

    def computing(self, share: float) -> "StepTime":
        """The same with products that take so many times as long."""
        passes = {
            which: time.having(Resource.COMPUTE, share * time.by_resource[Resource.COMPUTE])
            for which, time in self.passes.items()
        }
        return replace(self, passes=passes)

    def busy_seconds(self, resource: Resource) -> float:
        """Seconds of the step that a resource works, waiting or not."""
        return self.micro_batches * sum(
            time.by_resource.get(resource, 0.0) for time in self.passes.values()
        )


def step_time(
    system: System,
    model: ModelShape,
    tokens: float,
    setting: Setting,
    num_systems: int = 1,
    micro_batches: int = 1,
) -> StepTime:
    """The time of a step of `tokens`, dealt to systems and their micro-batches in equal parts."""
    own = tokens / (num_systems * micro_batches)
    passes = {which: pass_time(system, model, own, setting, which) for which in TRAINING}
    if setting.forwards_again:
        again = pass_time(system, model, own, setting, Pass.RECOMPUTED)
        passes[Pass.RECOMPUTED] = again.times(setting.forwards_again)
    whole = ring_seconds(system, model, setting, num_systems)
    for which, rounds in _rounds(setting).items():
        passes[which] = passes[which].having(Resource.NETWORK, rounds * whole)
    return StepTime(
        passes,
        micro_batches,
        0.0 if setting.is_resident else update_seconds(system, model, setting, num_systems),
        tail_seconds(system, model, setting, num_systems, passes),
    )


def ring_seconds(system: System, model: ModelShape, setting: Setting, num_systems: int) -> float:
    """Of a ring that gathers the shards of all weights, or reduces all gradients to shards."""
    kept = model.kept(setting.sparsity)
    share = (num_systems - 1) / num_systems
    return share * kept * DENSE_BYTES / system.peer_rate(num_systems)


def _rounds(setting: Setting) -> Mapping[Pass, int]:
    """Of the ring, beside each pass over a micro-batch.

    Weights that are sharded are gathered by each pass that needs them, layer by layer; a forward
    again of one layer has those of its gradients. Sharded gradients are reduced as they come.
    """
    found: dict[Pass, int] = {}
    if setting.is_resident and setting.sharding >= Sharding.GRADIENTS:
        found[Pass.WEIGHT_GRADIENTS] = 1
    if setting.is_resident and setting.sharding is Sharding.WEIGHTS:
        found |= {Pass.FORWARD: 1, Pass.ACTIVATION_GRADIENTS: 1}
        if setting.forwards_again > 1:
            found[Pass.RECOMPUTED] = setting.forwards_again - 1
    return found


def update_seconds(
    system: System, model: ModelShape, setting: Setting, num_systems: int = 1
) -> float:
    """Of Adam in the parameter store, which updates a layer while others stream.

    36 bytes of each weight move, at 4 TB/s beside a CS-2 (Lie, 2021, on sparsity).
    """
    rate = system.store_bytes_per_second(num_systems)
    kept = model.kept(setting.sparsity)
    return 0.0 if rate is None else kept * UPDATE_BYTES_PER_WEIGHT / rate


def tail_seconds(
    system: System,
    model: ModelShape,
    setting: Setting,
    num_systems: int,
    passes: Mapping[Pass, PassTime],
) -> float:
    """What the boundary between two steps shows, ``log2`` of the systems deep.

    Where weights stream: the first layer's gradients climb the tree of the network, are applied,
    and its weights come down again; all other layers are hidden behind passes. Where systems hold
    the weights, `_late_seconds` of rings.
    """
    levels = math.ceil(math.log2(num_systems))
    hops = 2 * levels * system.hop.value
    if setting.is_resident:
        whole = ring_seconds(system, model, setting, num_systems)
        return hops + _late_seconds(whole, model.layers, setting.sharding, passes)
    down = stream_seconds(system, model, setting)
    up = stream_seconds(system, model, setting, Pass.WEIGHT_GRADIENTS)
    update = update_seconds(system, model, setting, num_systems)
    return hops + (up + down + update) / model.layers


def _late_seconds(
    whole: float, layers: int, sharding: Sharding, passes: Mapping[Pass, PassTime]
) -> float:
    """What rings of `whole` seconds show, since one layer at least has nothing to hide behind.

    Gradients that stay whole are reduced behind the backward of the last micro-batch (Li et al.
    2020, arXiv 2006.15704, section 3.2.3), shards of states gathered behind the next forward.
    """
    forward = passes[Pass.FORWARD].seconds
    backward = passes[Pass.ACTIVATION_GRADIENTS].seconds + passes[Pass.WEIGHT_GRADIENTS].seconds

    def shown(seconds: float, behind: float) -> float:
        return max(seconds / layers, seconds - behind)

    match sharding:
        case Sharding.NONE:
            return shown(RING_SHARE * whole, backward)
        case Sharding.STATES:
            return shown(whole, backward) + shown(whole, forward)
        case Sharding.GRADIENTS:
            return whole / layers + shown(whole, forward)
        case Sharding.WEIGHTS:
            return RING_SHARE * whole / layers
