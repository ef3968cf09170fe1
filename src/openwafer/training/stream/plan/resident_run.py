"""Runs a step as the plain loop does on tensors without memory, for a plan that streams nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from openwafer.training.stream.plan.backward_failures import let_hooks_raise, walked_backward
from openwafer.training.stream.plan.dry_run import Workload, autocast, faked, placed
from openwafer.training.stream.plan.fake_tensors import RememberingFakeMode
from openwafer.training.stream.plan.hollow_copy import hollow_copy
from openwafer.training.stream.plan.operators import CountingMeter, StepCalls


@dataclass(frozen=True)
class ResidentRun:
    """What a step of the plain loop needs.

    Attributes:
        peak_bytes: most device bytes of weights, gradients and activations; states come on top.
        weights_bytes: those of the weights.
        activation_bytes: device bytes that each layer call of a micro-batch leaves behind.
        calls: of operators.
    """

    peak_bytes: int
    weights_bytes: int
    activation_bytes: tuple[int, ...]
    calls: StepCalls


def resident_run(
    workload: Workload, layers: Sequence[str], torch_device: torch.device
) -> ResidentRun:
    """Run one step as the plain loop does, without its weights.

    Args:
        workload: the step.
        layers: names of the modules whose calls are told apart.
        torch_device: where the step will run.
    """

    def walk(mode: RememberingFakeMode | None) -> ResidentRun:
        model = hollow_copy(workload.model, torch_device)
        let_hooks_raise(model, is_fake=mode is not None)
        left: list[list[int]] = []
        with CountingMeter() as meter:
            if mode is not None:
                meter.call = mode.call
            for parameter in model.parameters():
                meter.count(parameter)
            weights_bytes = meter.used_bytes
            for name in layers:
                module = model.get_submodule(name)
                module.register_forward_pre_hook(lambda *_: left[-1].append(meter.used_bytes))
            for batch in workload.batches:
                given = placed(batch, mode, torch_device)
                left.append([meter.used_bytes])
                with autocast(torch_device, workload.autocast_dtype):
                    loss = workload.loss_of(model, given)
                left[-1].append(meter.used_bytes)
                with walked_backward(is_fake=mode is not None):
                    loss.backward()
        # What runs before the first layer counts as its own, what runs behind each layer, too.
        marks = left[0][:1] + left[0][2:]
        activation_bytes = tuple(after - before for before, after in pairwise(marks))
        calls = StepCalls(meter.take_calls())
        return ResidentRun(meter.peak_bytes, weights_bytes, activation_bytes, calls)

    return faked(walk)
