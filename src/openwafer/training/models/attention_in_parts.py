"""Causal attention over some of the keys on a CPU: rectangles of queries and keys, joined.

Torch's kernel for CPUs adds a mask to every score, and goes through few rows at a time where a call
has few queries. So keys that all queries of a block see are given to it without a mask, and what
many blocks see in one call. Each part leaves the logarithm of its sum of exponentials, by
which parts are joined; the backward takes the joined one, and so sees the whole softmax
(T. Dao et al., arXiv 2205.14135, section 3.1).

Shapes: M batch and heads, N tokens, K size of one head, P blocks, S tokens of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from openwafer.training.models.attention_pattern import Pattern
from openwafer.training.torch_private import cpu_attention, cpu_attention_backward


@dataclass(frozen=True)
class Part:
    """Queries that see keys, all of them or the like.

    Attributes:
        queries: their rows.
        keys: theirs.
        block: tokens of a block, where queries see the keys of their own block alone, the first
            block of queries those of the first block of keys; ``None`` where they see all.
        is_causal: whether a query sees no key behind it.
    """

    queries: slice
    keys: slice
    block: int | None = None
    is_causal: bool = False

    def of_queries(self, whole: Tensor) -> Tensor:
        """Those rows of (M, N, ...), by block: (M, P, S, ...)."""
        return self._by_block(whole[:, self.queries])

    def of_keys(self, whole: Tensor) -> Tensor:
        """As :meth:`of_queries`."""
        return self._by_block(whole[:, self.keys])

    def _by_block(self, rows: Tensor) -> Tensor:
        return rows[:, None] if self.block is None else rows.unflatten(1, (-1, self.block))


def are_rectangles(pattern: Pattern) -> bool:
    """Whether parts make up a pattern: blocks see whole blocks, but for those behind a query."""
    return pattern.window is None and not pattern.sees_last


def parts_of(pattern: Pattern, num_tokens: int) -> Iterator[Part]:
    """What makes up such a pattern of so many tokens; the first parts have a key for every query.

    Behind the last whole block there may be a shorter one.
    """
    size = pattern.block
    end = num_tokens // size * size
    rest = slice(end, num_tokens)
    if end:
        yield Part(slice(0, end), slice(0, end), size, is_causal=True)
    if end < num_tokens:
        yield Part(rest, rest, is_causal=True)
    for first in range(size, (pattern.before + 1) * size, size):
        if first < end:
            yield Part(slice(first, end), slice(0, end - first), size)
        if end < num_tokens and first <= end:
            yield Part(rest, slice(end - first, end - first + size))
    for first in range(0, pattern.first * size, size):
        behind = first + (pattern.before + 1) * size
        if behind < num_tokens:
            yield Part(slice(behind, num_tokens), slice(first, first + size))


class AttentionInParts(torch.autograd.Function):
    """Attention (M, N, K) of queries, keys and values of all tokens, of that shape each."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, scale: float | None
    ) -> Tensor:
        """Join what the parts gather."""
        out = torch.zeros_like(query, dtype=torch.promote_types(query.dtype, torch.float32))
        sums = out.new_full(query.shape[:2], -torch.inf)
        for part in parts_of(pattern, query.shape[1]):
            own, its = cpu_attention(
                part.of_queries(query),
                part.of_keys(key),
                part.of_keys(value),
                is_causal=part.is_causal,
                scale=scale,
            )
            known = part.of_queries(sums)
            joined = torch.logaddexp(known, its)
            its.sub_(joined).exp_()
            part.of_queries(out).mul_((known - joined).exp_()[..., None]).addcmul_(
                own.to(out.dtype), its[..., None]
            )
            known.copy_(joined)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.pattern, ctx.scale = pattern, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Add what the parts send back."""
        query, key, value, out, sums = ctx.saved_tensors
        grads = [torch.zeros_like(one) for one in (query, key, value)]
        for part in parts_of(ctx.pattern, query.shape[1]):
            views = (part.of_queries, part.of_keys, part.of_keys)
            found = cpu_attention_backward(
                part.of_queries(grad),
                *(view(one) for view, one in zip(views, (query, key, value), strict=True)),
                part.of_queries(out),
                part.of_queries(sums),
                dropout_p=0.0,
                is_causal=part.is_causal,
                scale=ctx.scale,
            )
            for view, whole, own in zip(views, grads, found, strict=True):
                view(whole).add_(own)
        return (*grads, None, None)
