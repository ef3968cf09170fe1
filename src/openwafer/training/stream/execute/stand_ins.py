"""Stands in for what a module calls, until the module gets it back."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from torch import nn

Function: TypeAlias = Callable[..., Any]
Run: TypeAlias = Callable[[Function, tuple[Any, ...], Mapping[str, Any]], Any]
"""Calls a function with arguments, and does what else there is to do."""


def stand_in(module: nn.Module, name: str, function: Function, run: Run) -> Callable[[], object]:
    """Let ``run`` have every call that a module makes through its attribute ``name``.

    Args:
        function: what the module computes, which ``run`` is given first.

    Returns:
        What gives the module its own attribute back.
    """
    is_own, own = name in module.__dict__, module.__dict__.get(name)
    setattr(module, name, StandIn(function, run))
    return partial(setattr, module, name, own) if is_own else partial(delattr, module, name)


class StandIn:
    """What a module has in the place of its own function."""

    def __init__(self, function: Function, run: Run) -> None:
        # Whoever asks for the signature gets the function's.
        self.__wrapped__ = function
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self.__wrapped__, args, kwargs)
