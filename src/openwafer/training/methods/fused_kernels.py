"""Operators that accelerators have as one kernel, and that torch on a CPU makes of several.

Attention with dropout, keys of another width than values, a norm by the root mean square: on a CPU
each is a row of operators that leave what lies between them for the backward, tokens x tokens in an
attention. A count for other systems takes the kernels, which keep what they were given, what they
return, and a number for each row (Dao et al. 2022, arXiv 2205.14135, section 3.1).
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from openwafer.training.stream.flops import attention_flops
from openwafer.training.stream.plan.operators import CallsByKind
from openwafer.training.torch_private import DispatchKey, scoped_library

_LOCK: Final = threading.RLock()


@torch.library.custom_op("openwafer::fused_attention", mutates_args=())
def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Attention `[..., heads, tokens, features]`, and what the softmax of each row divides by."""
    is_grouped = query.dim() > 2 and query.shape[-3] != key.shape[-3]
    options = {"is_causal": is_causal, "scale": scale, "enable_gqa": is_grouped}
    out = functional.scaled_dot_product_attention(query, key, value, mask, **options)  # type: ignore[arg-type]
    return out, query.new_zeros(query.shape[:-1], dtype=torch.float32)


@fused_attention.register_fake
def _(query: Tensor, _key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    *outer, num_tokens, _width = query.shape
    # In the order that the layers around it have: token by token, its heads beside each other.
    heads = outer[1:] if len(outer) > 1 else []
    out = query.new_empty((*outer[: len(outer) - len(heads)], num_tokens, *heads, value.shape[-1]))
    out = out.movedim(-2 - len(heads), -2) if heads else out
    return out, query.new_empty(query.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("openwafer::fused_attention_backward", mutates_args=())
def fused_attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors for the gradients, whose values no count asks for."""
    del gradient
    return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)


@fused_attention_backward.register_fake
def _(
    _gradient: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)


def _attention_gradients(ctx: Any, gradient: Tensor, _: object) -> tuple[Tensor | None, ...]:
    query, key, value, mask, *_ = ctx.saved_tensors
    gradients = fused_attention_backward(gradient, query, key, value)
    of_mask = torch.zeros_like(mask) if ctx.needs_input_grad[3] else None
    return *gradients, of_mask, None, None


fused_attention.register_autograd(_attention_gradients, setup_context=_keep_attention)


@register_flop_formula(torch.ops.openwafer.fused_attention)
def _(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    return attention_flops(query, key, query[-1] + value[-1])


@register_flop_formula(torch.ops.openwafer.fused_attention_backward)
def _(gradient: Sequence[int], query: Sequence[int], key: Sequence[int], *_: Any, **__: Any) -> int:
    return attention_flops(query, key, 3 * query[-1] + 2 * gradient[-1])


@torch.library.custom_op("openwafer::fused_rms_norm", mutates_args=())
def fused_rms_norm(
    given: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """`given` over its root mean square along the last dims of `shape`, and one over each root."""
    rows = given.shape[: given.dim() - len(shape)]
    roots = given.new_zeros(rows, dtype=torch.float32)
    return functional.rms_norm(given, [*shape], weight, eps), roots


@fused_rms_norm.register_fake
def _(
    given: Tensor, shape: Sequence[int], _weight: Tensor | None, _eps: float | None
) -> tuple[Tensor, Tensor]:
    rows = given.shape[: given.dim() - len(shape)]
    return torch.empty_like(given), given.new_empty(rows, dtype=torch.float32)


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], inputs[2], output[1])


def _norm_gradients(ctx: Any, gradient: Tensor, _: object) -> tuple[Tensor | None, ...]:
    _given, weight, _roots = ctx.saved_tensors
    of_weight = None if weight is None else torch.zeros_like(weight)
    return torch.zeros_like(gradient), None, of_weight, None


fused_rms_norm.register_autograd(_norm_gradients, setup_context=_keep_norm)


@contextmanager
def fused_kernels() -> Iterator[None]:
    """Let this thread's operators be those of an accelerator; other threads keep their own."""
    owner = threading.get_ident()
    with _LOCK, scoped_library("aten", "IMPL") as library:
        for name, kernel in _KERNELS.items():
            library.impl(name, _for_thread(owner, name, kernel), "AutogradCPU")
        yield


def num_attentions(calls: CallsByKind) -> int:
    """How many of these calls are of the attention that is one kernel."""
    kernel = torch.ops.openwafer.fused_attention.default
    return sum(found.number for kind, found in calls.items() if kind.function is kernel)


def _for_thread(owner: int, name: str, kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    own = partial(_own, getattr(torch.ops.aten, name).default)

    def call(*args: Any, **kwargs: Any) -> Tensor:
        return (kernel if threading.get_ident() == owner else own)(*args, **kwargs)

    return call


def _own(operator: Any, *args: Any, **kwargs: Any) -> Tensor:
    """What torch itself does; `decompose` of some operators does something else."""
    row: Tensor = operator._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)  # noqa: SLF001
    return row


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *more: Any, **named: Any
) -> Tensor:
    """Dropout, the first of `more`, leaves nothing: its random numbers are drawn again."""
    is_causal = len(more) > 1 and bool(more[1])
    return fused_attention(query, key, value, mask, is_causal, named.get("scale"))[0]  # type: ignore[no-any-return]


def _dropout(given: Tensor, share: float, is_training: bool) -> Tensor:
    if is_training and 0 < share < 1:
        return torch.native_dropout(given, share, train=True)[0]
    return _own(torch.ops.aten.dropout.default, given, share, is_training)


def _rms_norm(
    given: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    return fused_rms_norm(given, shape, weight, eps)[0]  # type: ignore[no-any-return]


_KERNELS: Final[Mapping[str, Callable[..., Tensor]]] = {
    "scaled_dot_product_attention": _attention,
    "dropout": _dropout,
    "rms_norm": _rms_norm,
}
