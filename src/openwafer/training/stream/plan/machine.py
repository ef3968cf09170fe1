"""Measures what a plan's times rest on: what this machine takes for the operators of a step.

Every kind of operator that a step calls is called here, with tensors of the same shapes, and
timed: new pages, caches, threads and instruction sets are those of the step. What is too large to
be tried is reckoned from two rates; operators on sparse weights are tried with random patterns, in
part where they are large.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Final

import torch
from torch import nn

from openwafer.training.stream.device.device import Device
from openwafer.training.stream.plan.operators import (
    Allocation,
    Calls,
    CallsByKind,
    CountingMeter,
    Operator,
)

NUM_CALLS: Final = 3
# It is a part of every call of a step: that other programs hold some trials up must not show.
NUM_OVERHEAD_CALLS: Final = 15
# Operators above these are reckoned: a trial has to be short and take little memory.
LONGEST_TRIAL_SECONDS: Final = 0.05
LARGEST_TRIAL_BYTES: Final = 256 << 20
# Weights of smaller products stay in caches from one use to the next.
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
) -> float:
    """Seconds that calls take on a device, one after the other.

    Args:
        calls_by_kind: the calls.
        device: where they are made.
        allocation: makes the context in which steps allocate.
        is_cold: whether nothing that they use is in a cache before; otherwise all but weights is.
    """
    if not calls_by_kind:
        return 0.0
    num_threads, flush = torch.get_num_threads(), _CacheFlush(device)
    seconds = 0.0
    with torch.random.fork_rng():
        overhead = _call_overhead(device, num_threads)
        for kind, calls in calls_by_kind.items():
            trial = _Trial(kind, device, num_threads, is_cold, allocation)
            seconds += calls.number * (overhead + _seconds_of(trial, calls, flush))
    return seconds


@cache
def _call_overhead(device: torch.device, num_threads: int) -> float:
    """Seconds that modules and autograd take for a call beside the operator itself."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(8, 8), nn.GELU())]
    model = nn.Sequential(*layers).to(device)
    x = torch.ones(1, 8, device=device)

    def step() -> None:
        torch.autograd.grad(model(x).sum(), list(model.parameters()))

    with CountingMeter() as meter:
        step()
    each = meter.take_calls()
    bare = sum(
        calls.number * _seconds_of(_Trial(kind, device, num_threads), calls, _CacheFlush(device))
        for kind, calls in each.items()
    )
    number = sum(calls.number for calls in each.values())
    whole = _seconds(step, device, num_calls=NUM_OVERHEAD_CALLS)
    return float(max(whole - bare, 0.0) / number)


@dataclass(frozen=True)
class _Trial:
    """A kind of call, and what else its time depends on."""

    kind: Operator
    device: torch.device
    num_threads: int
    is_cold: bool = False
    allocation: Allocation = nullcontext


_KNOWN: Final[dict[_Trial, float]] = {}


class _CacheFlush:
    """Evicts from the caches what a trial uses, by reading bytes that need no write-back."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._array: torch.Tensor | None = None

    def prepare(self) -> Callable[[], object]:
        """What to call before a trial; it allocates next to nothing."""
        if self._array is None:
            self._array = torch.ones(STREAMED_BYTES // 4, device=self._device)
        return self._array.sum


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
    is_large = trial.kind.reads_memory and calls.num_bytes > SMALLEST_COLD_BYTES
    is_flushed = is_large and (trial.is_cold or calls.flops > 0)
    before = flush.prepare() if is_flushed else None
    try:
        with torch.no_grad():
            call, times = trial.kind.make_trial(trial.device)
            # Results only: what the allocator keeps of them, a step will use.
            with trial.allocation():
                return times * _seconds(call, trial.device, before)
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
) -> float:
    """Median of some calls after one that warms up, each after a call of ``before``."""
    times = []
    for _ in range(1 + num_calls):
        if before is not None:
            before()
        _await(device)
        start = time.perf_counter()
        work()
        _await(device)
        times.append(time.perf_counter() - start)
    return median(times[1:])


def _await(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
