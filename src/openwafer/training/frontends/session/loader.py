"""A script's batches, which tell the session where a step begins and ends."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from openwafer.diagnostics import error
from openwafer.training.frontends.session import program
from openwafer.training.torch_private import pytree

__all__ = ["DataLoader"]


class DataLoader:
    """Batches of a session: to ask for the next one ends the step.

    All else that is asked of it goes to the batches themselves.

    Args:
        batches: any iterable; a ``torch.utils.data.DataLoader`` mostly.

    Raises:
        OpenwaferError: ``session-loader`` for what cannot be iterated.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        require_iterable(batches)
        self._loader = batches

    def __iter__(self) -> Iterator[Any]:
        running = program.running()
        session = None if running is None else running.session
        if running is None or session is None or session.loader is not self:
            yield from self._loader
            return
        for batch in self._loader:
            session.begin_step()
            yield pytree.tree_map_only(torch.Tensor, lambda t: t.to(running.device), batch)
            session.mark_step()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a TypeError says so where it has none

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def require_iterable(batches: object) -> None:
    """See :class:`DataLoader`."""
    # To make an iterator is to begin: a loader of torch draws a random number for it.
    kind = type(batches)
    is_iterable = hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")
    if not is_iterable or (isinstance(batches, torch.Tensor) and batches.ndim == 0):
        raise error(
            "session-loader",
            f"cbtorch.dataloader takes batches to iterate over, and got a {type(batches).__name__}",
            help="give it a torch.utils.data.DataLoader, or a list of batches",
        )
