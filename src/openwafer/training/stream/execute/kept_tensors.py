"""Tensors that wait for their backward in device memory, as they were when autograd saved them.

torch refuses a saved tensor that was written in place since, but not where hooks have saved it: so
that is done here. A plain loop has gone back through a micro-batch before the next one writes to
the model's own tensors, such as statistics. Where micro-batches of one pass do that, those tensors
are copied.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

import torch
from torch.autograd.graph import saved_tensors_hooks

from openwafer.diagnostics import error


class Kept:
    """A saved tensor, and how often it had been written in place by then."""

    __slots__ = ("__weakref__", "_held", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        # The tensor, or what brings its values back.
        self._held: torch.Tensor | Callable[[], torch.Tensor] = tensor
        self._version = tensor._version

    @classmethod
    def of(cls, tensor: torch.Tensor, copied: AbstractSet[int]) -> "Kept":
        """Keep a tensor.

        Args:
            copied: storages of which a copy is kept, as the numbers that torch has for them.
        """
        kept = tensor
        if shares_storage(tensor, copied):
            kept = tensor.detach().clone()
        elif tensor.grad_fn is not None:
            # A result that its own node saves would keep the node, and no collector sees that
            # cycle: a graph that no backward has come to would never go.
            kept = tensor.detach()
        return cls(kept)

    @property
    def movable(self) -> torch.Tensor | None:
        """The tensor, if it is here, as it was, and a plain array."""
        tensor = self._held
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return None
        return tensor if tensor._version == self._version else None

    def move(self, bring: Callable[[], torch.Tensor]) -> None:
        """Keep the tensor no longer: its values are elsewhere.

        Args:
            bring: brings them back.
        """
        self._held = bring

    def as_saved(self, layer: str = "") -> torch.Tensor:
        """The tensor, which is what it was.

        Raises:
            OpenwaferError: ``saved-tensor-written``.
        """
        tensor = self._held
        if not isinstance(tensor, torch.Tensor):
            return tensor()
        if tensor._version != self._version:
            saver = f"layer {layer!r}" if layer else "the model's forward"
            shown = f"{tuple(tensor.size())} {tensor.dtype}"
            raise error(
                "saved-tensor-written",
                f"a tensor {shown} that {saver} saved for its backward has been written in place "
                "since; a plain loop refuses that, too, if its backward comes later",
                help="write x = x + y in the place of x += y, or save a copy, with .clone()",
            )
        return tensor


def shares_storage(tensor: torch.Tensor, storages: AbstractSet[int]) -> bool:
    """Whether a tensor lies in one of these storages."""
    if not storages or tensor.layout is not torch.strided:
        return False
    return tensor.untyped_storage()._cdata in storages


def keeping(copied: AbstractSet[int]) -> saved_tensors_hooks:
    """Context for code beside the layers, which copies what it saves of these storages."""
    return saved_tensors_hooks(lambda tensor: Kept.of(tensor, copied), Kept.as_saved)
