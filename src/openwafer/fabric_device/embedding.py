"""Embeddings for autograd: products of what entries tokens have with those entries."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn

from openwafer.diagnostics import error
from openwafer.fabric_device.linear import Wafers, streamed_linear

_PLAIN: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "padding_idx": None,
        "max_norm": None,
        "norm_type": 2.0,
        "scale_grad_by_freq": False,
        "sparse": False,
    }
)
"""Options of `F.embedding` in their order, as they are where entries are taken as they are."""


def embedding(
    wafers: Wafers, ids: Tensor, weight: Tensor, *positional: Any, **options: Any
) -> Tensor:
    """What `F.embedding` gives, on the wafer of its tokens.

    A token's activation is 1 for its entry, and 0 for the others that some token has. These entries
    stream in as weights, and their gradients out. Zeros times what is not finite would be NaN in
    all tokens, so that is refused.

    Raises:
        OpenwaferError: an id has no entry, or entries are changed, not finite, or have no gradient.
    """
    options |= zip(_PLAIN, positional, strict=False)
    if any(value != _PLAIN[name] for name, value in options.items() if name != "norm_type"):
        raise wafers.account.refusal("embedding with other options")
    entries, places = torch.unique(wafers.seen(ids, len(weight)), return_inverse=True)
    _check_ids(entries, len(weight))
    taken = weight[entries]
    _check_finite(entries, taken.detach())
    wafers.widen(len(entries))
    given = nn.functional.one_hot(places, len(entries)).to(weight.dtype)
    return streamed_linear(wafers, given, taken.T)


def _check_ids(entries: Tensor, count: int) -> None:
    wrong = entries[(entries < 0) | (entries >= count)]
    if len(wrong):
        raise error(
            "fabric-token",
            f"token {int(wrong[0])} in an embedding of {count} entries",
            help=f"give ids from 0 to {count - 1}",
        )


def _check_finite(ids: Tensor, entries: Tensor) -> None:
    wrong = ids[~entries.isfinite().all(dim=1)]
    if len(wrong):
        raise error(
            "fabric-entry",
            f"the embedding's entry of token {int(wrong[0])} has values that are infinite or no "
            f"numbers, as {len(wrong)} of {len(ids)} entries have",
            help="lower the learning rate, or leave the embedding to the host: fabric.host",
        )


def is_plain(module: nn.Embedding) -> bool:
    """Whether an embedding takes its entries as they are, and all of them have gradients."""
    options = module.padding_idx, module.max_norm
    return options == (None, None) and not module.scale_grad_by_freq and not module.sparse
