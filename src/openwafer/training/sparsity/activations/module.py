"""A linear module that skips the zeros of its input, in the place of one that does not."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.sparsity.activations.linear import activation_linear
from openwafer.training.sparsity.activations.sources import is_flat_at_zeros, made_by
from openwafer.training.torch_private import FakeTensor


@dataclass
class Tally:
    """What a module has met in training.

    Attributes:
        numbers: of its inputs.
        zeros: how many of them were zero.
        skipped: how many were skipped, in each of the products.
    """

    numbers: int = 0
    zeros: int = 0
    skipped: int = 0

    def add(self, numbers: int, found: Tensor) -> None:
        """Add one input; `found` is as the product tells it."""
        kept, skips = (int(number) for number in found)
        self.numbers += numbers
        self.zeros += numbers - kept
        self.skipped += (numbers - kept) * skips


class ActivationLinear(nn.Linear):
    """The same parameters as a linear module, multiplied without the zeros of the input.

    Zeros get no gradient where they are skipped. So what makes the input is looked at in every
    forward that has gradients.

    Args:
        linear: gives its parameters.
        name: of the module, for errors.

    Attributes:
        tally: counts the inputs of forwards with gradients.
    """

    def __init__(self, linear: nn.Linear, name: str) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)
        self.train(linear.training)
        self.name = name
        self.tally = Tally()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (torch names it)
        """`[..., in_features]` to `[..., out_features]`.

        Raises:
            OpenwaferError: ``activation-zeros`` where gradients may pass a zero of the input.
        """
        is_plain = input.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        if not is_plain or not input.dtype == self.weight.dtype == torch.float32:
            return functional.linear(input, self.weight, self.bias)
        is_graded = torch.is_grad_enabled()
        if is_graded and not is_flat_at_zeros(input):
            raise slope_at_zero(self.name, made_by(input))
        output, found = activation_linear(input, self.weight, self.bias)
        if is_graded and not isinstance(found, FakeTensor):
            self.tally.add(input.numel(), found)
        return output


def is_replaceable(module: nn.Module) -> bool:
    """Whether a module is a plain linear one that nobody watches or changes."""
    is_watched = vars(module)["_forward_hooks"] or vars(module)["_forward_pre_hooks"]
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)
        and not parametrize.is_parametrized(module)
        and not is_watched
    )


def replace_linear(model: nn.Module, name: str) -> None:
    """Let a linear module of a model skip the zeros of its input."""
    linear = model.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, ActivationLinear(linear, name))


def slope_at_zero(name: str, source: str) -> OpenwaferError:
    """The error of a module whose input may have zeros that gradients pass."""
    return error(
        "activation-zeros",
        f"activation_sparsity would skip the zeros of the input of {name!r}, which comes from "
        f"{source}: gradients may pass a zero there",
        help="leave this module out; inputs come from ReLU, ReLU6 or hardtanh from 0 on, with "
        "powers, products, dropout, top-k and other shapes between, all in one layer",
    )
