"""Calls that wait for the end of a step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Closure = Callable[..., object]


class _StepClosure(NamedTuple):
    closure: Closure
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class StepClosures:
    """Closures of a step, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._waiting: list[_StepClosure] = []

    def add(self, closure: Closure, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Let a closure wait."""
        self._waiting.append(_StepClosure(closure, args, kwargs))

    def run(self) -> None:
        """Call them, and those that they ask for."""
        while self._waiting:
            closure, args, kwargs = self._waiting.pop(0)
            closure(*args, **kwargs)

    def forget(self) -> None:
        """Let none wait any more."""
        self._waiting.clear()
