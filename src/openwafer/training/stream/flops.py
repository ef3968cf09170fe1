"""Floating-point operations of matrix products, convolutions and attentions, call by call."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import torch
from torch.utils.flop_counter import flop_registry

from openwafer.training.torch_private import OpOverload


def attention_flops(query: Sequence[int], key: Sequence[int], width: int) -> int:
    """Of products of tokens x tokens in each head of the query with so many features in all."""
    return 2 * prod(query[:-1]) * key[-2] * width


def _of_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    return attention_flops(query.shape, key.shape, query.shape[-1] + value.shape[-1])


def _of_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any
) -> int:
    """The scores are made again: five products of the forward's two."""
    width = 3 * query.shape[-1] + 2 * gradient.shape[-1]
    return attention_flops(query.shape, key.shape, width)


# torch counts no attention of a CPU, and 2.11 none whose queries have more heads than keys.
_ATTENTION_FLOPS: Final[Mapping[Any, Callable[..., int]]] = {
    getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}{end}"): flops
    for kernel in (
        *("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention"),
    )
    for end, flops in (("", _of_forward), ("_backward", _of_backward))
}


def formula_of(function: Any) -> Callable[..., int] | None:
    """How the flops of an operator's calls are counted; it may be registered at any time."""
    if not isinstance(function, OpOverload):
        return None
    packet = function.overloadpacket
    found: Callable[..., int] | None = _ATTENTION_FLOPS.get(packet) or flop_registry.get(packet)
    return found


def flops_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Of a call of an operator that returned ``out``; 0 of one that is none of these kinds."""
    formula = formula_of(function)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))
