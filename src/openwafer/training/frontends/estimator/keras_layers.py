"""Layers of Keras in a model function: what they build, write and note in its calls."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from openwafer.training.frontends.loop.keras_trees import KERAS, is_of_keras
from openwafer.training.torch_private import pytree


def layer_class() -> Any:
    """Keras's class of all layers; None in a process that has not imported Keras."""
    keras = sys.modules.get(KERAS)
    return None if keras is None else keras.layers.Layer


def are_symbols(*arguments: Any) -> bool:
    """Whether a layer is called on symbols, of which Keras makes models, and not on tensors."""
    symbol = sys.modules[KERAS].KerasTensor
    return any(isinstance(one, symbol) for one in pytree.tree_leaves(arguments))


class Writes:
    """What calls of layers have written to, and its values before: averages and seeds."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Any, torch.Tensor]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context in which writes are seen."""
        keras = sys.modules.get(KERAS)
        if keras is None:
            yield
            return
        owner = next(kind for kind in keras.Variable.__mro__ if "assign" in vars(kind))
        assign = owner.assign
        owner.assign = self._noting(assign)
        try:
            yield
        finally:
            owner.assign = assign

    def _noting(self, assign: Callable[..., Any]) -> Callable[..., Any]:
        def note(variable: Any, value: Any) -> Any:
            self._before.setdefault(id(variable), (variable, variable.value.detach().clone()))
            return assign(variable, value)

        return note

    def undo(self) -> None:
        """Give everything its first value."""
        with torch.no_grad():
            for variable, value in self._before.values():
                variable.value.copy_(value)


class Nodes:
    """Nodes of Keras's graphs behind a model function's first call.

    An operation on symbols, as ``keras.ops.add``, appends to the lists of those before it.
    """

    def __init__(self, made: Iterable[Any]) -> None:
        lists = [one._outbound_nodes for one in made if is_of_keras(type(one))]  # noqa: SLF001
        self._lengths = [(nodes, len(nodes)) for nodes in lists]

    def forget_later(self) -> None:
        """Take away what a later call has appended."""
        for nodes, length in self._lengths:
            del nodes[length:]
