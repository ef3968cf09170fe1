"""Measures what a plan's times rest on: what this machine takes for the operators of a step.

Every kind of operator that a step calls is called here, with tensors of the same shapes, and
timed: new pages, caches, threads and instruction sets are those of the step. What is too large to
be tried is reckoned from two rates; operators on sparse weights are tried with random patterns, in
part where they are large.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

import torch
import xxhash
from torch import nn

from openwafer.training.plan_record import Activations, Mode
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.pages import HostBuffer
from openwafer.training.store.parameter_store import ParameterStore, StoreOptions, Tier
from openwafer.training.store.store_file import (
    FileIo,
    TransferError,
    free_bytes_of,
    open_direct,
    transfer_fully,
)
from openwafer.training.stream import schedule as schedules
from openwafer.training.stream.device.device import ALWAYS_METERED, CpuDevice, Device
from openwafer.training.stream.execute.execution import StepContext, StreamedExecution
from openwafer.training.stream.execute.thread_state import keeping_torch_generators
from openwafer.training.stream.layers import partition
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.dry_run import DryRunSettings, DryStep
from openwafer.training.stream.plan.operators import (
    Allocation,
    Calls,
    CallsByKind,
    CountingMeter,
    Operator,
)
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.workload import Workload
from openwafer.training.stream.records import lay_out_records
from openwafer.training.stream.schedule import Schedule, UpdateTiming, Visit
from openwafer.training.stream.step_plan import StepPlan, record_bytes

Clock: TypeAlias = Callable[[], float]
"""Seconds from some moment on."""
NUM_CALLS: Final = 3


# It is a part of every call of a step: that other programs hold some trials up must not show.
NUM_OVERHEAD_CALLS: Final = 15


# Operators above these are reckoned: a trial has to be short and take little memory.
LONGEST_TRIAL_SECONDS: Final = 0.05
LARGEST_TRIAL_BYTES: Final = 256 << 20


# What is less stays in caches from one use to the next.
SMALLEST_COLD_BYTES: Final = 1 << 20


# Larger than caches.
STREAMED_BYTES: Final = 64 << 20
LINK_BYTES: Final = 32 << 20


@dataclass(frozen=True)
class MachineRates:
    """Rates of the machine that computes.

    Attributes:
        flops_per_second: large matrix products.
        memory_bytes_per_second: bytes read and written of arrays beyond the caches.
    """

    flops_per_second: float
    memory_bytes_per_second: float


@cache
def measure_rates(device: torch.device, dtype: torch.dtype = torch.float32) -> MachineRates:
    """Time a matrix product of a dtype and a pass over memory, for about a tenth of a second."""
    size = 4096 if device.type == "cuda" else 1024
    left = torch.ones(size, size, device=device, dtype=dtype)
    product = _seconds(lambda: left @ left, device)
    array = torch.ones(STREAMED_BYTES // 4, device=device)
    both_ways = _seconds(lambda: array.mul_(1.0), device)
    return MachineRates(2 * size**3 / product, 2 * array.nbytes / both_ways)


def measure_link(device: Device) -> float:
    """Bytes a second that go to a device whose copies run beside its compute."""
    if device.link_bytes_per_second is not None:
        return device.link_bytes_per_second
    source = torch.ones(LINK_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source, device=device.torch_device)

    def upload() -> None:
        device.upload(target, source, device.submitted()).wait()

    return LINK_BYTES / _seconds(upload, device.torch_device)


def operators_seconds(
    calls_by_kind: CallsByKind,
    device: torch.device,
    *,
    allocation: Allocation = nullcontext,
    is_cold: bool = False,
    clock: Clock = time.perf_counter,
) -> float:
    """Seconds that calls take on a device, one after the other.

    Args:
        calls_by_kind: the calls.
        device: where they are made.
        allocation: makes the context in which steps allocate.
        is_cold: whether nothing that they use is in a cache before; otherwise all but weights is,
            and weights are as far as all that lies between two uses leaves them there.
        clock: times them; that of a thread knows nothing of other threads and other programs.
    """
    if not calls_by_kind:
        return 0.0
    num_threads, flush = torch.get_num_threads(), _CacheFlush(device)
    between_bytes = _bytes_between_uses(calls_by_kind)
    seconds = 0.0
    with keeping_torch_generators():
        overhead = _call_overhead(device, num_threads, clock)
        for kind, calls in calls_by_kind.items():
            flushed_bytes = _flushed_bytes(kind, calls, between_bytes, is_cold=is_cold)
            trial = _Trial(kind, device, num_threads, clock, flushed_bytes, allocation)
            seconds += calls.number * (overhead + _seconds_of(trial, calls, flush))
    return seconds


def _bytes_between_uses(calls_by_kind: CallsByKind) -> int:
    """What products touch from one use of a weight to that of the next step, as a power of two.

    Steps that differ by little share their trials.
    """
    products = (calls for calls in calls_by_kind.values() if calls.flops)
    num_bytes = sum(calls.number * calls.num_bytes for calls in products)
    if num_bytes <= SMALLEST_COLD_BYTES:
        return 0
    return min(1 << num_bytes.bit_length(), STREAMED_BYTES)


def _flushed_bytes(kind: Operator, calls: Calls, between_bytes: int, *, is_cold: bool) -> int:
    """What is read before a trial, so that caches hold what they hold in a step."""
    if not kind.reads_memory:
        return 0
    if is_cold and calls.num_bytes > SMALLEST_COLD_BYTES:
        return STREAMED_BYTES
    return between_bytes if calls.flops else 0


@cache
def _call_overhead(device: torch.device, num_threads: int, clock: Clock) -> float:
    """Seconds that modules and autograd take for a call beside the operator itself."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(8, 8), nn.GELU())]
    model = nn.Sequential(*layers).to(device)
    x = torch.ones(1, 8, device=device)

    def step() -> None:
        torch.autograd.grad(model(x).sum(), list(model.parameters()))

    with CountingMeter() as meter:
        step()
    each = meter.take_calls()
    trials = ((_Trial(kind, device, num_threads, clock), calls) for kind, calls in each.items())
    bare = sum(
        calls.number * _seconds_of(trial, calls, _CacheFlush(device)) for trial, calls in trials
    )
    number = sum(calls.number for calls in each.values())
    whole = _seconds(step, device, num_calls=NUM_OVERHEAD_CALLS, clock=clock)
    return float(max(whole - bare, 0.0) / number)


