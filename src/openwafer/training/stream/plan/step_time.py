"""Predicts the time of a step: what each part of the machine has to do in each pass.

Parts of the machine work at the same time, so a pass takes as long as the busiest of them. The
passes come one after the other: what the disk has to do in the backward pass, where states are
read and all is written, cannot be done in the forward pass.
"""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

import torch

from openwafer.replica_steps import Joined, LayerWork, StreamedStep, replica_step
from openwafer.training.collectives.chunks import chunk_bytes_at
from openwafer.training.collectives.network_rates import NetworkRates
from openwafer.training.plan_record import Limit, Mode, StepBytes
from openwafer.training.store.layout import ArraySpec, Part, RecordLayout
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.layers import PINNED
from openwafer.training.stream.link.updates import UpdateCounts, Updater
from openwafer.training.stream.plan.fake_tensors import faked
from openwafer.training.stream.plan.machine import (
    DiskRates,
    measure_disk,
    measure_link,
    measure_rates,
    operators_seconds,
    streaming_seconds,
)
from openwafer.training.stream.plan.operators import (
    Allocation,
    Calls,
    CallsByKind,
    CountingMeter,
    Operator,
)
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.traffic import StepTraffic
from openwafer.training.stream.replicas.ownership import StoreSystems, owners_of
from openwafer.training.stream.schedule import (
    Action,
    Kind,
    RecordBytes,
    Schedule,
    UpdateTiming,
    Visit,
)
from openwafer.training.torch_private import FakeTensorMode

Work = Mapping[Limit, float]
"""Seconds that each part of the machine is busy in a pass."""


@dataclass(frozen=True)
class StepTime:
    """A prediction: the seconds of a step, and the part of the machine that is busy longest."""

    seconds: float
    limit: Limit


@dataclass(frozen=True)
class Overlap:
    """How far the disk and the others work at the same time.

    Attributes:
        num_records: on disk; a pass has to wait for the first of them.
        ring_records: how many the ring has room for. While one is updated, another can be read or
            written if there is room for two.
    """

    num_records: int
    ring_records: float

    @property
    def share(self) -> float:
        """What part of the lesser work goes on beside the greater."""
        return min(max(self.ring_records - 1, 0.0), 1.0)

    def seconds(self, work: Work) -> float:
        """The time of a pass."""
        disk = work.get(Limit.DISK, 0.0)
        others = max((work[limit] for limit in work if limit is not Limit.DISK), default=0.0)
        alone = (1 - self.share) * min(disk, others)
        return max(disk, others) + alone + disk / max(self.num_records, 1)


def step_time(passes: Sequence[Work], overlap: Overlap, least: Sequence[float]) -> StepTime:
    """The time of passes one after the other, in each of which all parts work at once.

    Args:
        passes: what each part does in them.
        overlap: of the disk with the others.
        least: seconds that each pass takes because some parts wait for others.
    """
    totals = {limit: sum(work.get(limit, 0.0) for work in passes) for limit in Limit}
    seconds = sum(map(max, map(overlap.seconds, passes), least))
    return StepTime(seconds, max(totals, key=totals.__getitem__))


@dataclass(frozen=True)
class LayerSeconds:
    """What a device takes for a layer and a micro-batch; a backward with its recomputation."""

    forward: float
    backward: float


def layer_seconds(
    visits: Sequence[Visit], sizes: Mapping[str, RecordBytes], forward: float, backward: float
) -> dict[str, LayerSeconds]:
    """What layers take of passes of so many seconds: they share these as they share weights."""
    own = {visit.layer: sum(sizes[record].weights for record in visit.records) for visit in visits}
    total = sum(own[visit.layer] for visit in visits)
    shares = {layer: num_bytes / total for layer, num_bytes in own.items()}
    return {name: LayerSeconds(one * forward, one * backward) for name, one in shares.items()}


