"""Loops that call parts of a model, and models that have parts in common."""

from itertools import chain

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from tests.training.stream.both_loops import STREAMED

SIZE = 16


def perceptron() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(SIZE, SIZE) for _ in range(3)))


class Headed(nn.Module):
    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.trunk(x))
        return out.square().mean()


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(chain.from_iterable(m.parameters() for m in modules), lr=0.1)


X = torch.ones(2, SIZE)


def test_a_part_that_is_called_before_the_model_is_refused() -> None:
    model = nn.ModuleDict({"g": perceptron(), "d": perceptron()})
    with stream_weights(model, sgd(model), device_memory="1MiB", options=STREAMED):
        with torch.no_grad():
            model["g"](X)
        with pytest.raises(OpenwaferError, match=r"its part 'g' is called by itself\n.*each part"):
            model["g"](X)


def test_a_model_that_is_called_segment_by_segment_is_refused() -> None:
    model = perceptron()
    with (
        stream_weights(model, sgd(model), device_memory="1MiB", options=STREAMED),
        pytest.raises(OpenwaferError, match=r"this Sequential has not been called as a whole"),
    ):
        checkpoint_sequential(model, 2, X.clone().requires_grad_(), use_reentrant=True)


def test_a_step_of_a_model_that_was_never_called_is_refused() -> None:
    model = nn.ParameterList([torch.ones(SIZE)])
    optimizer = sgd(model)
    with stream_weights(model, optimizer, device_memory="1MiB", options=STREAMED):
        (model[0] * 2).sum().backward()
        with pytest.raises(OpenwaferError, match=r"its optimizer is to take a step\n.*whose forw"):
            optimizer.step()


def test_parts_may_be_called_once_the_model_has_been() -> None:
    plain, model = Headed(perceptron()), Headed(perceptron())
    plain.load_state_dict(model.state_dict())
    with stream_weights(model, optimizer := sgd(model), device_memory="1MiB", options=STREAMED):
        for one, its in ((plain, sgd(plain)), (model, optimizer)):
            one(X).backward()
            one.trunk(X).sum().backward()
            its.step()
    assert all(map(torch.equal, plain.parameters(), model.parameters()))


def test_a_trunk_of_two_streams_is_refused_by_name() -> None:
    first = Headed(perceptron())
    second = Headed(first.trunk)
    with (
        stream_weights(first, sgd(first), device_memory="1MiB", options=STREAMED),
        stream_weights(second, sgd(second.head), device_memory="1MiB", options=STREAMED),
    ):
        first(X).backward()
        with pytest.raises(OpenwaferError, match=r"'trunk.0.weight' of this Headed is streamed wi"):
            second(X)


def test_a_trunk_of_two_models_that_fit_stays_resident() -> None:
    first = Headed(perceptron())
    second = Headed(first.trunk)
    with (
        stream_weights(first, sgd(first), device_memory="1MiB"),
        stream_weights(second, sgd(second.head), device_memory="1MiB"),
    ):
        first(X).backward()
        second(X).backward()
    assert all(parameter.grad is not None for parameter in second.parameters())


def train_adversaries(*, streams: bool) -> list[Tensor]:
    """A generator and a judge, each with an optimizer, and a stream where there is one."""
    torch.manual_seed(0)
    models = perceptron(), perceptron()
    optimizers = [sgd(model) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True) if streams else ():
        stream_weights(model, optimizer, device_memory="1MiB", options=STREAMED)
    make, judge = models
    for sign in (1.0, -1.0, 1.0, -1.0):
        (sign * judge(make(X)).mean()).backward()
        optimizers[int(sign > 0)].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    return [p.detach().clone() for model in models for p in model.parameters()]


def test_two_streams_train_against_each_other_as_two_plain_models_do() -> None:
    streamed, plain = (train_adversaries(streams=streams) for streams in (True, False))
    assert all(map(torch.equal, streamed, plain))
