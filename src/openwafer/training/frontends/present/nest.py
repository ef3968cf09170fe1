"""What scripts find in ``cstorch.utils.nest``: the tensors of nested data."""

from collections.abc import Iterator
from typing import Any

import torch

from openwafer.training.torch_private import pytree

__all__ = ["visit_torch_tensors"]


def visit_torch_tensors(
    data: Any, scope: list[str] | None = None
) -> Iterator[tuple[list[str], torch.Tensor]]:
    """The tensors of nested lists, tuples and mappings, each with the keys that lead to it.

    Args:
        data: see above.
        scope: what the keys stand behind.
    """
    for path, leaf in pytree.tree_flatten_with_path(data)[0]:
        if isinstance(leaf, torch.Tensor):
            keys = [str(getattr(key, "key", getattr(key, "idx", key))) for key in path]
            yield [*(scope or ()), *keys], leaf
