"""Sparse causal attention that any model of the transformers library takes, by its name.

A pattern says which keys a block of queries sees. Each block is one call of torch's attention over
those keys alone, so that work, and what is kept for the backward, grow with the pattern and not
with tokens x tokens.

Shapes: B batch, H heads of queries, G heads of keys, Q queries, N keys, K size of one head.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, Final, TypeGuard

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from openwafer.diagnostics import error

BLOCKS_OF_WINDOW: Final = 2
LEAST_BLOCK: Final = 32
"""Shorter ones have fewer keys that some of their queries do not see, and more calls."""


@dataclass(frozen=True)
class Pattern:
    """Which keys a query sees, among those that are not behind it.

    Attributes:
        block: tokens; queries of a block see the same keys, but for those behind them.
        before: blocks before its own.
        first: blocks of the sequence, from its beginning.
        window: how far back it sees, itself included; ``None`` as far as its keys go.
        sees_last: whether the last token of every block before its own, too.
    """

    block: int
    before: int
    first: int = 0
    window: int | None = None
    sees_last: bool = False


def sliding(window: int) -> Pattern:
    """A query sees itself and the ``window - 1`` tokens before it."""
    block = max(window // BLOCKS_OF_WINDOW, LEAST_BLOCK)
    return Pattern(block, before=-(-(window - 1) // block), window=window)


def strided(stride: int) -> Pattern:
    """A query sees its stretch of ``stride`` tokens, and the last token of each one before.

    With a stride of sqrt(n) that is n sqrt(n) work (the fixed pattern of arXiv 1904.10509).
    """
    return Pattern(stride, before=0, sees_last=True)


_KINDS: Final[dict[str, tuple[Callable[..., Pattern], tuple[int, ...]]]] = {
    "sliding": (sliding, (1,)),
    "strided": (strided, (1,)),
    "blocks": (Pattern, (1, 0, 0)),
}
"""By name: what makes the pattern, and the least of each of its numbers."""
_NAME: Final = re.compile(rf"({'|'.join(_KINDS)})-([-\w]*)")


def is_sparse_attention(name: object) -> TypeGuard[str]:
    """Whether it is meant as the name of a pattern."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def pattern_of(name: str) -> Pattern:
    """The pattern of a name: ``sliding-WINDOW``, ``strided-STRIDE``, ``blocks-SIZE-BEFORE-FIRST``.

    Raises:
        OpenwaferError: ``attention-pattern``.
    """
    found = _NAME.fullmatch(name)
    make, least = _KINDS[found[1]] if found else (None, ())
    numbers = [int(one) if one.isdecimal() else -1 for one in found[2].split("-")] if found else []
    is_right = len(numbers) == len(least) and all(map(int.__ge__, numbers, least))
    if make is None or not is_right:
        raise error(
            "attention-pattern",
            f"no sparse attention is called {name!r}",
            help="write sliding-WINDOW, strided-STRIDE or blocks-SIZE-BEFORE-FIRST with whole "
            "numbers: tokens, tokens, and tokens of a block, blocks before it, and first blocks",
        )
    return make(*numbers)


def register_sparse_attention(name: str) -> str:
    """Let models of the transformers library in this process take a pattern.

    Args:
        name: see :func:`pattern_of`; a model takes it as its ``attn_implementation``.

    Returns:
        The name.

    Raises:
        OpenwaferError: ``attention-pattern``.
    """
    transformers.AttentionInterface.register(name, _Attention(pattern_of(name)))
    transformers.AttentionMaskInterface.register(name, transformers.masking_utils.sdpa_mask)
    return name


