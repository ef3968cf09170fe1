"""Runs a step on tensors without memory to learn what it needs before anything is allocated.

The same executor walks the same schedule over a copy of the model made of fake tensors, so the
peak it meters is the peak the real step will have, activations and temporaries included.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from openwafer.training.store.layout import RecordLayout
from openwafer.training.stream.activations import Activations
from openwafer.training.stream.device import CpuDevice
from openwafer.training.stream.device_weights import DeviceWeights
from openwafer.training.stream.executor import Executor
from openwafer.training.stream.layers import Partition
from openwafer.training.stream.link import DryLink
from openwafer.training.stream.meter import MemoryMeter
from openwafer.training.stream.micro_batches import run_forward
from openwafer.training.stream.schedule import Schedule, Visit

Batch = object
LossOf = Callable[[nn.Module, Batch], torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """What a step computes.

    Attributes:
        model: the model, its parameters on any device, the meta device too.
        batches: one example a micro-batch, trees of tensors of the sizes of the real ones.
        loss_of: runs the model on a batch and returns its scalar loss.
        autocast_dtype: dtype of the autocast that the step runs under, or ``None``.
    """

    model: nn.Module
    batches: Sequence[Batch]
    loss_of: LossOf
    autocast_dtype: torch.dtype | None = None

    def one_micro_batch(self) -> "Workload":
        """The same work on the first micro-batch alone."""
        return replace(self, batches=self.batches[:1])


@dataclass(frozen=True)
class DryRun:
    """What a step needs.

    Attributes:
        peak_bytes: most device bytes held at once.
        visits: layer calls in forward order.
        received: parameters that get a gradient.
        changing_buffers: per layer, indices of the buffers its forward changes.
        misused: parameters used outside the layers that hold them.
        activation_bytes: device bytes that each visit's forward leaves behind.
        flops: floating-point operations of all matrix products and convolutions.
        written_bytes: bytes of all tensors that operators made.
    """

    peak_bytes: int
    visits: tuple[Visit, ...]
    received: tuple[str, ...]
    changing_buffers: Mapping[str, tuple[int, ...]]
    misused: tuple[str, ...]
    activation_bytes: tuple[int, ...]
    flops: int
    written_bytes: int


class DryDevice(CpuDevice):
    """A metered device for fake tensors of any kind of device."""

    def __init__(self, torch_device: torch.device) -> None:
        super().__init__()
        self.torch_device = torch_device


class _WatchingMeter(MemoryMeter):
    """A meter that also notes uses of weights that are not on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: DeviceWeights | None = None
        self.misused: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.weights is not None and not self.is_paused and not func.is_view:
            for leaf in pytree.arg_tree_leaves(*args, **(kwargs or {})):
                if isinstance(leaf, torch.Tensor):
                    name = self.weights.released_parameter(leaf)
                    if name is not None:
                        self.misused[name] = None
        return super().__torch_dispatch__(func, types, args, kwargs)


def dry_run(
    workload: Workload,
    split: Partition,
    layouts: Mapping[str, RecordLayout],
    *,
    torch_device: torch.device,
    policies: Mapping[str, Activations],
    schedule: Schedule | None = None,
) -> DryRun:
    """Run one step without its weights.

    Args:
        workload: the step.
        split: the model's layers; the model's forwards must be its own.
        layouts: records of the split.
        torch_device: where the step will run.
        policies: activation policy by layer; a layer not named recomputes.
        schedule: what to walk; ``None`` serves every layer on demand.

    Tensors are fake, so nothing is computed and nothing allocated, unless the model's control flow
    depends on values (a router of experts): then the step is computed with random weights, one
    layer in memory at a time.
    """
    walk = partial(_walk, workload, split, layouts, torch_device, policies, schedule)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return walk(mode)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return walk(None)


def _walk(
    workload: Workload,
    split: Partition,
    layouts: Mapping[str, RecordLayout],
    torch_device: torch.device,
    policies: Mapping[str, Activations],
    schedule: Schedule | None,
    mode: FakeTensorMode | None,
) -> DryRun:
    model = hollow_copy(workload.model, torch_device)
    batches = [_placed(batch, mode, torch_device) for batch in workload.batches]
    device = DryDevice(torch_device)
    device.meter = meter = _WatchingMeter()
    parameters = dict(model.named_parameters())
    weights = meter.weights = DeviceWeights(parameters, layouts, device)
    for record in split.records:
        weights.unbind(record)
    link = DryLink(weights if mode is None else None)
    executor = Executor(model, split, weights, link, device)
    executor.schedule = schedule
    executor.policies = policies
    executor.default_policy = Activations.RECOMPUTE
    left: list[int] = []
    executor.on_leave = lambda: left.append(meter.used_bytes - weights.held_bytes)
    counter = FlopCounterMode(display=False)
    with device.active(), counter, autocast(torch_device, workload.autocast_dtype):
        torch.autograd.backward(
            run_forward(
                executor,
                [partial(workload.loss_of, model, batch) for batch in batches],
            )
        )
    return DryRun(
        peak_bytes=meter.peak_bytes,
        visits=executor.visits(),
        received=tuple(link.received),
        changing_buffers=dict(executor.changing_buffers),
        misused=tuple(meter.misused),
        activation_bytes=tuple(after - before for before, after in pairwise([0, *left])),
        flops=counter.get_total_flops(),
        written_bytes=meter.written_bytes,
    )


def resident_peak_bytes(workload: Workload, torch_device: torch.device) -> int:
    """Peak device bytes of the plain loop: weights, gradients, activations; no optimizer state."""

    def walk(mode: FakeTensorMode | None) -> int:
        model = hollow_copy(workload.model, torch_device)
        meter = MemoryMeter()
        with meter, autocast(torch_device, workload.autocast_dtype):
            for parameter in model.parameters():
                meter.count(parameter)
            for batch in workload.batches:
                workload.loss_of(model, _placed(batch, mode, torch_device)).backward()
        return meter.peak_bytes

    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return walk(mode)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return walk(None)


def hollow_copy(model: nn.Module, torch_device: torch.device) -> nn.Module:
    """A copy of the model whose parameters are uninitialised (fake under a fake tensor mode)."""
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        data = torch.empty(parameter.shape, dtype=parameter.dtype, device=torch_device)
        memo[id(parameter)] = nn.Parameter(data, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach().to(torch_device, copy=True)
    return copy.deepcopy(model, memo)


def autocast(
    torch_device: torch.device, dtype: torch.dtype | None
) -> AbstractContextManager[object]:
    """Autocast to ``dtype``; a context that does nothing for ``None``."""
    if dtype is None:
        return nullcontext()
    return torch.autocast(torch_device.type, dtype=dtype)


def _placed(batch: Batch, mode: FakeTensorMode | None, torch_device: torch.device) -> Batch:
    def place(tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor if mode is None else mode.from_tensor(tensor)
        return moved.to(torch_device)

    return pytree.tree_map_only(torch.Tensor, place, batch)
