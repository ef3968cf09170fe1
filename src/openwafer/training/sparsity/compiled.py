"""The decorator of the loops that this room compiles."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from numba import njit

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop at its first call, and keep its machine code beside its source.

    numba notices a change of the file only in which the loop itself stands, so a loop calls nothing
    compiled of another file. It runs without Python's lock.
    """
    return njit(cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]
