"""Embeddings for autograd: products of what entries tokens have with those entries."""

import torch
from torch import Tensor, nn

from openwafer.fabric_device.linear import Wafers, streamed_linear


def embedding(
    wafers: Wafers, ids: Tensor, weight: Tensor, *_: object, **_options: object
) -> Tensor:
    """What `F.embedding` gives, on the wafer of its tokens.

    A token's activation is 1 for its entry, and 0 for the others that some token has. These entries
    stream in as weights, which is exact, and their gradients out.
    """
    entries, places = torch.unique(ids, return_inverse=True)
    wafers.widen(len(entries))
    given = nn.functional.one_hot(places, len(entries)).to(weight.dtype)
    return streamed_linear(wafers, given, weight[entries].T)


def is_plain(module: nn.Embedding) -> bool:
    """Whether an embedding takes its entries as they are, and all of them have gradients."""
    options = module.padding_idx, module.max_norm
    return options == (None, None) and not module.scale_grad_by_freq and not module.sparse
