"""What a script gives as its batches."""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from copy import copy
from functools import wraps
from typing import Any

import torch
from torch.nn import functional

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
    return with_tensors(lambda one: one.long() if one.dtype is torch.int32 else one, batch)


def with_tensors(change: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """A batch with other tensors in the places of its own; everything else is the same object.

    Args:
        change: of each tensor, the one in its place.
        batch: any structure that torch knows, and any mutable mapping, as a tokenizer gives them,
            of which a copy is returned.
    """

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        if not isinstance(leaf, MutableMapping):
            return leaf
        copied = copy(leaf)
        for name, value in leaf.items():
            copied[name] = with_tensors(change, value)
        return copied

    return pytree.tree_map(changed, batch)


@contextmanager
def losses_take_int32() -> Iterator[None]:
    """Context in which torch's losses over classes take labels of int32, as the vendor's do.

    Models of the vendor's machine, since its release 2.0, ask for batches of int32 as they are.
    """
    before = {name: getattr(functional, name) for name in ("cross_entropy", "nll_loss")}
    for name, loss in before.items():
        setattr(functional, name, _with_long_labels(loss))
    try:
        yield
    finally:
        for name, loss in before.items():
            setattr(functional, name, loss)


def _with_long_labels(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(loss)
    def with_long_labels(input: Any, target: Any, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: A002 - torch's
        return loss(input, with_long_integers(target), *args, **kwargs)

    return with_long_labels
