"""What a streamed step takes on this machine by layer, for steps on several like it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from openwafer.replica_steps import Joined, StreamedStep
from openwafer.training.collectives.chunks import chunk_bytes_at
from openwafer.training.plan_record import Mode
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.layers import PINNED
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.joined_steps import ScheduledStep, layer_seconds
from openwafer.training.stream.plan.machine import measure_rates, operators_seconds
from openwafer.training.stream.plan.operators import Allocation
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.step_time import optimizer_seconds
from openwafer.training.stream.replicas.ownership import StoreSystems, owners_of
from openwafer.training.stream.schedule import Kind, RecordBytes

COPIED: Final = 2
"""Bytes of memory that move for a byte that the store hands out: one read, one written."""
ADDED: Final = 3
"""Those for a byte that is added to a running sum: two read, one written."""


@dataclass(frozen=True)
class MeasuredStep:
    """A streamed step on one of several systems.

    Attributes:
        scheduled: layers share the measured time of a pass as they share its weights.
        memory_bytes_per_second: read and written.
        layouts: of all records.
        store_systems: which systems have records in their stores.
    """

    scheduled: ScheduledStep
    memory_bytes_per_second: float
    layouts: Mapping[str, RecordLayout]
    store_systems: StoreSystems

    def streamed(self, micro_batches: int, num_systems: int) -> StreamedStep:
        """The step on so many systems, with so many micro-batches on all of them together."""
        owners = owners_of(self.layouts, num_systems, self.store_systems)
        return self.scheduled.streamed(micro_batches, owners)

    def joined(self, num_systems: int, link: float, hop_seconds: float) -> Joined:
        """Systems like this one that links of so many bytes a second join."""
        memory = self.memory_bytes_per_second
        return Joined(
            num_systems, link, hop_seconds, memory / COPIED, memory / ADDED, chunk_bytes_at(link)
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
    layers = layer_seconds(visits, sizes, forward, backward)
    updates = {name: optimizing * size / sum(pushed.values()) for name, size in pushed.items()}
    rates = measure_rates(torch.device("cpu"))
    return MeasuredStep(
        ScheduledStep(schedule, visits, sizes, layers, updates),
        rates.memory_bytes_per_second,
        plan.layouts,
        store_systems,
    )
