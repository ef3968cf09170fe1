"""What the work of a step takes on this machine, by three rates that are measured.

A call of an operator takes what Python and autograd need around it, and the longer of its
operations and its bytes. Shapes and caches are left out: the first steps of a run correct the plan.
"""

import time
from collections.abc import Callable, Mapping
from functools import cache
from statistics import median
from typing import Final

import torch

from openwafer.training.plan_record import Activations, Mode
from openwafer.training.store.layout import Part
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.plan.operators import CallsByKind
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.schedule import UpdateTiming

NUM_TRIALS: Final = 3
PRODUCT_SIZE: Final = 512
# Larger than caches.
STREAMED_BYTES: Final = 64 << 20
NUM_CALLS: Final = 64
# Loans, bindings, hooks and turns of micro-batches around one layer, forward and backward, each as
# long as so many calls of operators (docs/journal/training.md, 2026-11-27).
AROUND_A_LAYER: Final[Mapping[Activations, tuple[int, int]]] = {
    Activations.KEEP: (180, 100),
    Activations.RECOMPUTE: (200, 320),
    Activations.OFFLOAD: (180, 90),
}


@cache
def flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Of a matrix product, measured once a process."""
    size = 4096 if device.type == "cuda" else PRODUCT_SIZE
    left = torch.ones(size, size, device=device, dtype=dtype)
    return 2 * size**3 / _seconds(lambda: left @ left, device)


@cache
def memory_bytes_per_second(device: torch.device) -> float:
    """Bytes read and written of an array beyond the caches, measured once a process."""
    array = torch.ones(STREAMED_BYTES // 4, device=device)
    return 2 * array.nbytes / _seconds(lambda: array.mul_(1.0), device)


@cache
def call_seconds(device: torch.device) -> float:
    """What Python and autograd take for an operator on next to nothing, in either pass."""
    small = torch.ones(8, device=device, requires_grad=True)

    def calls() -> None:
        out = small
        for _ in range(NUM_CALLS):
            out = out * 1.0
        torch.autograd.grad(out.sum(), small)

    with torch.enable_grad():
        return _seconds(calls, device) / (2 * NUM_CALLS)


def measure_link(device: Device) -> float:
    """Bytes a second that go to a device whose copies run beside its compute."""
    if device.link_bytes_per_second is not None:
        return device.link_bytes_per_second
    source = torch.ones(STREAMED_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source, device=device.torch_device)

    def upload() -> None:
        device.upload(target, source, device.submitted()).wait()

    return STREAMED_BYTES / _seconds(upload, device.torch_device)


def operators_seconds(calls_by_kind: CallsByKind, device: torch.device) -> float:
    """Seconds that calls take on a device, one after the other."""
    seconds = 0.0
    for calls in calls_by_kind.values():
        each = calls.num_bytes / memory_bytes_per_second(device)
        if calls.flops:
            each = max(each, calls.flops / flops_per_second(device, calls.dtype))
        seconds += calls.number * (call_seconds(device) + each)
    return seconds


def streaming_seconds(plan: StreamPlan, device: Device) -> tuple[float, float]:
    """What streaming takes beside operators, by pass, on a device that is host memory.

    Zero for other devices, beside whose compute it runs, and for resident plans.
    """
    if plan.mode is not Mode.STREAMED or device.is_asynchronous:
        return 0.0, 0.0
    policies = [plan.policies.get(visit.layer, Activations.KEEP) for visit in plan.dry.visits]
    # A loop may call parts of its model, and never the whole.
    each = max(len(plan.dry.kinds), 1) * call_seconds(device.torch_device)
    forward, backward = zip((0, 0), *(AROUND_A_LAYER[policy] for policy in policies), strict=True)
    return each * sum(forward), each * sum(backward)


def optimizer_seconds(
    plan: StreamPlan, timing: UpdateTiming, device: Device
) -> tuple[float, float]:
    """Seconds for updates, and for gradients that are kept until then, by pass.

    An update reads and writes weights and states, and reads gradients. Gradients that wait for the
    whole step's norm are read for it, and copied into the store.
    """
    is_resident, keeps_gradients = plan.mode is Mode.RESIDENT, timing is UpdateTiming.ON_FETCH
    received = frozenset(plan.dry.received)
    gradients = kept = 0
    for layout in plan.layouts.values():
        num_bytes = layout.bytes_of_weights(received)
        gradients += num_bytes
        kept += sum(map(layout.part_bytes, (Part.WEIGHTS, Part.STATES))) if num_bytes else 0
    rate = memory_bytes_per_second(device.torch_device if is_resident else torch.device("cpu"))
    updating = (2 * kept + gradients) / rate
    if not keeps_gradients:
        return 0.0, updating
    return updating, (1 if is_resident else 3) * gradients / rate


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Median of some calls after one that warms up."""
    times = []
    for _ in range(1 + NUM_TRIALS):
        _await(device)
        start = time.perf_counter()
        work()
        _await(device)
        times.append(time.perf_counter() - start)
    return median(times[1:])


def _await(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
