"""The decorator of everything that the simulator compiles."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from numba import njit

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call; not cached by itself, only as a part of its callers."""
    return njit(function)  # type: ignore[no-any-return]
