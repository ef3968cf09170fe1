"""The decorator of everything that the simulator compiles."""

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from numba import njit, types

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call by another compiled one; Python cannot call it.

    It is not cached by itself, only as a part of its callers.
    """
    dispatcher = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    resolve = dispatcher.get_call_template

    def resolve_without_literals(args: Sequence[object], keywords: dict[str, object]) -> object:
        # numba would compile the function once more for each constant that a caller passes.
        return resolve(tuple(types.unliteral(arg) for arg in args), keywords)

    dispatcher.get_call_template = resolve_without_literals
    return dispatcher  # type: ignore[no-any-return]
