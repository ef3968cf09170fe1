"""Causal attention over some of the keys on a CPU: rectangles and triangles of scores, joined.

Torch's kernel for CPUs adds a mask to every score, and goes through few rows at a time where a call
has few queries. So keys that all queries of a part see are given to it without a mask, a part has
as many queries as it can, and what lies alike in many places of a sequence is one call. Each part
leaves the logarithm of its sum of exponentials, by which parts are joined; the backward takes the
joined one, and so sees the whole softmax (T. Dao et al., arXiv 2205.14135, section 3.1).

Heads of queries that lie side by side may share keys. The forward copies none of them, the backward
those of a part at a time.

Shapes: M batch and heads, L batch and heads of keys, N tokens, K size of one head, P pieces of a
part, S rows of a piece.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from openwafer.training.models.attention_pattern import Pattern
from openwafer.training.torch_private import cpu_attention, cpu_attention_backward

MANY_ROWS: Final = 768
"""From so many queries of a piece on, the kernel goes through 256 of them at a time, not 64."""


@dataclass(frozen=True)
class Rows:
    """Tokens of a part, by pieces of the same form.

    Attributes:
        first: token of the first piece.
        length: tokens of a piece.
        count: pieces.
        every: tokens from one piece's first to the next one's; 0 where all pieces are the same.
        step: tokens from one of a piece to the next.
    """

    first: int
    length: int
    count: int = 1
    every: int = 0
    step: int = 1

    def of(self, whole: Tensor) -> Tensor:
        """Their view of (M, N, ...), by piece: (M, P, S, ...)."""
        outer, row, *inner = whole.stride()
        return whole.as_strided(
            (len(whole), self.count, self.length, *whole.shape[2:]),
            (outer, self.every * row, self.step * row, *inner),
            whole.storage_offset() + self.first * row,
        )

    def begun(self, found: Tensor, num_tokens: int, rest: float = 0.0) -> Tensor:
        """What was found of each piece, (M, P, S, ...), as of all tokens, (M, N, ...).

        Args:
            found: is the result where it is of all tokens.
            num_tokens: of the result.
            rest: for all other tokens.
        """
        if self.count * self.length == num_tokens:
            return found.flatten(1, 2)
        made = found.new_full((len(found), num_tokens, *found.shape[3:]), rest)
        self.of(made).copy_(found)
        return made

    def add(self, whole: Tensor, found: Tensor) -> None:
        """Add what was found of each piece, (M, P, S, ...), where it belongs."""
        if self.count > 1 and self.every == 0:
            replace(self, count=1).of(whole).add_(found.sum(1, keepdim=True))
        else:
            self.of(whole).add_(found)


@dataclass(frozen=True)
class Part:
    """Queries that see keys, all of them or the like, piece by piece.

    Attributes:
        queries: their rows.
        keys: theirs, of as many pieces.
        is_causal: whether the n-th query of a piece sees its first n keys alone.
        is_reversed: whether both are counted from the end of their piece.
    """

    queries: Rows
    keys: Rows
    is_causal: bool = False
    is_reversed: bool = False

    @property
    def rows(self) -> tuple[Rows, Rows, Rows]:
        """Of queries, keys and values."""
        return self.queries, self.keys, self.keys

    def taken(self, rows: Rows, whole: Tensor) -> Tensor:
        """Rows of (M, N, ...) as the kernel takes them, (M, P, S, ...)."""
        return self.in_order(rows.of(whole))

    def in_order(self, rows: Tensor) -> Tensor:
        """Rows of pieces, (M, P, S, ...), in the order of the part, or back."""
        if not self.is_reversed:
            return rows
        # Takes half the time of torch's flip.
        return rows.index_select(2, torch.arange(rows.shape[2] - 1, -1, -1, device=rows.device))


def parts_of(pattern: Pattern, num_tokens: int) -> Iterator[Part]:
    """What makes up a pattern of so many tokens; the first part has a key for every query in it.

    Behind the last whole block there may be a shorter one.
    """
    if pattern.window is not None:
        yield from _window(pattern.window, num_tokens)
        return
    size = pattern.block
    # A name may ask for more blocks than there are.
    num_blocks = -(-num_tokens // size)
    before, first = min(pattern.before, num_blocks), min(pattern.first, num_blocks)
    pattern = replace(pattern, before=before, first=first)
    at_once = min(pattern.before + 1, -(-MANY_ROWS // size))
    yield from _own(at_once * size, num_tokens)
    for distance in range(1, pattern.before + 1):
        num_rows = min(at_once, pattern.before + 1 - distance) * size
        yield from _before(at_once * size, num_rows, (distance * size, size), num_tokens)
    yield from _first(pattern, num_tokens)
    if pattern.sees_last:
        yield from _last(size, num_tokens)


def _own(size: int, num_tokens: int) -> Iterator[Part]:
    """Groups of so many tokens that see what is not behind them in their own."""
    count, rest = divmod(num_tokens, size)
    for rows in (Rows(0, size, count, size), Rows(count * size, rest)):
        if rows.count and rows.length:
            yield Part(rows, rows, is_causal=True)


def _before(size: int, num_rows: int, keys: tuple[int, int], num_tokens: int) -> Iterator[Part]:
    """The first rows of each group of so many tokens see keys before the group.

    Args:
        size: of a group.
        num_rows: of its first rows.
        keys: how far before the group the first of them is, and how many.
        num_tokens: in all.
    """
    back, num_keys = keys
    skipped = -(-back // size)
    count, rest = divmod(num_tokens, size)
    if count > skipped:
        queries = Rows(skipped * size, num_rows, count - skipped, size)
        yield Part(queries, Rows(skipped * size - back, num_keys, count - skipped, size))
    if rest and count >= skipped:
        queries = Rows(count * size, min(num_rows, rest))
        yield Part(queries, Rows(count * size - back, num_keys))


def _first(pattern: Pattern, num_tokens: int) -> Iterator[Part]:
    """Blocks of the beginning, by the blocks that do not see them among those before their own."""
    for index in range(pattern.first):
        start = (index + pattern.before + 1) * pattern.block
        is_final = index == pattern.first - 1
        stop = num_tokens if is_final else min(start + pattern.block, num_tokens)
        if start < stop:
            yield Part(Rows(start, stop - start), Rows(0, (index + 1) * pattern.block))


def _last(size: int, num_tokens: int) -> Iterator[Part]:
    """The last tokens of blocks before, by queries of equal place in theirs: each sees one more."""
    count, rest = divmod(num_tokens, size)
    for first, stop, length in ((0, rest, count), (rest, size, count - 1)):
        if length > 0 and first < stop:
            pieces = stop - first
            queries = Rows(size + first, length, pieces, every=1, step=size)
            yield Part(queries, Rows(size - 1, length, pieces, step=size), is_causal=True)


def _window(window: int, num_tokens: int) -> Iterator[Part]:
    """Groups as long as the window see their own, and of the one before what is not too far."""
    yield from _own(window, num_tokens)
    count, rest = divmod(num_tokens, window)
    for first, length, pieces in ((window, window - 1, count - 1), (count * window, rest, 1)):
        if length and pieces > 0 and first >= window:
            queries = Rows(first, length, pieces, window)
            keys = replace(queries, first=first - window + 1)
            yield Part(queries, keys, is_causal=True, is_reversed=True)
    if count and rest:
        far = count * window - window + rest + 1
        if far < count * window:
            yield Part(Rows(count * window, rest), Rows(far, count * window - far))


class AttentionInParts(torch.autograd.Function):
    """Attention (M, N, K) of queries, by keys and values (L, N, K), of all tokens; L divides M."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, scale: float | None
    ) -> Tensor:
        """Join what the parts gather."""
        tensors, num_tokens = (query, key, value), query.shape[1]
        first, *others = parts_of(pattern, num_tokens)
        own, its = _gathered(first, tensors, scale)
        out = first.queries.begun(own, num_tokens)
        sums = first.queries.begun(its, num_tokens, -torch.inf)
        for part in others:
            own, its = _gathered(part, tensors, scale)
            known = part.queries.of(sums)
            part.queries.of(out).lerp_(own, (its - known).sigmoid_()[..., None])
            known.copy_(torch.logaddexp(known, its))
        out = out.to(query.dtype)
        ctx.save_for_backward(*tensors, out, sums)
        ctx.pattern, ctx.scale = pattern, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Add what the parts send back."""
        num_tokens = grad.shape[1]
        # Of a sum it is one number, which each part would spread out anew.
        tensors = (grad.contiguous(), *ctx.saved_tensors)
        first, *others = parts_of(ctx.pattern, num_tokens)
        found = _sent_back(first, tensors, ctx.scale)
        grads = [rows.begun(one, num_tokens) for rows, one in zip(first.rows, found, strict=True)]
        for part in others:
            found = _sent_back(part, tensors, ctx.scale)
            for rows, whole, one in zip(part.rows, grads, found, strict=True):
                rows.add(whole, one)
        return (*grads, None, None)


def _gathered(
    part: Part, tensors: tuple[Tensor, Tensor, Tensor], scale: float | None
) -> tuple[Tensor, Tensor]:
    """What the queries of a part gather, (M, P, S, K), and the logarithms of their sums."""
    taken = [part.taken(rows, one) for rows, one in zip(part.rows, tensors, strict=True)]
    is_shared = len(taken[0]) != len(taken[1])
    if is_shared:
        # The kernel finds the keys of a head where heads are the second dim.
        taken = [one.transpose(0, 1) for one in taken]
    own, its = cpu_attention(*taken, is_causal=part.is_causal, scale=scale)
    if is_shared:
        own, its = own.transpose(0, 1), its.transpose(0, 1)
    dtype = torch.promote_types(own.dtype, torch.float32)
    return part.in_order(own).to(dtype), part.in_order(its)


def _sent_back(part: Part, tensors: tuple[Tensor, ...], scale: float | None) -> tuple[Tensor, ...]:
    """Gradients of a part's queries (M, P, S, K), keys and values (L, P, S, K).

    Args:
        part: of the attention.
        tensors: gradient of what is gathered, queries, keys, values, what is gathered, and the
            logarithms of the sums.
        scale: of the scores.
    """
    rows = (part.queries, *part.rows, part.queries, part.queries)
    taken = [part.taken(own, one) for own, one in zip(rows, tensors, strict=True)]
    num_shared = len(taken[1]) // len(taken[2])
    if num_shared > 1:
        # The kernel takes shared ones, and rounds their gradient anew for each head and its rows.
        taken[2:4] = [one.repeat_interleave(num_shared, 0) for one in taken[2:4]]
    found = cpu_attention_backward(*taken, dropout_p=0.0, is_causal=part.is_causal, scale=scale)
    if num_shared > 1:
        query, *others = found
        found = (query, *(one.unflatten(0, (-1, num_shared)).sum(1) for one in others))
    return tuple(map(part.in_order, found))
