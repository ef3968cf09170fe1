"""What layers that run again hold for a backward that has not come waits in host memory."""

from weakref import ref

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.execute.activations import Call, RecomputeFrame, move_to_host
from openwafer.training.stream.execute.snapshot import LayerState

SIZE = 64
NUM_BYTES = 4 * SIZE * SIZE


def total(x: Tensor) -> Tensor:
    return x.t()[1:].exp().sum()


def framed(x: Tensor) -> tuple[RecomputeFrame, Tensor]:
    call = Call("net.0", total, (x,), {}, LayerState(nn.Identity()))
    frame = RecomputeFrame(DeviceWeights({}, {}, CpuDevice()), lambda _: None, call)
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
