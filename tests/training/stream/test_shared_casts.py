"""Weights that autocast would cast once for several calls of layers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from tests.training.stream.foreign_loops import Loop, are_equal, new_loop, outcome, stream


class Repeated(nn.Module):
    """Layers that are called several times in a forward."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            for _ in range(self.times):
                x = layer(x).tanh()
        return x


def cast_loss(loop: Loop, *, keeps_casts: bool = True) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=keeps_casts):
        return loop.loss(0)


def a_forward_each(loop: Loop) -> None:
    for _ in range(3):
        (cast_loss(loop) + cast_loss(loop)).backward()
        loop.step()


def without_kept_casts(loop: Loop) -> None:
    for _ in range(3):
        cast_loss(loop, keeps_casts=False).backward()
        loop.step()


@pytest.mark.parametrize(("lines", "times"), [(a_forward_each, 1), (without_kept_casts, 2)])
def test_casts_that_no_two_calls_share_are_those_of_the_plain_loop(
    lines: Callable[[Loop], None], times: int
) -> None:
    found = outcome(lines, build=lambda: Repeated(times))
    assert are_equal(found, outcome(lines, build=lambda: Repeated(times), streams=False))


def called_again(loop: Loop) -> None:
    cast_loss(loop).backward()


def two_forwards(loop: Loop) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        (loop.loss(0) + loop.loss(1)).backward()


def two_steps(loop: Loop) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loop.train(2)


@pytest.mark.parametrize(("lines", "times"), [(called_again, 2), (two_forwards, 1), (two_steps, 1)])
def test_a_cast_that_two_calls_would_share_is_refused(
    lines: Callable[[Loop], None], times: int
) -> None:
    loop = new_loop(lambda: Repeated(times))
    message = r"(?s)'layers\.0\.weight' is used by several calls .* cache_enabled=False"
    with stream(loop):
        loop.train(1)
        with pytest.raises(OpenwaferError, match=message):
            lines(loop)


class Counting(Repeated):
    """Counts how often it is asked for one of its modules."""

    def __init__(self) -> None:
        super().__init__(times=1)
        self.num_asked = 0

    def get_submodule(self, target: str) -> nn.Module:
        self.num_asked += 1
        return super().get_submodule(target)


def test_a_layers_module_is_found_once_and_not_at_each_call() -> None:
    loop = new_loop(Counting)
    with stream(loop):
        loop.train(1)
        num_asked = loop.model.num_asked
        loop.train(2)
    assert loop.model.num_asked == num_asked
