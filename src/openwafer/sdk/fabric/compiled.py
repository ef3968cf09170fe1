"""The decorators of everything that the simulator compiles, and what it needs beyond Python."""

from collections.abc import Callable, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from openwafer.sdk.fabric.passes import Passes

APART: Final[set[str]] = set()
"""Names of the functions of :func:`apart`."""
P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call by another compiled one; Python cannot call it.

    It is not cached by itself, only as a part of its callers.
    """
    return _compiled(function, is_inlined=False)


def apart(function: Callable[P, R]) -> Callable[P, R]:
    """The same for a function that is rarely called: its code stays out of its callers."""
    APART.add(function.__name__)
    return _compiled(function, is_inlined=False)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """The same for a function that is called in every cycle: its code goes into its callers."""
    return _compiled(function, is_inlined=True)


def _compiled(function: Callable[P, R], *, is_inlined: bool) -> Callable[P, R]:
    dispatcher = njit(
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        forceinline=is_inlined,
        pipeline_class=Passes,
    )(function)
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


@intrinsic
def prefetch(_typing: Any, _cells: Any, _index: Any) -> Any:
    """Ask memory for a word that is needed soon."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer, number = (context.get_value_type(kind) for kind in (types.voidptr, types.int32))
        kind = cgutils.ir.FunctionType(cgutils.ir.VoidType(), [pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        place = builder.bitcast(builder.gep(args[0], [args[1]]), pointer)
        # To be read and written, with the best place in the cache, as data.
        builder.call(function, [place, number(1), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.CPointer(types.int64), types.int64), generate


@intrinsic
def lowest_bit(_typing: Any, _mask: Any) -> Any:
    """Number of the lowest set bit of a mask that is not 0."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], context.get_constant(types.boolean, 1))

    return types.int64(types.int64), generate


@intrinsic
def load_16(_typing: Any, _cells: Any, _index: Any) -> Any:
    """A 16-bit word without a sign; the index counts such words."""
    return types.int64(types.CPointer(types.int64), types.int64), _loader(types.uint16)


@intrinsic
def load_32(_typing: Any, _cells: Any, _index: Any) -> Any:
    """32 bits without a sign from a 16-bit word on."""
    return types.int64(types.CPointer(types.int64), types.int64), _loader(types.uint32)


@intrinsic
def store_16(_typing: Any, _cells: Any, _index: Any, _value: Any) -> Any:
    """Write the lowest bits of a value as a 16-bit word."""
    return types.void(types.CPointer(types.int64), types.int64, types.int64), _storer(types.uint16)


@intrinsic
def store_32(_typing: Any, _cells: Any, _index: Any, _value: Any) -> Any:
    """Write the lowest bits of a value as 32 bits from a 16-bit word on."""
    return types.void(types.CPointer(types.int64), types.int64, types.int64), _storer(types.uint32)


def _half_word(context: Any, builder: Any, args: Any, kind: Any) -> Any:
    """Pointer to a number that begins at a 16-bit word."""
    words = builder.bitcast(args[0], context.get_value_type(types.CPointer(types.uint16)))
    place = builder.gep(words, [args[1]])
    return builder.bitcast(place, context.get_value_type(types.CPointer(kind)))


def _loader(kind: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(_half_word(context, builder, args, kind), align=2)
        return builder.zext(value, context.get_value_type(signature.return_type))

    return generate


def _storer(kind: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = builder.trunc(args[2], context.get_value_type(kind))
        builder.store(value, _half_word(context, builder, args, kind), align=2)
        return context.get_dummy_value()

    return generate


@intrinsic
def load_shared(_typing: Any, _cells: Any, _index: Any) -> Any:
    """A word that another thread may write; what that thread wrote before is seen, too."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.gep(args[0], [args[1]]), "acquire", 8)

    return types.int64(types.CPointer(types.int64), types.int64), generate


@intrinsic
def store_shared(_typing: Any, _cells: Any, _index: Any, _value: Any) -> Any:
    """Write a word that other threads wait for; they see all that was written before, too."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], builder.gep(args[0], [args[1]]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.CPointer(types.int64), types.int64, types.int64), generate
