"""A linear module that skips the zeros of its input, and which inputs have zeros without a slope.

Whether gradients pass a zero is read off the graph that autograd has recorded of the input. What is
not known here may have a slope at zero, as GELU has, so that an answer is right or no.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn import functional
from torch.nn.utils import parametrize

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.sparsity.activations import activation_linear
from openwafer.training.torch_private import FakeTensor


class ActivationChoice(StrEnum):
    """``auto`` takes all whose input comes from a ReLU or the like."""

    AUTO = "auto"


WrittenActivations: TypeAlias = ActivationChoice | tuple[str, ...]
"""Or globs of the names of modules."""


KEEPING: Final = frozenset(
    f"{name}Backward{number}"
    for name in (
        *("View", "UnsafeView", "ReshapeAlias", "Alias", "Clone", "Slice", "Select"),
        *("Squeeze", "Unsqueeze", "Transpose", "Permute", "T", "NativeDropout", "Mul"),
        *("Scatter", "Gather", "Topk", "Where"),
    )
    for number in range(3)
)
"""Zero where one of what they are made of is zero, or at places that they pass no gradient to."""


def is_flat_at_zeros(tensor: Tensor) -> bool:
    """Whether gradients at the zeros of a tensor reach nothing that is trained.

    Numbers that become zero because they are too small for their format are not told apart: what
    they would have passed on is as small.
    """
    if not torch.is_grad_enabled():
        return False
    return not tensor.requires_grad or _is_flat(tensor.grad_fn)


def _is_flat(node: Node | None) -> bool:
    """Of a tensor that needs a gradient, by what made it; `None` is nothing but the tensor."""
    if node is None:
        return False
    name, saved = node.name(), partial(getattr, node)
    if name == "ReluBackward0":
        return True
    if name == "HardtanhBackward0":
        return bool(saved("_saved_min_val") == 0 < saved("_saved_max_val"))
    is_power = name == "PowBackward0" and saved("_saved_exponent") > 0
    is_quotient = name == "DivBackward0" and node.next_functions[1][0] is None
    if not (name in KEEPING or is_power or is_quotient):
        return False
    return all(_is_flat(made) for made, _ in node.next_functions if made is not None)


def made_by(tensor: Tensor) -> str:
    """What made a tensor, in words."""
    node = tensor.grad_fn
    if not torch.is_grad_enabled():
        return "a forward without gradients"
    return "another layer or a leaf" if node is None else node.name().rstrip("0123456789")


def inputs_of_linears(model: nn.Module, run: Callable[[], object]) -> dict[str, str]:
    """For each linear module that a forward calls: what made its input, or "" where zeros are flat.

    Args:
        model: whose modules are watched.
        run: the forward, with gradients.
    """
    found: dict[str, str] = {}

    def look(name: str, _module: nn.Module, args: tuple[Any, ...]) -> None:
        given = args[0] if args else None
        is_flat = isinstance(given, Tensor) and is_flat_at_zeros(given)
        source = made_by(given) if isinstance(given, Tensor) else "a keyword"
        found[name] = found.get(name, "") or ("" if is_flat else source)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                stack.enter_context(module.register_forward_pre_hook(partial(look, name)))
        run()
    return found


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
