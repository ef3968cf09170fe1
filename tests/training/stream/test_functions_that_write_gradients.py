"""An autograd.Function whose backward gives a weight its gradient by itself, as Megatron's do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from tests.training.stream.foreign_loops import SIZE, Loop, are_equal, outcome

NUM_WEIGHTS = 6

Give = Callable[[nn.Parameter, Tensor], None]


def sets_gradient(weight: nn.Parameter, gradient: Tensor) -> None:
    weight.grad = gradient if weight.grad is None else weight.grad + gradient


def adds_to_gradient(weight: nn.Parameter, gradient: Tensor) -> None:
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    weight.grad.add_(gradient)


def adds_to_main_gradient(weight: Any, gradient: Tensor) -> None:
    weight.main_grad.add_(gradient)


class OfKept(torch.autograd.Function):
    """Keeps the parameter itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, give: Give) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.give = weight, give
        return x @ weight.detach().t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        [x] = ctx.saved_tensors
        ctx.give(ctx.weight, gradient.t() @ x)
        return gradient @ ctx.weight.detach(), None, None


class OfSaved(torch.autograd.Function):
    """Finds the weight among the saved tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, give: Give) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.give = give
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        ctx.give(weight, gradient.t() @ x)
        return gradient @ weight, None, None


class Layer(nn.Module):
    def __init__(self, function: Any, give: Give) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIZE, SIZE) / 8)
        self.weight.__dict__["main_grad"] = torch.zeros(SIZE, SIZE)
        self.function, self.give = function, give

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + torch.tanh(self.function.apply(x, self.weight, self.give))
        return out


class Stack(nn.Module):
    def __init__(self, function: Any, give: Give) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(function, give) for _ in range(4))
        self.inlet = nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inlet(x)
        for layer in self.layers:
            x = layer(x)
        return x


def two_backwards(loop: Loop) -> Any:
    for step in (1, 2):
        loop.backward(2 * step)
        loop.backward(2 * step + 1)
        for parameter in loop.parameters:
            main = getattr(parameter, "main_grad", None)
            if main is not None and main.any():
                parameter.grad = main.clone()
                main.zero_()
        loop.step()


@pytest.mark.parametrize("give", [sets_gradient, adds_to_gradient, adds_to_main_gradient])
def test_gradients_given_to_the_parameter_are_those_of_the_plain_loop(give: Give) -> None:
    def build() -> nn.Module:
        return Stack(OfKept, give)

    found, expected = (outcome(two_backwards, build=build, streams=one) for one in (True, False))
    assert are_equal(found[:NUM_WEIGHTS], expected[:NUM_WEIGHTS])


@pytest.mark.parametrize("give", [sets_gradient, adds_to_gradient])
def test_a_gradient_given_to_a_saved_weight_is_refused_at_its_line(give: Give) -> None:
    with pytest.raises(OpenwaferError, match=r"uses \.grad of the saved weight") as found:
        outcome(two_backwards, build=lambda: Stack(OfSaved, give))
    assert found.traceback[-2].name == give.__name__
    [told] = found.value.diagnostics
    assert told.code == "saved-weight-gradient"
    assert "return the gradient from backward" in (told.help or "")
