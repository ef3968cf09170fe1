"""A layer's first call runs twice: within the budget in the forward, or else in the backward."""

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from openwafer.training.stream.device.device import CpuDevice
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.execute.activations import Call, RecomputeFrame
from openwafer.training.stream.execute.snapshot import LayerState
from tests.tables import case

SIZE, NUM_TOKENS = 64, 26
ROOMS = (1.0, 1.03)
# A forward takes 24 bytes, of which it leaves 4.
ONCE, TWICE = 27, 28


class Held(nn.Module):
    """Holds a wide tensor, which nothing saves, while its norm runs."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.mix, self.norm = nn.Linear(SIZE, SIZE), nn.LayerNorm(SIZE)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mix(x)
        wide = torch.cat([mixed] * self.times, dim=-1)
        some = wide[..., :SIZE] + 1
        normed: Tensor = self.norm(some)
        return x + normed


class Reader(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, times: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.blocks = nn.Embedding(NUM_TOKENS, SIZE), nn.ModuleList([Held(times)])
        self.decoder = nn.Linear(SIZE, NUM_TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x) * 8
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.decoder(x)
        return out


def train(model: nn.Module, budget: int) -> None:
    """Two steps and an evaluation, with the loss outside of the model."""
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.arange(320).remainder(NUM_TOKENS).view(32, 10)
    with stream_weights(model, optimizer, device_memory=budget):
        for _ in range(2):
            functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            model(tokens)


def smallest_budget(times: int) -> int:
    with pytest.raises(OpenwaferError, match="device-budget-too-small") as refused:
        train(Reader(times), 1000)
    told = re.search(r"needs ([\d,]+) bytes", str(refused.value))
    assert told is not None
    return int(told[1].replace(",", ""))


@pytest.mark.slow
@pytest.mark.parametrize("times", [4, case(8, by_default=False)])
def test_a_budget_that_the_plan_accepts_holds_from_the_smallest_one_on(times: int) -> None:
    smallest = smallest_budget(times)
    for room in ROOMS:
        train(Reader(times), int(smallest * room))


def test_an_output_that_is_held_in_the_next_forward_is_named() -> None:
    smallest, model = smallest_budget(4), Reader(4)
    tokens = torch.arange(320).remainder(NUM_TOKENS).view(32, 10)
    with stream_weights(model, torch.optim.AdamW(model.parameters()), device_memory=smallest):
        out = model(tokens)
        functional.cross_entropy(out.flatten(0, 1), tokens.flatten()).backward()
        with pytest.raises(OpenwaferError, match=r"33,280 bytes are the output of the call before"):
            model(tokens)


def run(forward: Callable[[Tensor], Tensor], budget: int) -> tuple[LayerState, Tensor]:
    """The first forward of a layer on a device of so many bytes, and its loss."""
    device, state = CpuDevice(budget), LayerState(nn.Identity())
    weights = DeviceWeights({}, {}, device)
    x = torch.ones(3, requires_grad=True)
    call = Call("net.0", forward, (x,), {}, state)
    with device.active():
        frame = RecomputeFrame(weights, lambda record: None, call)
        with frame.hooks():
            out = forward(x)
        frame.end_forward()
    return state, out


def scaled(x: Tensor) -> Tensor:
    return (x * 2).exp().sum()


def drawing() -> Callable[[Tensor], Tensor]:
    drawn: Iterator[float] = iter((1.0, 2.0))
    return lambda x: (x * next(drawn)).exp().sum()


def test_a_layer_is_rehearsed_in_its_forward_where_it_fits() -> None:
    state, _ = run(scaled, TWICE)
    assert state.is_rehearsed


def test_a_layer_that_does_not_fit_twice_is_rehearsed_by_its_backward() -> None:
    state, loss = run(scaled, ONCE)
    assert not state.is_rehearsed
    loss.backward()
    assert state.is_rehearsed


def test_a_backward_that_rehearses_refuses_other_values() -> None:
    _, loss = run(drawing(), ONCE)
    with pytest.raises(OpenwaferError, match=r"layer 'net\.0' .*: it saved other values as tensor"):
        loss.backward()


def test_a_rehearsal_for_which_a_gpu_is_full_is_left_to_the_backward() -> None:
    rooms = iter((True, False, True))

    def filling(x: Tensor) -> Tensor:
        if not next(rooms):
            raise torch.OutOfMemoryError("full")
        return scaled(x)

    state, loss = run(filling, TWICE)
    assert not state.is_rehearsed
    loss.backward()
    assert state.is_rehearsed


@pytest.mark.parametrize("inner_bytes", [10, 30])
def test_what_is_watched_inside_is_watched_from_outside_too(inner_bytes: int) -> None:
    device = CpuDevice(budget_bytes=50)
    with device.active(is_watched=True):
        outer_has_room = device.watch_room()
        torch.empty(30, dtype=torch.uint8)
        inner_has_room = device.watch_room()
        torch.empty(inner_bytes, dtype=torch.uint8)
        kept = torch.empty(25, dtype=torch.uint8)
        assert (inner_has_room(), outer_has_room()) == (inner_bytes < 26, False)
    assert kept.numel() == 25
