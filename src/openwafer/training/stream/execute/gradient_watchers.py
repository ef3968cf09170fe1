"""Who looks at the gradients of each micro-batch by itself, such as the gradient noise scale."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

import torch
from torch import nn

MicroBatchWatcher: TypeAlias = Callable[[int, str, torch.Tensor], None]
"""Called with a micro-batch's index, a parameter's name, and its gradient of that micro-batch.

The gradient is that of the weighed and scaled loss, before it is added to those of other
micro-batches. It may lie in host memory, and is not to be changed.
"""


class GradientWatchers:
    """Shows gradients to watchers before autograd adds them to a parameter's.

    Args:
        parameters: by name.

    Attributes:
        micro_batch: index of the micro-batch whose backward is under way.
        passes_over: whether a parameter's gradients come in parts, which its owner shows when all
            are added.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.micro_batch = 0
        self.passes_over: Callable[[str], bool] = lambda name: False
        self._parameters = parameters
        self._watchers: list[MicroBatchWatcher] = []
        self._undo = ExitStack()

    def add(self, watcher: MicroBatchWatcher) -> None:
        """Show every gradient of every micro-batch to a watcher from now on."""
        if not self._watchers:
            for name, parameter in self._parameters.items():
                if parameter.requires_grad:
                    arrived = partial(weakly(self._arrived), name)
                    self._undo.callback(parameter.register_hook(arrived).remove)
        self._watchers.append(watcher)

    @property
    def has_any(self) -> bool:
        """Whether anybody looks."""
        return bool(self._watchers)

    def _arrived(self, name: str, gradient: torch.Tensor) -> None:
        if not self.passes_over(name):
            self.show(self.micro_batch, name, gradient)

    def show(self, micro_batch: int, name: str, gradient: torch.Tensor) -> None:
        """Show a micro-batch's gradient."""
        for watcher in self._watchers:
            watcher(micro_batch, name, gradient)

    def close(self) -> None:
        """Take the hooks off the parameters."""
        self._undo.close()


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """What calls a method unless its object is gone.

    What hooks hold is held weakly: a garbage collector does not see it.
    """
    owner, function = ref(method.__self__), method.__func__  # type: ignore[attr-defined]

    def call(*args: Any) -> None:
        alive = owner()
        if alive is not None:
            function(alive, *args)

    return call
