"""What layers that run again hold for a backward that has not come waits in host memory."""

from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.execute.activations import (
    Call,
    Frame,
    RecomputeFrame,
    move_to_host,
)
from openwafer.training.stream.execute.snapshot import LayerState

SIZE = 64
NUM_BYTES = 4 * SIZE * SIZE
# torch warns of its own code behind the first tangents.
TANGENTS = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


def total(x: Tensor) -> Tensor:
    return x.t()[1:].exp().sum()


def no_weights() -> DeviceWeights:
    return DeviceWeights({}, {}, CpuDevice())


def framed(x: Tensor, *, is_rehearsed: bool = False) -> tuple[RecomputeFrame, Tensor]:
    state = LayerState(nn.Identity())
    state.is_rehearsed = is_rehearsed
    call = Call("net.0", total, (x,), {}, state)
    frame = RecomputeFrame(no_weights(), lambda _: None, call)
    with frame.hooks():
        out = total(x)
    frame.end_forward()
    return frame, out


def batch() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SIZE, SIZE, generator=generator).requires_grad_()


def test_an_input_is_let_go_and_comes_back_with_its_bits() -> None:
    plain, x = batch(), batch()
    total(plain * 2).backward()
    made = x * 2
    frame, out = framed(made)
    storage = ref(made.untyped_storage())
    del made
    move_to_host([frame], CpuDevice())
    assert storage() is None
    assert frame.moved_bytes == NUM_BYTES
    out.backward()
    assert plain.grad is not None
    assert x.grad is not None
    assert torch.equal(x.grad, plain.grad)


def test_an_input_that_two_layers_hold_counts_once_and_serves_both() -> None:
    plain, x = batch(), batch()
    (total(plain * 2) + total(plain * 2)).backward()
    made = x * 2
    (first, one), (second, other) = framed(made), framed(made)
    del made
    move_to_host([first, second], CpuDevice())
    assert (first.moved_bytes, second.moved_bytes) == (NUM_BYTES, 0)
    (one + other).backward()
    assert plain.grad is not None
    assert x.grad is not None
    assert torch.equal(x.grad, plain.grad)


def test_an_input_that_the_loop_still_has_is_not_moved_and_may_not_be_written() -> None:
    made = batch() * 2
    frame, out = framed(made)
    move_to_host([frame], CpuDevice())
    assert frame.moved_bytes == 0
    with torch.no_grad():
        made.add_(1)
    with pytest.raises(OpenwaferError, match=r"an input of layer .net\.0. was written in place"):
        out.backward()


def test_an_input_that_was_written_is_told_also_behind_a_move() -> None:
    made = batch() * 2
    frame, out = framed(made)
    with torch.no_grad():
        made.add_(1)
    del made
    move_to_host([frame], CpuDevice())
    with pytest.raises(OpenwaferError, match=r"an input of layer .net\.0. was written in place"):
        out.backward()


def test_a_batch_is_nobodys_activation_and_stays() -> None:
    frame, out = framed(batch())
    move_to_host([frame], CpuDevice())
    out.backward()
    assert frame.moved_bytes == 0


class MadeInInference(torch.autograd.Function):
    """Hands out a tensor of inference mode with a backward."""

    @staticmethod
    def forward(_context: object, x: Tensor) -> Tensor:
        with torch.inference_mode():
            return x * 2

    @staticmethod
    def backward(_context: object, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


def test_a_tensor_of_inference_mode_stays_as_a_copy_would_be_none() -> None:
    made: Tensor = MadeInInference.apply(batch())  # type: ignore[no-untyped-call]
    assert made.is_inference()
    frame, _ = framed(made, is_rehearsed=True)
    del made
    move_to_host([frame], CpuDevice())
    assert frame.moved_bytes == 0


@TANGENTS
def test_an_input_with_a_tangent_stays_as_a_copy_would_have_none() -> None:
    with forward_ad.dual_level():
        made = forward_ad.make_dual(batch() * 2, torch.ones(SIZE, SIZE)) * 1
        frame, _ = framed(made, is_rehearsed=True)
        del made
        move_to_host([frame], CpuDevice())
        assert frame.moved_bytes == 0


def tangent_of_gradient(*, is_moved: bool) -> Tensor:
    """That of a weight's gradient, of a layer whose activations are kept."""
    weight, frame = batch(), Frame(no_weights(), lambda _: None)
    with forward_ad.dual_level():
        made = forward_ad.make_dual(torch.ones(SIZE, SIZE), batch().detach()) * 1
        with frame.hooks():
            out = (made * weight).sum()
        del made
        if is_moved:
            move_to_host([frame], CpuDevice())
            assert frame.moved_bytes == NUM_BYTES
        (gradient,) = torch.autograd.grad(out, weight)
        tangent: Tensor = forward_ad.unpack_dual(gradient).tangent
        return tangent


@TANGENTS
def test_torch_has_the_tangent_of_a_kept_activation_when_its_copy_comes_back() -> None:
    assert torch.equal(tangent_of_gradient(is_moved=True), tangent_of_gradient(is_moved=False))
