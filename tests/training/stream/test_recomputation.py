"""What is told where a layer cannot be run again as it ran."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.execute.activations import Call, RecomputeFrame
from openwafer.training.stream.execute.snapshot import LayerState


def run(forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    weights = DeviceWeights({}, {}, CpuDevice())
    call = Call("net.0", forward, (x,), {}, LayerState(nn.Identity()))
    frame = RecomputeFrame(weights, lambda record: None, call)
    with frame.hooks():
        out = forward(x)
    frame.end_forward()
    return out


def total(x: torch.Tensor) -> torch.Tensor:
    return x.exp().sum()


def test_a_second_run_that_saves_other_tensors_is_refused_with_its_layer() -> None:
    calls: list[None] = []

    def growing(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return total(x[: len(calls)])

    text = (
        r"of layer 'net.0' does not .*: it saved \(2,\) torch\.float32 as tensor 0, .*saved 1 ten"
    )
    with pytest.raises(OpenwaferError, match=text):
        run(growing, torch.ones(3, requires_grad=True))


def test_a_second_run_that_saves_other_values_is_refused_before_any_backward() -> None:
    drawn = iter((1.0, 2.0))
    with pytest.raises(OpenwaferError, match=r"layer 'net\.0' .*: it saved other values as tensor"):
        run(lambda x: (x * next(drawn)).exp().sum(), torch.ones(3, requires_grad=True))


def test_a_second_backward_recomputes_again() -> None:
    x = torch.ones(3, requires_grad=True)
    loss = run(total, x)
    loss.backward(retain_graph=True)
    loss.backward()
    assert torch.equal(x.grad, 2 * x.detach().exp())  # type: ignore[arg-type]


def test_a_recomputation_leaves_the_generators_as_it_has_found_them() -> None:
    x = torch.ones(30, requires_grad=True)
    loss = run(lambda x: nn.functional.dropout(x.exp()).sum(), x)
    torch.rand(1)
    before = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_an_input_that_was_written_since_is_refused() -> None:
    x = torch.ones(3, requires_grad=True) * 2
    loss = run(total, x)
    x.add_(1)
    with pytest.raises(OpenwaferError, match=r"an input of layer .net\.0. was written in place"):
        loss.backward()
