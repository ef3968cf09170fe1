"""What a script gives as its batches."""

from typing import Any

import torch

from openwafer.diagnostics import error
from openwafer.training.torch_private import pytree


def require_iterable(batches: object, code: str, what: str) -> None:
    """Refuse what cannot be iterated over; nothing is begun to find out.

    Args:
        batches: whatever a script gives.
        code: of the error.
        what: should have been given, as "cbtorch.dataloader takes batches to iterate over".

    Raises:
        OpenwaferError: by `code`.
    """
    # To make an iterator is to begin: a loader of torch draws a random number for it.
    kind = type(batches)
    is_iterable = hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")
    if not is_iterable or (isinstance(batches, torch.Tensor) and batches.ndim == 0):
        raise error(
            code,
            f"{what}, and got a {kind.__name__}",
            help="give a torch.utils.data.DataLoader, or a list of batches",
        )


def with_long_integers(batch: Any) -> Any:
    """A batch of int32, as losses of the vendor's machine take labels, with the int64 of torch's.

    Args:
        batch: tensors, in any structure.
    """
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.long() if t.dtype is torch.int32 else t, batch
    )
