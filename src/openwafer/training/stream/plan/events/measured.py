"""What a streamed step takes on this machine by layer, for steps on several like it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from openwafer.training.plan_record import Mode
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.layers import PINNED
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.events.event_run import (
    LayerSeconds,
    ModelledRates,
    ModelledStep,
    layer_seconds,
)
from openwafer.training.stream.plan.machine import measure_rates, operators_seconds
from openwafer.training.stream.plan.operators import Allocation
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.step_time import optimizer_seconds
from openwafer.training.stream.replicas.ownership import StoreSystems, owners_of
from openwafer.training.stream.schedule import Kind, RecordBytes, Schedule, Visit

COPIED: Final = 2
"""Bytes of memory that move for a byte that the store hands out: one read, one written."""
ADDED: Final = 3
"""Those for a byte that is added to a running sum: two read, one written."""


@dataclass(frozen=True)
class MeasuredStep:
    """A streamed step on one of several systems.

    Attributes:
        schedule, visits, sizes: of the step.
        layers: seconds of a layer for one micro-batch. Layers share the measured time of a pass as
            they share its weights.
        updates: seconds of the update of each trained record.
        memory_bytes_per_second: read and written.
        layouts: of all records.
        store_systems: which systems have records in their stores.
    """

    schedule: Schedule
    visits: Sequence[Visit]
    sizes: Mapping[str, RecordBytes]
    layers: Mapping[str, LayerSeconds]
    updates: Mapping[str, float]
    memory_bytes_per_second: float
    layouts: Mapping[str, RecordLayout]
    store_systems: StoreSystems

    def owners(self, num_systems: int) -> Mapping[str, int]:
        """The system of so many whose store has a record."""
        return owners_of(self.layouts, num_systems, self.store_systems)

    def rates(self, link: float, hop_seconds: float, chunk_bytes: int) -> ModelledRates:
        """Those of systems like this one that links join."""
        memory = self.memory_bytes_per_second
        return ModelledRates(link, hop_seconds, memory / COPIED, memory / ADDED, chunk_bytes)

    def on(self, rates: ModelledRates, blocks: Sequence[int]) -> ModelledStep:
        """The step on systems that have so many micro-batches each."""
        return ModelledStep(
            self.schedule,
            self.visits,
            self.sizes,
            self.layers,
            self.updates,
            rates,
            blocks,
            self.owners(len(blocks)),
        )


def measure_step(
    plan: StreamPlan,
    updater: Updater,
    device: Device,
    allocation: Allocation,
    micro_batches: int,
    store_systems: StoreSystems,
) -> MeasuredStep:
    """Time the operators of a plan for so many micro-batches."""
    schedule = plan.schedule
    assert schedule is not None
    assert plan.mode is Mode.STREAMED
    pushed = {a.target: a.num_bytes for a in schedule.actions if a.kind is Kind.PUSH}
    sizes = {
        name: RecordBytes(layout.part_bytes(Part.WEIGHTS), pushed.get(name, 0))
        for name, layout in plan.layouts.items()
        if name != PINNED
    }
    visits = plan.dry.visits
    forward, backward = (
        operators_seconds(calls, device.torch_device, allocation=allocation) / micro_batches
        for calls in (plan.calls.forward, plan.calls.backward)
    )
    optimizing = sum(optimizer_seconds(plan, updater, schedule.timing, device))
    rates = measure_rates(torch.device("cpu"))
    return MeasuredStep(
        schedule,
        visits,
        sizes,
        layer_seconds(visits, sizes, forward, backward),
        {name: optimizing * size / sum(pushed.values()) for name, size in pushed.items()},
        rates.memory_bytes_per_second,
        plan.layouts,
        store_systems,
    )
