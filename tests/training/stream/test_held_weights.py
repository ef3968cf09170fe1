"""Views of weights that somebody holds while the weights' memory becomes that of others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends import stream_weights
from openwafer.training.plan_record import Activations
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.stream.both_loops import STREAMED
from tests.training.stream.foreign_loops import CAP, SIZE, Loop, are_equal, new_loop, stream

Layer = type[nn.Linear]
# The store's ring has room for the update of one layer, and no more.
HOST_BYTES = 36_000


class Stack(nn.Module):
    def __init__(self, kind: Layer) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind(SIZE, SIZE) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class Positions(nn.Module):
    """A layer that returns a view of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(SIZE, SIZE) / 5)

    def forward(self, num: int) -> Tensor:
        return self.table[:num]


class Placed(Stack):
    def __init__(self) -> None:
        super().__init__(nn.Linear)
        self.positions = nn.ModuleList([Positions(), Positions()])

    def forward(self, x: Tensor) -> Tensor:
        first, second = (positions(len(x)) for positions in self.positions)
        for layer in self.layers:
            x = (layer(x) + first * x * second).tanh()
        return x


class KeepsSaved(nn.Linear):
    """Has hooks of its own for what autograd saves, which keep it."""

    def forward(self, x: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            return super().forward(x)


class SavesOnHost(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        with save_on_cpu():
            return super().forward(x)


def weights_after(loop: Loop) -> list[Tensor]:
    loop.train(3)
    return [weight.detach().clone() for weight in loop.parameters]


@pytest.mark.parametrize(
    "build",
    [Placed, lambda: Stack(KeepsSaved), lambda: Stack(SavesOnHost)],
    ids=["returned", "kept", "saved on host"],
)
def test_weights_that_a_pass_needs_beyond_their_layers_stay(
    build: Callable[[], nn.Module],
) -> None:
    loops = new_loop(build), new_loop(build)
    with stream(loops[0], policy=Activations.KEEP):
        found = weights_after(loops[0])
    assert are_equal(found, weights_after(loops[1]))


class Product(torch.autograd.Function):
    """Keeps what it needs without telling autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.x, ctx.weight = x.detach(), weight.detach()
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0] @ ctx.weight, gradients[0].t() @ ctx.x


class Untold(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = Product.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return product + self.bias


class Remembers(nn.Linear):
    turned: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.turned is None:
            self.turned = self.weight.detach().t()
        return super().forward(x) + x @ self.turned


@pytest.mark.parametrize("kind", [Untold, Remembers])
def test_views_that_outlive_a_pass_are_refused(kind: Layer) -> None:
    loop = new_loop(lambda: Stack(kind))
    message = r"a view of one of the weights .*layers\.0\.weight.* is held.*\n.*with \.clone\(\)"
    with stream(loop), pytest.raises(OpenwaferError, match=message):
        loop.train(2)


class RemembersLate(nn.Linear):
    """Holds a view of its weight once it is told to."""

    is_late = False
    turned: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.turned = self.weight.detach().t() if self.is_late else None
        return super().forward(x)


def refused(loop: Loop) -> None:
    """One layer after the other holds a view, and lets it go; the last is wanted by a backward."""
    for layer in [*loop.model.get_submodule("layers").children()][:-1]:
        assert isinstance(layer, RemembersLate)
        layer.is_late = True
        with pytest.raises(OpenwaferError, match="is held by an attribute"):
            loop.loss(0)
        layer.is_late, layer.turned = False, None


def test_a_loop_goes_on_after_refusals_in_the_least_host_memory(tmp_path: Path) -> None:
    loops = new_loop(lambda: Stack(RemembersLate)), new_loop(lambda: Stack(RemembersLate))
    options = replace(STREAMED, tier=StoreTier.DISK, host_memory_bytes=HOST_BYTES)
    streamed = stream_weights(
        loops[0].model, loops[0].optimizer, device_memory=CAP, folder=tmp_path, options=options
    )
    with streamed:
        loops[0].train(1)
        refused(loops[0])
        found = weights_after(loops[0])
    loops[1].train(1)
    assert are_equal(found, weights_after(loops[1]))
