"""Sparse causal attention that any model of the transformers library takes, by its name.

A pattern says which keys a block of queries sees. Torch's attention is called over those keys
alone, so that work, and what is kept for the backward, grow with the pattern and not with tokens x
tokens. On a CPU :mod:`.attention_in_parts` does it in fewer and larger calls, where values have the
size of queries, and there is no mask of the caller's and no dropout. Elsewhere each block of
queries is a call.

Shapes: B batch, H heads of queries, G heads of keys, Q queries, N keys, K size of one head.
"""

from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, Final

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.models.attention_in_parts import AttentionInParts
from openwafer.training.models.attention_pattern import Pattern, pattern_of

CHANGES_SCORES: Final = {
    "softcap": "bounds its scores by a tanh",
    "s_aux": "has attention sinks, a score of each head that no key has",
    "sinks": "has attention sinks, keys and values that no token has",
    "position_bias": "adds a bias to its scores",
    "indices": "chooses the keys of each query itself",
    "block_indices": "chooses the keys of each query itself",
}
"""Options of attentions of the library that change the result, and that torch's kernels lack."""


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
        for option, does in CHANGES_SCORES.items():
            if options.get(option) is not None:
                raise _refused(module, f"{does} ({option})", "does not")
        is_causal = options.get("is_causal")
        if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
            raise _refused(module, "sees tokens behind", "sees none")
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


def _refused(module: nn.Module, does: str, not_so: str) -> OpenwaferError:
    return error(
        "attention-pattern",
        f"{type(module).__name__} {does}, and sparse attention {not_so}",
        help="leave attn_implementation out for this model",
    )


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

    Raises:
        OpenwaferError: ``attention-empty``, where there is no query.
    """
    if query_BHQK.shape[2] == 0:
        raise error(
            "attention-empty",
            f"the queries {tuple(query_BHQK.shape)} are of 0 tokens, and attention is of one or "
            "more",
            help="leave batches without tokens out",
        )
    if mask_BHQN is None and _is_for_parts(query_BHQK, key_value, options.get("dropout_p", 0.0)):
        return _in_parts(pattern, query_BHQK, key_value, options.get("scale"))
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


def _is_for_parts(query_BHQK: Tensor, key_value: tuple[Tensor, Tensor], dropout_p: float) -> bool:
    tensors = (query_BHQK, *key_value)
    # Autocast casts what torch's own attention takes, and does not look into functions.
    is_cast = torch.is_autocast_enabled("cpu")
    dtypes = {tensor.dtype for tensor in tensors}
    # Values may have another size of head, as in DeepSeek's models, which the kernel does not take.
    sizes = {tensor.shape[-1] for tensor in tensors}
    return (
        all(tensor.device.type == "cpu" for tensor in tensors)
        and dropout_p == 0.0
        and len(sizes) == 1
        and query_BHQK.shape[2] == key_value[0].shape[2]
        and dtypes == {torch.get_autocast_dtype("cpu") if is_cast else query_BHQK.dtype}
    )


def _in_parts(
    pattern: Pattern,
    query_BHQK: Tensor,
    key_value: tuple[Tensor, Tensor],
    scale: float | None,
) -> Tensor:
    flat = map(_flat, (query_BHQK, *key_value))
    out: Tensor = AttentionInParts.apply(*flat, pattern, scale)  # type: ignore[no-untyped-call]
    return out.view_as(query_BHQK)


def _flat(whole_BHNK: Tensor) -> Tensor:
    """By batch and head; the numbers of a head side by side, which the kernel takes for granted."""
    flat = whole_BHNK.flatten(0, 1)
    return flat if flat.stride(-1) == 1 else flat.contiguous()


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