@dataclass(frozen=True)
class _Attention:
    """Attention as the library calls it."""

    pattern: Pattern

    def __call__(
        self,
        module: nn.Module,
        query_BHQK: Tensor,
        key_BGNK: Tensor,
        value_BGNK: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        is_causal = options.get("is_causal")
        if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
            raise error(
                "attention-pattern",
                f"{type(module).__name__} sees tokens behind, and sparse attention sees none",
                help="leave attn_implementation out for this model",
            )
        if attention_mask is not None and attention_mask.dtype is not torch.bool:
            attention_mask = attention_mask == 0
        out_BHQK = sparse_attention(
            self.pattern,
            query_BHQK,
            (key_BGNK, value_BGNK),
            attention_mask,
            dropout_p=options.get("dropout", 0.0),
            scale=options.get("scaling"),
        )
        return out_BHQK.transpose(1, 2).contiguous(), None


def sparse_attention(
    pattern: Pattern,
    query_BHQK: Tensor,
    key_value: tuple[Tensor, Tensor],
    mask_BHQN: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """What each query gathers from the keys of its pattern, (B, H, Q, K).

    Args:
        pattern: which keys it sees.
        query_BHQK: the queries of the last tokens.
        key_value: of all tokens, (B, G, N, K) each; G divides H.
        mask_BHQN: keys that a query may see besides, or ``None`` for all; 1 for B or H holds for
            all of them.
        options: of torch's ``scaled_dot_product_attention``.
    """
    num_keys, size = key_value[0].shape[2], pattern.block
    start = num_keys - query_BHQK.shape[2]
    keys, values = (_Blocks(pattern, one, 2) for one in key_value)
    rows, made = _stretches(start, num_keys, size), []
    # Most blocks see as much in the same places.
    mask_of = cache(partial(_mask, pattern, query_BHQK))
    others = [None] * len(rows) if mask_BHQN is None else mask_BHQN.split(rows, 2)
    for query, other_BHQN in zip(query_BHQK.split(rows, 2), others, strict=True):
        index, num_rows = start // size, query.shape[2]
        key = keys.seen(index)
        near = max(0, index - pattern.before) * size
        num_near = min((index + 1) * size, num_keys) - near
        mask = mask_of(start - near, (num_rows, num_near), key.shape[2] - num_near)
        if other_BHQN is not None:
            seen_BHQN = _Blocks(pattern, other_BHQN, 3).seen(index)
            mask = mask.masked_fill(~seen_BHQN, float("-inf"))
        is_grouped = key.shape[1] != query.shape[1]
        out = F.scaled_dot_product_attention(
            query, key, values.seen(index), attn_mask=mask, enable_gqa=is_grouped, **options
        )
        made.append(out)
        start += num_rows
    return torch.cat(made, 2)


def _stretches(first: int, stop: int, size: int) -> list[int]:
    """Lengths of the parts of a range that lie in one block each."""
    ends = [*range((first // size + 1) * size, stop, size), stop]
    return [end - start for start, end in pairwise([first, *ends])]


def _mask(pattern: Pattern, like: Tensor, offset: int, shape: tuple[int, int], far: int) -> Tensor:
    """What is added to scores; torch's kernel takes a third longer with a mask of booleans.

    Args:
        pattern: which keys a query sees.
        like: of whose dtype and device.
        offset: of the first query behind the first of the near keys.
        shape: queries and near keys.
        far: keys before the near ones, which all queries see.
    """
    num_rows, num_near = shape
    row_Q, key_N = (torch.arange(number, device=like.device) for number in shape)
    back_QN = offset + row_Q[:, None] - key_N
    is_hidden_QN = back_QN < 0
    if pattern.window is not None:
        is_hidden_QN |= back_QN >= pattern.window
    mask_QN = like.new_zeros(num_rows, num_near).masked_fill(is_hidden_QN, float("-inf"))
    return F.pad(mask_QN, (far, 0))


class _Blocks:
    """Blocks of a tensor along a dim, whose gradients are no larger than they are."""

    def __init__(self, pattern: Pattern, whole: Tensor, dim: int) -> None:
        self._pattern, self._dim = pattern, dim
        self._blocks = whole.split(pattern.block, dim)
        if pattern.sees_last:
            last = pattern.block - 1
            self._last = whole[(slice(None),) * dim + (slice(last, None, pattern.block),)]

    def seen(self, index: int) -> Tensor:
        """What the queries of a block see, in rising order."""
        near = max(0, index - self._pattern.before)
        far = [*self._blocks[: min(self._pattern.first, near)]]
        if self._pattern.sees_last and index:
            far.append(self._last.narrow(self._dim, 0, index))
        found = [*far, *self._blocks[near : index + 1]]
        return found[0] if len(found) == 1 else torch.cat(found, self._dim)
