"""Causal attention for autograd, whose queries, keys and values are on the wafer."""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from openwafer.fabric_device.arrangement import Arrangement
from openwafer.fabric_device.linear import Wafers
from openwafer.fabric_device.on_wafer import OnWafer, at_rest, gradient_rested, kept
from openwafer.fabric_device.selection import added_back, selected
from openwafer.fabric_device.wafer import Held, Wafer
from openwafer.sdk.kernels.resident_plan import Activation, Attended, Heads

_SCALE_ERROR: Final = 1e-6
"""Relative, of a scale that is taken for one over the root of a head's features."""


def attention(
    wafers: Wafers, query: Tensor, key: Tensor, value: Tensor, *positional: Any, **options: Any
) -> Tensor | None:
    """What `F.scaled_dot_product_attention` gives, of (samples, heads, tokens, features of a head).

    Heads of keys and values may be fewer than those of queries. None where no kernel has it: with a
    mask or dropout, without causality, by another scale, or of tensors that are elsewhere. Inside a
    layer that is refused.
    """
    options |= zip(("attn_mask", "dropout_p", "is_causal"), positional, strict=False)
    scale = options.get("scale")
    is_known = options.get("attn_mask") is None and not options.get("dropout_p")
    is_known = is_known and bool(options.get("is_causal"))
    is_scaled = scale is None or abs(scale * query.shape[-1] ** 0.5 - 1) < _SCALE_ERROR
    if not (is_known and is_scaled and _are_of_heads(query, key, value)):
        if wafers.account.refuses is not None:
            raise wafers.account.refusal("attention that is not causal self-attention by 1/sqrt(d)")
        return None
    assert isinstance(query, OnWafer)
    _, count, length, size = query.shape
    call = _Call(wafers.account.layer, wafers, query.rest.wafer, Heads(count, size, length))
    result: Tensor = _Attention.apply(call, query, key, value)  # type: ignore[no-untyped-call]
    return result


def _are_of_heads(query: Tensor, key: Tensor, value: Tensor) -> bool:
    are_there = all(isinstance(one, OnWafer) and one.ndim == 4 for one in (query, key, value))
    is_divided = key.shape == value.shape and query.shape[1] % key.shape[1] == 0
    is_self = key.shape[0] == query.shape[0] and key.shape[2:] == query.shape[2:]
    return are_there and is_divided and is_self


@dataclass(frozen=True)
class _Call:
    """Attention of a layer.

    Attributes:
        layer: its name.
        wafers: of the device.
        wafer: of the tokens.
        heads: of queries.
    """

    layer: str
    wafers: Wafers
    wafer: Wafer
    heads: Heads

    def of_queries(self, given: Tensor) -> Held:
        """Keys or values of each query's head."""
        lies = _lying(given.shape)
        rest = at_rest(given, self.wafer, lies)
        if given.shape[1] < self.heads.count:
            rest = selected(rest, self._shared(given.shape))
        return rest

    def gradient(self, found: Activation, shape: torch.Size) -> Tensor:
        """The gradient of what heads of queries share."""
        rest, lies = self.wafer.made(found, has_zeros=True), _lying(shape)
        if shape[1] < self.heads.count:
            rest = added_back(rest, self._shared(shape), len(lies.features))
        return OnWafer.of(rest, lies)

    def _shared(self, shape: torch.Size) -> tuple[int, ...]:
        """Features of each query's head among those of fewer ones."""
        num_queries, size = self.heads.count // shape[1], self.heads.size
        begins = [head // num_queries * size for head in range(self.heads.count)]
        return tuple(begin + number for begin in begins for number in range(size))


class _Attention(torch.autograd.Function):
    """The node of attention in autograd's graph; what it keeps stays on the wafer."""

    @staticmethod
    def forward(ctx: Any, call: _Call, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        wafer = call.wafer
        with wafer.account.inside(call.layer):
            call.wafers.attend(wafer, call.heads)
            rests = [call.of_queries(one) for one in (query, key, value)]
            made = wafer.resident.attention(*(one.activation for one in rests))
            out = OnWafer.of(wafer.made(made.out), _lying(query.shape))
        ctx.call = call
        ctx.save_for_backward(query, key, value, out, *kept(wafer, made.kept))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        *given, out, numbers = ctx.saved_tensors
        call: _Call = ctx.call
        wafer, lies = call.wafer, _lying(out.shape)
        with wafer.account.inside(call.layer):
            call.wafers.attend(wafer, call.heads)
            dout, result = gradient_rested(gradient, wafer, lies), at_rest(out, wafer, lies)
            q, k, v = (call.of_queries(one) for one in given)
            found = wafer.resident.attention_delta(
                (q.activation, k.activation, v.activation),
                Attended(result.activation, numbers.rest.activation),
                dout.activation,
            )
            gradients = map(call.gradient, found, [one.shape for one in given])
            return None, *gradients


def _lying(shape: torch.Size) -> Arrangement:
    """Heads one behind the other among a token's features, and samples among tokens."""
    _, heads, tokens, size = shape
    strides = tokens * heads * size, size, heads * size, 1
    packed = [1 if shape[i] == 1 else stride for i, stride in enumerate(strides)]
    return Arrangement(tuple(range(heads * size)), shape, tuple(packed))
