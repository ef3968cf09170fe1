"""Memory that a loop gave or was given for weights or gradients, and may still hold."""

import weakref
from collections.abc import Iterator

import torch


class Aliases:
    """The memory of some parameters, by name.

    What is written there is the parameter's. So it is kept, as a plain loop's parameter keeps it,
    until :meth:`release` finds that nobody else holds it.
    """

    def __init__(self) -> None:
        self._memory: dict[str, torch.Tensor] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """The loop may hold the memory of a tensor, which is the parameter's."""
        self._memory[name] = tensor.detach()

    def drop(self, name: str) -> None:
        """What the loop may hold is no longer the parameter's."""
        self._memory.pop(name, None)

    def get(self, name: str) -> torch.Tensor | None:
        """The parameter's memory."""
        return self._memory.get(name)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from tuple(self._memory.items())

    def release(self) -> None:
        """Forget memory that is nobody else's; its values are in the store."""
        for name in tuple(self._memory):
            tensor = self._memory.pop(name)
            geometry = tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()
            held = weakref.ref(tensor.untyped_storage())
            del tensor
            storage = held()
            if storage is not None:
                dtype, *place = geometry
                empty = torch.empty(0, dtype=dtype, device=storage.device)
                self._memory[name] = empty.set_(storage, *place)
