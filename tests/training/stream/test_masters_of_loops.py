"""A loop over a bf16 model whose fp32 masters are in the store learns as one that keeps them."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import StreamedLoop, stream_weights
from openwafer.training.plan_record import Mode
from tests.training.stream.both_loops import STREAMED, differing

SIZE = 64
MAX_NORM = 0.5


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(SIZE, SIZE) for _ in range(3))).to(torch.bfloat16)


def adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def stream(model: nn.Module, optimizer: Optimizer) -> StreamedLoop:
    return stream_weights(
        model, optimizer, device_memory="1MiB", keeps_masters=True, options=STREAMED
    )


def backward(model: nn.Module, step: int) -> None:
    torch.manual_seed(step)
    model(torch.randn(8, SIZE, dtype=torch.bfloat16)).float().pow(2).mean().backward()


def train(model: nn.Module, optimizer: Optimizer, streamed: StreamedLoop, steps: range) -> None:
    for step in steps:
        backward(model, step)
        backward(model, step + 100)
        streamed.clip_grad_norm_(MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()


def masters_by_hand(num_steps: int) -> dict[str, Tensor]:
    model = new_model()
    masters = copy.deepcopy(model).float()
    optimizer = adamw(masters)
    pairs = list(zip(masters.parameters(), model.parameters(), strict=True))
    for step in range(num_steps):
        backward(model, step)
        backward(model, step + 100)
        for master, weight in pairs:
            assert weight.grad is not None
            master.grad, weight.grad = weight.grad.float(), None
        clip_grad_norm_(masters.parameters(), MAX_NORM)
        optimizer.step()
        for master, weight in pairs:
            weight.data.copy_(master.data)
    return dict(masters.named_parameters())


def test_masters_are_those_kept_by_hand() -> None:
    model = new_model()
    optimizer = adamw(model)
    with stream(model, optimizer) as streamed:
        train(model, optimizer, streamed, range(20))
        masters, weights = dict(streamed.masters()), dict(streamed.weights())
    expected = masters_by_hand(20)
    rounded = {name: master.to(torch.bfloat16) for name, master in expected.items()}
    assert differing(masters, expected) == []
    assert differing(weights, rounded) == []
    assert differing(dict(model.named_parameters()), rounded) == []


def test_training_goes_on_after_close() -> None:
    model = new_model()
    optimizer = adamw(model)
    for steps in (range(2), range(2, 4)):
        with stream(model, optimizer) as streamed:
            train(model, optimizer, streamed, steps)
    masters = {name: optimizer.state[p]["master"] for name, p in model.named_parameters()}
    assert differing(masters, masters_by_hand(4)) == []


@pytest.mark.parametrize("streams_already", [False, True])
def test_saved_states_bring_the_masters_back(*, streams_already: bool) -> None:
    first = new_model()
    optimizer = adamw(first)
    with stream(first, optimizer) as streamed:
        train(first, optimizer, streamed, range(2))
        saved = copy.deepcopy((first.state_dict(), optimizer.state_dict()))
    model = new_model()
    optimizer = adamw(model)
    with stream(model, optimizer) as streamed:
        if streams_already:
            train(model, optimizer, streamed, range(7, 8))
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        train(model, optimizer, streamed, range(2, 4))
        assert differing(dict(streamed.masters()), masters_by_hand(4)) == []


def test_weights_that_are_written_are_the_masters() -> None:
    model = new_model()
    optimizer = adamw(model)
    with stream(model, optimizer) as streamed:
        train(model, optimizer, streamed, range(1))
        other = {name: torch.randn(weight.shape) for name, weight in streamed.weights()}
        model.load_state_dict(other)
        assert differing(dict(streamed.masters()), other) == []
        rounded = {
            name: value.to(torch.bfloat16) for name, value in new_model().state_dict().items()
        }
        model.load_state_dict(rounded)
        masters = dict(streamed.masters())
    assert differing(masters, {name: value.float() for name, value in rounded.items()}) == []


def test_masters_may_begin_between_bf16_numbers() -> None:
    model = new_model()
    optimizer = adamw(model)
    first = {name: p.detach().float() * (1 + 2**-12) for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        optimizer.state[parameter]["master"] = first[name]
    with stream(model, optimizer) as streamed:
        backward(model, 0)
        assert differing(dict(streamed.masters()), first) == []


def test_masters_of_other_weights_are_refused() -> None:
    model = new_model()
    optimizer = adamw(model)
    with stream(model, optimizer) as streamed:
        train(model, optimizer, streamed, range(1))
    model.load_state_dict(new_model().state_dict())
    with (
        stream(model, optimizer),
        pytest.raises(
            OpenwaferError, match=r"'0.weight' are not its state 'master' rounded to torch.bfloat16"
        ),
    ):
        backward(model, 1)


def test_masters_that_torch_has_rounded_are_refused() -> None:
    model = new_model()
    optimizer = adamw(model)
    with stream(model, optimizer) as streamed:
        train(model, optimizer, streamed, range(1))
    optimizer.load_state_dict(optimizer.state_dict())
    with (
        stream(model, optimizer),
        pytest.raises(
            OpenwaferError,
            match=r"'0.weight' is \(64, 64\) torch.bfloat16, and the store keeps .*32",
        ),
    ):
        backward(model, 1)


def test_masters_of_fp32_weights_are_refused() -> None:
    model = new_model().float()
    with pytest.raises(OpenwaferError, match=r"no weight of Sequential is bf16"):
        stream(model, adamw(model))


def test_masters_of_resident_weights_are_refused() -> None:
    model, options = new_model(), replace(STREAMED, mode=Mode.RESIDENT)
    with pytest.raises(OpenwaferError, match=r"masters in the store, and mode for weights outside"):
        stream_weights(
            model, adamw(model), device_memory="1MiB", keeps_masters=True, options=options
        )
