"""Layers that use torch.func in their forward: those that work, and those that are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Activations
from tests.tables import checkerboard, some
from tests.training.stream.foreign_loops import SIZE, Loop, are_equal, new_loop, outcome, stream

# torch.func.jvp of torch 2.14 calls torch.jit.script itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
Function = Callable[[Tensor], Tensor]
Transform = Callable[[Function, Tensor], Tensor]


def by_grad(function: Function, x: Tensor) -> Any:
    return torch.func.grad(lambda y: function(y).sum())(x)


def by_vjp(function: Function, x: Tensor) -> Any:
    pull: Any = torch.func.vjp(function, x)[1]
    return pull(torch.ones_like(x))[0]


def by_jacrev(function: Function, x: Tensor) -> Any:
    return torch.func.jacrev(lambda y: function(y).sum())(x)


def by_autograd(function: Function, x: Tensor) -> Any:
    if not x.requires_grad:
        x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]


def by_vmap(function: Function, x: Tensor) -> Any:
    return torch.func.vmap(function)(x)


def by_jvp(function: Function, x: Tensor) -> Any:
    return torch.func.jvp(function, (x,), (torch.ones_like(x),))[1]


class Transformed(nn.Linear):
    transform: Transform

    def forward(self, x: Tensor) -> Tensor:
        return x + type(self).transform(self.computed, x)

    def computed(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias).tanh()


def stack(chosen: Transform) -> Callable[[], nn.Module]:
    class Chosen(Transformed):
        transform = staticmethod(chosen)

    return lambda: nn.Sequential(*(Chosen(SIZE, SIZE) for _ in range(4)))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("transform", "policy"), checkerboard((by_autograd, by_vmap, by_jvp), Activations, one_in=3)
)
def test_a_layer_that_needs_no_hooks_away_learns_what_it_learns_plainly(
    transform: Transform, policy: Activations
) -> None:
    found = outcome(lambda loop: loop.train(2), build=stack(transform), policy=policy)
    assert are_equal(
        found, outcome(lambda loop: loop.train(2), build=stack(transform), streams=False)
    )


@pytest.mark.parametrize("transform", [by_grad, by_vjp, by_jacrev])
def test_a_layer_that_differentiates_by_func_is_refused(transform: Transform) -> None:
    loop = new_loop(stack(transform))
    message = r"(?s)forward of '0' differentiates by torch\.func.*help: .*torch\.autograd\.grad"
    with stream(loop), pytest.raises(OpenwaferError, match=message):
        loop.train(1)


class Normed(nn.Linear):
    """Its tangents come by formulas that torch chooses by who watches."""

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = super().forward(functional.layer_norm(x, (SIZE,)).tanh())
        out: Tensor = x + hidden
        return out


def tangent(loop: Loop) -> Tensor:
    loop.train(1)
    x, direction = torch.randn(2, 4, SIZE, generator=torch.Generator().manual_seed(1))
    with forward_ad.dual_level():
        out: Tensor = loop.model(forward_ad.make_dual(x, direction))
        found: Tensor = forward_ad.unpack_dual(out).tangent.detach().clone()
        return found


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("policy", some(Activations, Activations.OFFLOAD))
def test_the_tangents_of_a_call_are_those_of_the_plain_model(policy: Activations) -> None:
    def build() -> nn.Module:
        return nn.Sequential(*(Normed(SIZE, SIZE) for _ in range(4)))

    expected = outcome(tangent, build=build, streams=False)
    assert are_equal(outcome(tangent, build=build, policy=policy), expected)
