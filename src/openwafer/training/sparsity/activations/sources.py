"""Whether a zero of a tensor has no slope: whether no gradient passes whatever made it zero.

It is read off the graph that autograd has recorded of the tensor. What is not known here may have
a slope at zero, as GELU has, so that an answer is right or no.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

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
