"""The time of a training step on a number of systems."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from openwafer.planning.memory import UPDATE_BYTES_PER_WEIGHT
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
        micro_batches: that each system works on one after the other.
        update_seconds: that updates keep the parameter store busy, beside the passes; 0 where the
            store is not known.
        tail_seconds: at the end, which nothing hides.
        stretch: times that the passes take as long since a pipeline of layers fills and drains.
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
        by_limit["network"] = self.tail_seconds
        return max(by_limit, key=lambda limit: by_limit[limit])

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
    return StepTime(
        passes,
        micro_batches,
        0.0 if setting.is_resident else update_seconds(system, model, setting),
        tail_seconds(system, model, setting, num_systems),
    )


def update_seconds(system: System, model: ModelShape, setting: Setting) -> float:
    """Of Adam in the parameter store, which updates a layer while others stream.

    36 bytes of each weight move, at 4 TB/s beside a CS-2 (Lie, 2021, on sparsity).
    """
    if system.store_rate is None:
        return 0.0
    kept = model.kept(setting.sparsity)
    return kept * UPDATE_BYTES_PER_WEIGHT / system.store_rate.value


def tail_seconds(system: System, model: ModelShape, setting: Setting, num_systems: int) -> float:
    """What the boundary between two steps shows, ``log2`` of the systems deep.

    Where weights stream: the first layer's gradients climb the tree of the network, are applied,
    and its weights come down again; all other layers are hidden behind passes. Where each system
    holds the weights, a ring sums all gradients at the end.
    """
    levels = math.ceil(math.log2(num_systems))
    hops = 2 * levels * system.hop.value
    if setting.is_resident:
        kept = model.kept(setting.sparsity)
        share = RING_SHARE * (num_systems - 1) / num_systems
        return hops + share * kept * DENSE_BYTES / system.network.value
    down = stream_seconds(system, model, setting)
    up = stream_seconds(system, model, setting, Pass.WEIGHT_GRADIENTS)
    return hops + (up + down + update_seconds(system, model, setting)) / model.layers