@dataclass(frozen=True)
class ScheduledStep:
    """A streamed step, and what its parts take.

    Attributes:
        schedule, visits, sizes: of the step; see :func:`~openwafer.training.stream.schedule.build`.
        layers: seconds of each layer for one micro-batch.
        updates: seconds of the update of each trained record.
    """

    schedule: Schedule
    visits: Sequence[Visit]
    sizes: Mapping[str, RecordBytes]
    layers: Mapping[str, LayerSeconds]
    updates: Mapping[str, float]

    def streamed(self, micro_batches: int, owners: Mapping[str, int]) -> StreamedStep:
        """The step as the formula takes it.

        Gradients of shared weights leave with their first use, and a layer of several records has
        the owner of the largest.

        Args:
            micro_batches: of all systems.
            owners: the system whose store has a record.
        """
        layers, seen = [], set[str]()
        forward, backward = self._fetched()
        for visit in self.visits:
            new = [record for record in visit.records if record not in seen]
            seen.update(new)
            takes = self.layers[visit.layer]
            largest = max(visit.records, key=lambda record: self.sizes[record].weights)
            layers.append(
                LayerWork(
                    takes.forward,
                    takes.backward,
                    sum(self.sizes[record].weights for record in visit.records),
                    sum(self.sizes[record].gradients for record in new),
                    sum(self.updates.get(record, 0.0) for record in new),
                    (forward[visit.layer], backward[visit.layer]),
                    owners[largest],
                )
            )
        is_on_fetch = self.schedule.timing is UpdateTiming.ON_FETCH
        return StreamedStep(layers, micro_batches, self.schedule.capacity_bytes, is_on_fetch)

    def _fetched(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Bytes that each layer is the next to use, fetched for its forward and its backward."""
        records_of = {visit.layer: visit.records for visit in self.visits}
        by_pass: dict[Kind, Counter[str]] = {Kind.FORWARD: Counter(), Kind.BACKWARD: Counter()}
        waiting: Counter[str] = Counter()
        for action in self.schedule.actions:
            if action.kind is Kind.FETCH:
                waiting[action.target] += action.num_bytes
            elif action.kind in by_pass:
                used = records_of[action.target]
                by_pass[action.kind][action.target] += sum(waiting.pop(one, 0) for one in used)
        return by_pass[Kind.FORWARD], by_pass[Kind.BACKWARD]


@dataclass(frozen=True)
class Passing:
    """Systems that weights and gradients pass between.

    Attributes:
        rates: measured.
        num_systems: how many there are.
        owners: the system whose store has a record.
    """

    rates: NetworkRates
    num_systems: int
    owners: Mapping[str, int]


class JoinedPass(NamedTuple):
    """What a pass takes on several systems.

    Attributes:
        network: that links are busy, beside compute.
        rows: for those that are computed elsewhere, which compute waits for.
        computing: with the operators of its layers, some of which links wait for.
    """

    network: float
    rows: float
    computing: float


def pass_seconds(
    plan: StreamPlan, traffic: StepTraffic, passing: Passing, computing: Sequence[float]
) -> tuple[JoinedPass, JoinedPass]:
    """Seconds of the forward and of the backward pass of a step on several systems.

    Args:
        plan, traffic: of one of them.
        passing: see :class:`Passing`.
        computing: seconds of the operators, by pass.
    """
    assert plan.schedule is not None
    actions, rates = plan.schedule.actions, passing.rates
    forward = list(takewhile(lambda action: action.kind is not Kind.BACKWARD, actions))
    # What a system reads, adds and updates is no part of what links wait for.
    joined = Joined(
        passing.num_systems,
        link=rates.weights,
        hop_seconds=0.0,
        store=inf,
        adding=inf,
        chunk_bytes=chunk_bytes_at(rates.weights),
        turn_seconds=rates.turn_seconds,
    )
    links, both = (
        replica_step(_streamed(plan, passing, by_pass), joined)
        for by_pass in ((0.0, 0.0), computing)
    )
    parts = (
        (links.forward_seconds, both.forward_seconds, forward, traffic.forward),
        (links.backward_seconds, both.backward_seconds, actions[len(forward) :], traffic.backward),
    )
    rows = traffic.row_bytes / len(parts) / rates.weights
    found = []
    for of_links, of_both, scheduled, moved in parts:
        # What no schedule foresees passes beside it.
        more = (moved.fetch - _bytes_of(scheduled, Kind.FETCH)) / rates.weights
        more += (moved.push - _bytes_of(scheduled, Kind.PUSH)) / rates.gradients
        found.append(JoinedPass(of_links + more, rows, of_both + more))
    return found[0], found[1]


def _bytes_of(actions: Sequence[Action], kind: Kind) -> int:
    return sum(action.num_bytes for action in actions if action.kind is kind)


def _streamed(plan: StreamPlan, passing: Passing, computing: Sequence[float]) -> StreamedStep:
    """The step with a block of micro-batches a system.

    Gradients are longer here by as much as they pass more slowly.
    """
    assert plan.schedule is not None
    actions, rates = plan.schedule.actions, passing.rates
    weights = {one.target: one.num_bytes for one in actions if one.kind is Kind.FETCH}
    gradients = {
        one.target: round(one.num_bytes * rates.weights / rates.gradients)
        for one in actions
        if one.kind is Kind.PUSH
    }
    sizes = {r: RecordBytes(weights[r], gradients.get(r, 0)) for r in weights}
    layers = layer_seconds(plan.dry.visits, sizes, *computing)
    step = ScheduledStep(plan.schedule, plan.dry.visits, sizes, layers, updates={})
    return step.streamed(passing.num_systems, passing.owners)


@dataclass(frozen=True)
class Prediction:
    """What is known of a step before it runs.

    Attributes:
        time: ``None`` where the step waits for a disk that cannot be measured.
        disk: rates of the disk that the store will be on; ``None`` without one, too.
        host_bytes: most host memory that the process will hold; ``None`` where the kernel does not
            say what it holds now.
        updating: seconds of the step in which weights are updated.
    """

    time: StepTime | None = None
    disk: DiskRates | None = None
    host_bytes: int | None = None
    updating: float | None = None


@dataclass(frozen=True)
class Beside:
    """What a step uses beside its process.

    Attributes:
        folder: where a store on disk will be.
        network: several systems, where it is known how fast weights pass between them.
    """

    folder: Path | None = None
    network: Passing | None = None


@dataclass(frozen=True)
class Rates:
    """Of the disk, and passes over a network; ``None`` is not there, or not known."""

    disk: DiskRates | None = None
    network: Sequence[JoinedPass] | None = None


def predict(
    plan: StreamPlan,
    traffic: StepTraffic,
    updater: Updater,
    device: Device,
    allocation: Allocation,
    beside: Beside,
) -> Prediction:
    """Predict the time of a plan's step on this machine.

    Args:
        plan: the step on the device.
        traffic: what it moves.
        updater: the rules that are applied.
        device: where the step runs.
        allocation: makes the context in which it allocates.
        beside: where the bytes go that leave this process.
    """
    folder = beside.folder if _waits_for_disk(traffic) else None
    disk = None if folder is None else measure_disk(folder)
    around = streaming_seconds(plan, device)
    by_pass = (plan.calls.forward, around.forward), (plan.calls.backward, around.backward)
    computing = [
        max(operators_seconds(calls, device.torch_device, allocation=allocation) + seconds, 0.0)
        for calls, seconds in by_pass
    ]
    optimizing = optimizer_seconds(plan, updater, traffic.timing, device)
    passing = beside.network
    network = None if passing is None else pass_seconds(plan, traffic, passing, computing)
    time = time_of(plan, traffic, computing, optimizing, device, Rates(disk, network))
    return Prediction(time, disk, updating=sum(optimizing))


def time_of(
    plan: StreamPlan,
    traffic: StepTraffic,
    computing: Sequence[float],
    optimizing: Sequence[float],
    device: Device,
    rates: Rates,
) -> StepTime | None:
    """The time of a step from what is measured.

    Args:
        plan, traffic, device: see :func:`predict`.
        computing: seconds of the step's operators, by pass.
        optimizing: seconds of updates and of gradients that wait for them, by pass.
        rates: of what is shared with others.
    """
    disk, network = rates.disk, rates.network
    if disk is None and _waits_for_disk(traffic):
        return None
    uses_link = device.is_asynchronous and traffic.step.fetch + traffic.step.push > 0
    link_rate = measure_link(device) if uses_link else None
    works = []
    passes = traffic.forward, traffic.backward
    waits = (None,) * len(passes) if network is None else network
    by_pass = zip(computing, optimizing, passes, waits, strict=True)
    for operators, updates, moved, passing in by_pass:
        if device.is_asynchronous and plan.mode is Mode.STREAMED:
            works.append({Limit.COMPUTE: operators, Limit.UPDATE: updates})
        else:
            works.append({Limit.COMPUTE: operators + updates})
        if link_rate is not None:
            works[-1][Limit.LINK] = max(moved.fetch, moved.push) / link_rate
        if passing is not None:
            works[-1][Limit.NETWORK] = passing.network
            works[-1][Limit.COMPUTE] += passing.rows
        if disk is not None:
            works[-1][Limit.DISK] = disk.seconds(moved.disk_read, moved.disk_write)
            works[-1][Limit.COMPUTE] += _host_seconds(moved, disk)
    least = [0.0 if passing is None else passing.computing for passing in waits]
    return step_time(works, Overlap(len(plan.layouts), traffic.ring_records), least)


def _waits_for_disk(traffic: StepTraffic) -> bool:
    return traffic.step.disk_read + traffic.step.disk_write > 0


def _host_seconds(moved: StepBytes, disk: DiskRates) -> float:
    """What transfers and checksums take from compute that uses every processor.

    An operator ends with the slowest of its threads.
    """
    if torch.get_num_threads() < len(os.sched_getaffinity(0)):
        return 0.0
    return (moved.disk_read + moved.disk_write) * disk.host_seconds_per_byte


def optimizer_seconds(
    plan: StreamPlan, updater: Updater, timing: UpdateTiming, device: Device
) -> tuple[float, float]:
    """Seconds for updates, and for gradients that are kept until then, by pass.

    Gradients that wait for the whole step's norm are read for it, and copied into the store.
    """
    is_resident, keeps_gradients = plan.mode is Mode.RESIDENT, timing is UpdateTiming.ON_FETCH
    home = device.torch_device if is_resident else torch.device("cpu")
    received = frozenset(plan.dry.received)
    calls = update_calls(plan.layouts, received, updater, clips=keeps_gradients)
    updating = operators_seconds(calls, home, is_cold=True)
    if not keeps_gradients:
        return 0.0, updating
    num_bytes = sum(layout.bytes_of_weights(received) for layout in plan.layouts.values())
    rate = measure_rates(home).memory_bytes_per_second
    return updating, (1 if is_resident else 3) * num_bytes / rate


# Any that is not 1, at which gradients need not be multiplied.
CLIPPING = 0.5
_Shape = tuple[tuple[torch.dtype, tuple[int, ...], tuple[int, ...] | None], ...]


class _HollowRecord:
    """The arrays of a record, without memory under a fake tensor mode."""

    def __init__(self, layout: RecordLayout) -> None:
        self._specs = {
            (place.spec.name, part): place.spec
            for part, places in layout.parts.items()
            for place in places
        }

    def tensor(self, array_name: str, part: Part) -> torch.Tensor:
        """See :class:`~openwafer.training.stream.link.updates.Arrays`."""
        return _empty(self._specs[array_name, part])


def _empty(spec: ArraySpec) -> torch.Tensor:
    # Bits that stand for elements must not stand for others than there are.
    if not spec.shape:
        # A count that a rule may compute with, on the host.
        return torch.ones((), dtype=spec.dtype)
    array = spec.empty()
    return array if spec.dtype.is_floating_point else array.zero_()


def update_calls(
    layouts: Mapping[str, RecordLayout],
    received: Collection[str],
    updater: Updater,
    *,
    clips: bool,
) -> CallsByKind:
    """The calls of all updates of a step.

    Args:
        layouts: the records; of those that are alike one is updated.
        received: parameters that get a gradient.
        updater: the rules; its counts are as before.
        clips: whether gradients are multiplied first.
    """
    alike: dict[object, list[RecordLayout]] = {}
    for layout in layouts.values():
        alike.setdefault(_shapes(layout), []).append(layout)
    total: dict[Operator, Calls] = {}
    for first, *others in alike.values():
        each = _calls_of(first, frozenset(received), updater, CLIPPING if clips else 1.0)
        for kind, calls in each.items():
            known = total.setdefault(kind, replace(calls, number=0))
            known.number += calls.number * (1 + len(others))
    return total


def _shapes(layout: RecordLayout) -> tuple[_Shape, ...]:
    return tuple(
        tuple(
            (place.spec.dtype, place.spec.shape, place.spec.strides) for place in layout.parts[part]
        )
        for part in (Part.WEIGHTS, Part.STATES)
    )


def _calls_of(
    layout: RecordLayout, received: Collection[str], updater: Updater, coefficient: float
) -> CallsByKind:
    weights = [place.spec for place in layout.parts[Part.WEIGHTS] if place.spec.name in received]

    def walk(mode: FakeTensorMode | None) -> CallsByKind:
        del mode
        gradients = {weight.name: _empty(weight) for weight in weights}
        counts = updater.counts
        # A first update is not like those that follow.
        ones = dict.fromkeys(gradients, 1)
        updater.counts = UpdateCounts(1, ones, dict(ones))
        meter = CountingMeter()
        try:
            with torch.no_grad(), meter:
                updater.apply(_HollowRecord(layout), gradients, updater.this_step(coefficient))
        finally:
            updater.counts = counts
        return meter.take_calls()

    return faked(walk)


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
