"""Memory that a loop gave for weights or gradients, and may still hold."""

import weakref
from collections.abc import Iterator

import torch


class MemoryAlias:
    """A tensor for as long as somebody else holds its memory.

    Args:
        tensor: is not kept alive.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage = weakref.ref(tensor.untyped_storage())
        self._dtype = tensor.dtype
        self._geometry = int(tensor.storage_offset()), tensor.size(), tensor.stride()

    def tensor(self) -> torch.Tensor | None:
        """The tensor, or ``None`` when its memory is gone."""
        storage = self._storage()
        if storage is None:
            return None
        empty = torch.empty(0, dtype=self._dtype, device=storage.device)
        return empty.set_(storage, *self._geometry)


class Aliases:
    """The memory given for some parameters, by name."""

    def __init__(self) -> None:
        self._given: dict[str, MemoryAlias] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """The loop has given a tensor, and may still hold it."""
        self._given[name] = MemoryAlias(tensor)

    def drop(self, name: str) -> None:
        """What the loop has given is no longer the parameter's."""
        self._given.pop(name, None)

    def get(self, name: str) -> torch.Tensor | None:
        """The tensor that the loop still holds."""
        given = self._given.get(name)
        tensor = None if given is None else given.tensor()
        if tensor is None:
            self._given.pop(name, None)
        return tensor

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name in tuple(self._given):
            tensor = self.get(name)
            if tensor is not None:
                yield name, tensor
