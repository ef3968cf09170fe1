"""A script's batches: a function that makes a loader, and what is asked of it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import torch

from openwafer.diagnostics import error
from openwafer.training.frontends.scripts.batches import require_iterable
from openwafer.training.frontends.scripts.program import kind_of
from openwafer.training.torch_private import pytree

__all__ = ["DataLoader", "RestartableDataLoader"]


@runtime_checkable
class RestartableDataLoader(Protocol):
    """A loader that goes on where it was: it says what it is at, and goes there."""

    def state_dict(self) -> dict[str, Any]:
        """What one process is at."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go there."""

    def aggregate_state_dict(self, worker_states: list[dict[str, Any]]) -> dict[str, Any]:
        """One state of those of all processes, of which there is one."""

    def deaggregate_state_dict(self, aggregated_state_dict: dict[str, Any]) -> dict[str, Any]:
        """The state of one process."""


class DataLoader:
    """Batches of what a function returns, which is called when they are first asked for.

    Args:
        input_fn: returns a ``torch.utils.data.DataLoader``, or any iterable of batches.
        args, kwargs: for it.

    Attributes:
        batch_size: samples of the last batch, by the first dim of its tensors; None before.

    Raises:
        OpenwaferError: ``present-loader``.
    """

    def __init__(self, input_fn: Callable[..., Iterable[Any]], *args: Any, **kwargs: Any) -> None:
        if not callable(input_fn):
            raise error(
                "present-loader",
                "cstorch.utils.data.DataLoader takes a function that returns a loader, and got "
                f"{kind_of(input_fn)}",
                help="write DataLoader(input_fn, ...) with what input_fn takes behind it",
            )
        self.batch_size: int | None = None
        self._make = partial(input_fn, *args, **kwargs)

    @cached_property
    def dataloader(self) -> Any:
        """What the function has returned."""
        made = self._make()
        require_iterable(made, "present-loader", "input_fn returns batches to iterate over")
        return made

    def __len__(self) -> int:
        return len(self.dataloader)  # a TypeError says so where it has none

    def __iter__(self) -> Iterator[Any]:
        for batch in self.dataloader:
            self.batch_size = size_of(batch)
            yield batch

    @property
    def is_restartable(self) -> bool:
        """Whether it goes on where it was; see :class:`RestartableDataLoader`."""
        return isinstance(self.dataloader, RestartableDataLoader)

    def state_dict(self) -> dict[str, Any]:
        """What the loader is at.

        Raises:
            OpenwaferError: ``present-loader-state`` of a loader that does not say.
        """
        loader = self._restartable()
        return loader.aggregate_state_dict([loader.state_dict()])

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Let the loader go where it was; see :meth:`state_dict`."""
        loader = self._restartable()
        loader.load_state_dict(loader.deaggregate_state_dict(dict(state_dict)))

    def _restartable(self) -> RestartableDataLoader:
        loader = self.dataloader
        if isinstance(loader, RestartableDataLoader):
            return loader
        raise error(
            "present-loader-state",
            f"the state of a {type(loader).__name__} is asked for, and it has none",
            help="give it state_dict, load_state_dict, aggregate_state_dict and "
            "deaggregate_state_dict",
        )


def size_of(batch: Any) -> int | None:
    """Samples of a batch: the first dim of its first tensor."""
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            return leaf.shape[0] if leaf.ndim else 1
    return None
