"""Predicts the time of a step: what each part of the machine has to do in each pass.

Parts of the machine work at the same time, so a pass takes as long as the busiest of them. The
passes come one after the other: what the disk has to do in the backward pass, where states are
read and all is written, cannot be done in the forward pass.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from openwafer.training.plan_record import Limit, Mode, StepBytes
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.disk_rates import DiskRates, measure_disk
from openwafer.training.stream.plan.dry_update import update_calls
from openwafer.training.stream.plan.joined_steps import JoinedPass, Passing, pass_seconds
from openwafer.training.stream.plan.machine import measure_link, measure_rates, operators_seconds
from openwafer.training.stream.plan.operators import Allocation
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.streaming_time import streaming_seconds
from openwafer.training.stream.plan.traffic import StepTraffic
from openwafer.training.stream.schedule import UpdateTiming

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
