"""What is told where a layer cannot be run again as it ran."""

from collections.abc import Callable

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.execute.activations import Call, RecomputeFrame


def run(forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    weights = DeviceWeights({}, {}, CpuDevice())
    frame = RecomputeFrame(weights, lambda record: None, Call("net.0", forward, (x,), {}))
    with frame.hooks():
        return forward(x)


def total(x: torch.Tensor) -> torch.Tensor:
    return x.exp().sum()


def test_a_second_run_that_saves_other_tensors_is_refused_with_its_layer() -> None:
    calls: list[None] = []

    def growing(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return total(x[: len(calls)])

    loss = run(growing, torch.ones(3, requires_grad=True))
    text = (
        r"of layer 'net.0' does not .*: it saved \(2,\) torch\.float32 as tensor 0, .*saved 1 ten"
    )
    with pytest.raises(OpenwaferError, match=text):
        loss.backward()


def test_a_second_backward_is_refused() -> None:
    loss = run(total, torch.ones(3, requires_grad=True))
    loss.backward(retain_graph=True)
    with pytest.raises(OpenwaferError, match=r"ran a second time through a recomputed layer"):
        loss.backward()


def test_an_input_that_was_written_since_is_refused() -> None:
    x = torch.ones(3, requires_grad=True) * 2
    loss = run(total, x)
    x.add_(1)
    with pytest.raises(OpenwaferError, match=r"an input of layer .net\.0. was written in place"):
        loss.backward()