@dataclass(frozen=True)
class _Trial:
    """A kind of call, and what else its time depends on."""

    kind: Operator
    device: torch.device
    num_threads: int
    clock: Clock
    flushed_bytes: int = 0
    allocation: Allocation = nullcontext


_KNOWN: Final[dict[_Trial, float]] = {}


class _CacheFlush:
    """Evicts from the caches what a trial uses, by reading bytes that need no write-back."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._array: torch.Tensor | None = None

    def prepare(self, num_bytes: int) -> Callable[[], object]:
        """What to call before a trial, to read so many bytes; it allocates next to nothing."""
        if self._array is None:
            self._array = torch.ones(STREAMED_BYTES // 4, device=self._device)
        return self._array[: num_bytes // 4].sum


def _seconds_of(trial: _Trial, calls: Calls, flush: _CacheFlush) -> float:
    """Seconds of one call, tried once a process."""
    if trial not in _KNOWN:
        _KNOWN[trial] = _try(trial, calls, flush)
    return _KNOWN[trial]


def _try(trial: _Trial, calls: Calls, flush: _CacheFlush) -> float:
    reckoned = _reckoned_seconds(calls, trial.device)
    is_too_long = reckoned > LONGEST_TRIAL_SECONDS or calls.num_bytes > LARGEST_TRIAL_BYTES
    if (is_too_long and not trial.kind.has_own_trial) or not trial.kind.can_be_tried:
        return reckoned
    before = flush.prepare(trial.flushed_bytes) if trial.flushed_bytes else None
    try:
        with torch.no_grad():
            call, times = trial.kind.make_trial(trial.device)
            # Results only: what the allocator keeps of them, a step will use.
            with trial.allocation():
                return times * _seconds(call, trial.device, before, clock=trial.clock)
    except (RuntimeError, IndexError, ValueError):
        # Some operators refuse made-up values.
        return reckoned


def _reckoned_seconds(calls: Calls, device: torch.device) -> float:
    moving = calls.num_bytes / measure_rates(device).memory_bytes_per_second
    if not calls.flops:
        return moving
    rates = measure_rates(device, calls.dtype)
    return max(moving, calls.flops / rates.flops_per_second)


def _seconds(
    work: Callable[[], object],
    device: torch.device,
    before: Callable[[], object] | None = None,
    num_calls: int = NUM_CALLS,
    clock: Clock = time.perf_counter,
) -> float:
    """Median of some calls after one that warms up, each after a call of ``before``."""
    times = []
    for _ in range(1 + num_calls):
        if before is not None:
            before()
        _await(device)
        start = clock()
        work()
        _await(device)
        times.append(clock() - start)
    return median(times[1:])


def _await(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


NUM_LAYERS: Final = 4
WIDTH: Final = 16
NUM_STEPS: Final = 9


# With more of them, each takes what one of these takes.
MOST_MICRO_BATCHES: Final = 4
CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class PassSeconds:
    """Seconds by pass.

    Either may be below zero: under the mode that counts operators autograd calls some that it
    otherwise does not.
    """

    forward: float = 0.0
    backward: float = 0.0


def streaming_seconds(plan: StreamPlan, device: Device) -> PassSeconds:
    """What streaming takes in a step beside its operators, on a device that is host memory.

    Zero for other devices, for which it is not measured, and for resident plans.
    """
    if plan.mode is not Mode.STREAMED or device.is_asynchronous:
        return PassSeconds()
    calls = Counter(plan.policies.get(visit.layer, Activations.KEEP) for visit in plan.dry.visits)
    # A loop may call parts of its model, and never the whole.
    num_micro_batches = max(len(plan.dry.kinds), 1)
    num_tried = min(num_micro_batches, MOST_MICRO_BATCHES)
    each = {policy: call_seconds(policy, num_tried) for policy in calls}
    times = num_micro_batches / num_tried
    return PassSeconds(
        times * sum(number * each[policy].forward for policy, number in calls.items()),
        times * sum(number * each[policy].backward for policy, number in calls.items()),
    )


@cache
def call_seconds(
    policy: Activations, num_micro_batches: int, clock: Clock = time.thread_time
) -> PassSeconds:
    """What the micro-batches' call of a layer takes beside operators; measured once a process.

    Args:
        policy: of the layer.
        num_micro_batches: that call it.
        clock: times the passes, and the operators that are taken off them.
    """
    with keeping_torch_generators(), torch.enable_grad():
        small = _SmallStep(policy, num_micro_batches)
        took = small.run(clock)
    calls = small.dry.calls
    return PassSeconds(
        (took.forward - operators_seconds(calls.forward, CPU, clock=clock)) / NUM_LAYERS,
        (took.backward - operators_seconds(calls.backward, CPU, clock=clock)) / NUM_LAYERS,
    )


class _SmallStep:
    """A step of a small model whose layers have the weights and operators of usual ones.

    Attributes:
        dry: tells its operators.
    """

    def __init__(self, policy: Activations, num_micro_batches: int) -> None:
        self._model = nn.Sequential(*(_layer() for _ in range(NUM_LAYERS)))
        # One weight alone is updated: updates are timed by themselves.
        trained = [next(self._model.parameters())]
        self._updater = Updater(torch.optim.SGD(trained, lr=0.0, fused=True), self._model)
        self._split = partition(self._model, min_layer_bytes=0)
        self._layouts = lay_out_records(
            self._split,
            parameters=dict(self._model.named_parameters()),
            state_arrays=self._updater.state_arrays,
            keeps_gradients=False,
        )
        self._policies = {layer.name: policy for layer in self._split.layers}
        self._schedule = self._scheduled()
        batches = [torch.ones(1, WIDTH, WIDTH)] * num_micro_batches
        self._workload = Workload(self._model, batches, _loss_of)
        settings = DryRunSettings(self._policies, self._schedule)
        self.dry = DryStep(self._workload, self._split, self._layouts, CPU, settings).run()

    def _scheduled(self) -> Schedule:
        sizes = record_bytes(self._split, self._layouts, [*dict(self._model.named_parameters())])
        return schedules.build(
            [Visit(layer.name, layer.records) for layer in self._split.layers],
            sizes,
            timing=UpdateTiming.ON_PUSH,
            capacity_bytes=max(size.weights for size in sizes.values()),
        )

    def run(self, clock: Clock) -> PassSeconds:
        """Median seconds by pass, of steps that are not metered."""
        plan = StepPlan(
            Mode.STREAMED,
            self._split,
            self._layouts,
            self._schedule,
            self._policies,
            0,
            self.dry.received,
            len(self._workload.batches),
        )
        context = StepContext(self._updater, CpuDevice())
        with _store_in_memory(self._layouts) as store:
            execution = StreamedExecution(self._model, plan, store, context)
            with closing(execution):
                num_steps = ALWAYS_METERED + 1 + NUM_STEPS
                steps = [self._timed(execution, clock) for _ in range(num_steps)]
        timed = steps[-NUM_STEPS:]
        return PassSeconds(
            median(step.forward for step in timed), median(step.backward for step in timed)
        )

    def _timed(self, execution: StreamedExecution, clock: Clock) -> PassSeconds:
        turn = 0.0

        def root(losses: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            nonlocal turn
            turn = clock()
            return losses

        start = clock()
        forwards = [partial(_loss_of, self._model, batch) for batch in self._workload.batches]
        execution.run(forwards, root, None)
        execution.complete_step(1.0)
        return PassSeconds(turn - start, clock() - turn)


def _layer() -> nn.Module:
    return nn.TransformerEncoderLayer(
        WIDTH, 2, dim_feedforward=2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
    )


def _loss_of(model: nn.Module, batch: object) -> torch.Tensor:
    loss: torch.Tensor = model(batch).sum()
    return loss


def _store_in_memory(layouts: Mapping[str, RecordLayout]) -> ParameterStore:
    tiers = {(name, part): Tier.DRAM for name in layouts for part in Part}
    return ParameterStore.create(layouts.values(), tiers, folder=None, ring_bytes=0)


# The file is as long as can be written meanwhile, at most this.
LARGEST_BYTES: Final = 256 << 20
FILL_SECONDS: Final = 0.1
READ_SECONDS: Final = 0.08
BOTH_SECONDS: Final = 0.16


# A disk with less room beside the file is not touched.
SPARE_SHARE: Final = 8
_FILE_IO: Final = FileIo()


@dataclass(frozen=True)
class DiskRates:
    """Bytes a second by direct I/O.

    Attributes:
        read: while nothing is written.
        both: read and written together, while both go on.
        host_seconds_per_byte: time of a processor for a byte read or written, checksum included.
    """

    read: float
    both: float
    host_seconds_per_byte: float = 0.0

    def seconds(self, read_bytes: int, written_bytes: int) -> float:
        """Time to read and write so much, at once as far as there is both to do."""
        paired = min(read_bytes, written_bytes)
        rest = max(read_bytes, written_bytes) - paired
        return 2 * paired / self.both + rest / (self.read if read_bytes > paired else self.both)


_DISKS: Final[dict[tuple[int, FileIo], DiskRates | None]] = {}


def measure_disk(folder: Path, file_io: FileIo = _FILE_IO) -> DiskRates | None:
    """Rates of the disk that ``folder`` is on or would be made on, measured once a process.

    A file without a name is written, read and written again for about a third of a second; nothing
    is left of it however the process ends. ``None`` where that cannot be done: the folder may not
    be written to, the disk is nearly full, or its file system has no such files or no direct I/O.
    """
    parent = folder.absolute()
    while not parent.is_dir():
        parent = parent.parent
    key = parent.stat().st_dev, file_io
    if key not in _DISKS:
        _DISKS[key] = measure_disk_now(parent, file_io)
    return _DISKS[key]


def measure_disk_now(folder: Path, file_io: FileIo = _FILE_IO) -> DiskRates | None:
    """As :func:`measure_disk` of a folder that is there, and each time anew."""
    if free_bytes_of(folder) < SPARE_SHARE * LARGEST_BYTES:
        return None
    try:
        descriptor, is_direct = open_direct(file_io, folder, os.O_RDWR | os.O_TMPFILE)
    except OSError:
        return None
    try:
        return _probe(descriptor, file_io) if is_direct else None
    except (OSError, TransferError):
        return None
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class _Thread:
    """Transfers of one kind, one after the other, each of one of these units.

    Attributes:
        transfer: reads or writes a buffer at an offset.
        buffer: one unit.
        offsets: where the units begin; after the last one comes the first again.
    """

    transfer: Callable[[memoryview, int], None]
    buffer: memoryview
    offsets: Sequence[int]

    def run(self, end_seconds: float) -> int:
        """Transfer until then, at least one unit; return how many bytes."""
        num_bytes = 0
        for offset in cycle(self.offsets):
            self.transfer(self.buffer, offset)
            num_bytes += len(self.buffer)
            if time.perf_counter() >= end_seconds:
                break
        return num_bytes


def _probe(descriptor: int, file_io: FileIo) -> DiskRates:
    options = StoreOptions()
    read, write = (
        partial(transfer_fully, call, descriptor) for call in (file_io.read, file_io.write)
    )
    unit_bytes = options.io_unit_bytes
    noise = HostBuffer(unit_bytes)
    # Zeros may be kept without being written.
    noise.tensor.random_(generator=torch.Generator())
    written = noise.window(0, unit_bytes)
    offsets = _fill(write, written)
    middle = len(offsets) // 2
    readers = [
        _Thread(read, HostBuffer(unit_bytes).window(0, unit_bytes), offsets[:middle])
        for _ in range(options.num_readers)
    ]
    writers = [_Thread(write, written, offsets[middle:]) for _ in range(options.num_writers)]
    alone, _ = _rate(readers, READ_SECONDS)
    both, host_seconds = _rate(readers + writers, BOTH_SECONDS)
    return DiskRates(alone, both, host_seconds + _checksum_seconds(written))


def _checksum_seconds(unit: memoryview) -> float:
    start_seconds = time.thread_time()
    xxhash.xxh3_64(unit)
    return (time.thread_time() - start_seconds) / len(unit)


def _fill(write: Callable[[memoryview, int], None], unit: memoryview) -> range:
    """Write a unit, at least twice, until time or length is over; return the offsets.

    Blocks that were never written take longer to write, and need not be read.
    """
    unit_bytes = len(unit)
    end_seconds = time.perf_counter() + FILL_SECONDS
    for offset in range(0, LARGEST_BYTES, unit_bytes):
        write(unit, offset)
        if offset and time.perf_counter() >= end_seconds:
            break
    return range(0, offset + unit_bytes, unit_bytes)


def _rate(threads: Sequence[_Thread], seconds: float) -> tuple[float, float]:
    """Bytes a second of all threads together, and processor seconds of this process a byte."""
    with ThreadPoolExecutor(len(threads)) as pool:
        start_seconds, start_host = time.perf_counter(), time.process_time()
        ends = [pool.submit(thread.run, start_seconds + seconds) for thread in threads]
        num_bytes = sum(end.result() for end in ends)
        wall = time.perf_counter() - start_seconds
        return num_bytes / wall, (time.process_time() - start_host) / num_bytes
