"""Finds the layers that could not run again as they ran: what they change is not theirs alone."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch
from torch import nn

from openwafer.training.stream.execute.layer_state import LayerState
from openwafer.training.stream.execute.snapshot import ATOMS, Snapshot, reached_from, version_of
from openwafer.training.torch_private import pytree

MAX_SHOWN: Final = 3


class ForwardWatch:
    """Looks at every layer call of a forward, from before it to behind it.

    Args:
        modules: the layers by name.
        states: what may change, since a recomputation restores it.
        unmetered: makes a context in which tensors do not count as the step's.

    Attributes:
        reasons: why a layer cannot be recomputed, by name.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        states: Mapping[str, LayerState],
        unmetered: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.reasons: dict[str, str] = {}
        self._modules = modules
        self._states = states
        self._unmetered = unmetered
        self._around: dict[str, Snapshot] = {}
        self._inputs: list[tuple[str, weakref.ref[torch.Tensor], int]] = []
        self._running: str | None = None

    @contextmanager
    def around(self, layer: str, args: Any, kwargs: Any) -> Iterator[None]:
        """Context of one call of a layer."""
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        versions = [version_of(tensor) for tensor in tensors]
        with self._unmetered():
            own = self._states[layer].now().targets()
            around, passed = self._snapshot(layer), reached_from(_objects(leaves))
        self._running = layer
        try:
            yield
        finally:
            self._running = None
        changed = [*around.changed(own), *(f"its argument {name}" for name in passed.changed(own))]
        if versions != [version_of(tensor) for tensor in tensors]:
            changed.append("an input, in place")
        if changed:
            self.note(layer, f"its forward changes {', '.join(changed[:MAX_SHOWN])}")
        self._inputs += [(layer, weakref.ref(tensor), version_of(tensor)) for tensor in tensors]

    def _snapshot(self, layer: str) -> Snapshot:
        known = self._around.get(layer)
        if known is None or known.changed():
            known = reached_from(self._modules[layer].named_modules())
            self._around[layer] = known
        return known

    def note(self, layer: str, reason: str) -> None:
        """Keep the first reason found for a layer."""
        self.reasons.setdefault(layer, reason)

    def note_write(self) -> None:
        """The running layer writes to a tensor that is not of this model."""
        if self._running is not None:
            self.note(self._running, "its forward writes to a tensor outside the model")

    def end_forward(self) -> None:
        """Note the layers whose inputs were written after their calls."""
        for layer, reference, version in self._inputs:
            tensor = reference()
            if tensor is not None and version_of(tensor) != version:
                self.note(layer, "an input is written in place after its forward")
        self._inputs.clear()


def _objects(leaves: Iterable[object]) -> Iterator[tuple[str, object]]:
    """Of the arguments, what is neither a plain value nor a tensor."""
    for leaf in leaves:
        if type(leaf) not in ATOMS and not isinstance(leaf, torch.Tensor):
            yield type(leaf).__name__, leaf
