"""Weights that autocast would cast once for several calls of layers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from tests.tables import some
from tests.training.stream.foreign_loops import Loop, are_equal, new_loop, outcome, stream


class Repeated(nn.Module):
    """Layers that are called several times in a forward."""

    def __init__(self, times: int, kind: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind(32, 32) for _ in range(3))
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


@pytest.mark.slow
@pytest.mark.parametrize(("lines", "times"), [(a_forward_each, 1), (without_kept_casts, 2)])
def test_casts_that_no_two_calls_share_are_those_of_the_plain_loop(
    lines: Callable[[Loop], None], times: int
) -> None:
    found = outcome(lines, build=lambda: Repeated(times))
    assert are_equal(found, outcome(lines, build=lambda: Repeated(times), streams=False))


class CastsInside(nn.Linear):
    """Enters autocast by itself, or leaves it for a part."""

    keeps_casts: bool | None = None
    is_on = True

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, self.is_on, cache_enabled=self.keeps_casts):
            return super().forward(x.float()).float()


class KeepsCasts(CastsInside):
    keeps_casts = True


class Leaves(CastsInside):
    is_on = False


class Between(nn.Module):
    """A weight that the model uses by itself between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.mix = nn.Parameter(torch.randn(32, 32) / 6)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = (layer(x) @ self.mix).tanh()
        return x


def of(kind: type[nn.Linear]) -> Callable[[], nn.Module]:
    return lambda: Repeated(2, kind)


def two_forwards_off(loop: Loop) -> None:
    with torch.autocast("cpu", enabled=False):
        (loop.loss(0) + loop.loss(1)).backward()


def two_forwards_unkept(loop: Loop) -> None:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        (loop.loss(0) + loop.loss(1)).backward()


INSIDE = [
    (two_forwards_off, of(CastsInside), r"layers\.0\.weight"),
    (two_forwards_unkept, of(KeepsCasts), r"layers\.0\.weight"),
    (lambda loop: cast_loss(loop).backward(), Between, "mix"),
]


@pytest.mark.parametrize(("lines", "build", "name"), INSIDE, ids=["off", "unkept", "between"])
def test_casts_that_are_kept_by_no_call_of_a_layer_are_found(
    lines: Callable[[Loop], None], build: Callable[[], nn.Module], name: str
) -> None:
    loop = new_loop(build)
    with stream(loop):
        loop.train(1)
        with pytest.raises(OpenwaferError, match=rf"'{name}' is used by several calls"):
            lines(loop)


@pytest.mark.parametrize(
    ("lines", "kind"),
    some(
        [
            (two_forwards_off, Leaves),
            (two_forwards_off, nn.Linear),
            (two_forwards_unkept, CastsInside),
        ],
        (two_forwards_unkept, CastsInside),
    ),
)
def test_layers_whose_casts_are_not_kept_are_those_of_the_plain_loop(
    lines: Callable[[Loop], None], kind: type[nn.Linear]
) -> None:
    found = outcome(lines, build=of(kind))
    assert are_equal(found, outcome(lines, build=of(kind), streams=False))


def called_again(loop: Loop) -> None:
    cast_loss(loop).backward()


def two_forwards(loop: Loop) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        (loop.loss(0) + loop.loss(1)).backward()


def two_steps(loop: Loop) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loop.train(2)


@pytest.mark.parametrize(
    ("lines", "times"),
    some([(called_again, 2), (two_forwards, 1), (two_steps, 1)], (called_again, 2), (two_steps, 1)),
)
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
