"""The decorator of everything that the simulator compiles."""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from numba import njit, types
from numba.extending import intrinsic

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


@intrinsic
def cells_at(_typing: Any, address: Any) -> Any:
    """A pointer to 64-bit integers at a native address; unlike arrays it counts no references."""
    pointer = types.CPointer(types.int64)

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(address), generate
