"""Known values as all images of a program understand them.

Modules, functions, variables and constants are objects of one image; in another one the same names
stand for other objects.
"""

from array import array
from collections.abc import Callable, Hashable
from typing import Any, Final

from openwafer.sdk.csl import types
from openwafer.sdk.csl.lanes import Lanes
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.sema.recording import NoKeyError
from openwafer.sdk.csl.values import (
    Cell,
    CellLvalue,
    Comptime,
    FunctionValue,
    MemoryLvalue,
    Module,
    PointerValue,
    Undefined,
    Variable,
)
from openwafer.sdk.ir import function as ir


def key_of(image: ImageState, value: Any) -> Hashable:
    """What is equal for values that are the same in two images.

    Raises:
        NoKeyError: nothing is.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[no-any-return]
    if kind is tuple or kind is list:
        return _key_of_items(image, value)
    find = _KEYS.get(kind)
    if find is None:
        raise NoKeyError
    return find(image, value)


def moved(image: ImageState, value: Any) -> Any:
    """A value of another image, that has a key, as `image` has it."""
    if type(value) is tuple:
        if _NUMBERS.issuperset(map(type, value)):
            return value
        return tuple(moved(image, item) for item in value)
    move = _MOVES.get(type(value))
    return value if move is None else move(image, value)


def _key_of_items(image: ImageState, items: tuple[Any, ...] | list[Any]) -> Hashable:
    kinds = set(map(type, items))
    if kinds <= _INTEGERS:
        return tuple(items)
    if kinds <= _NUMBERS - _INTEGERS:
        # Zero has two signs, and no number is less like itself than NaN.
        return array("d", items).tobytes()
    return tuple(key_of(image, item) for item in items)


def _lanes(_image: ImageState, value: Lanes) -> Hashable:
    if not value.is_one():
        raise NoKeyError
    return value.one()


def _module(image: ImageState, value: Module) -> Hashable:
    if image.modules.get(value.prefix) is not value:
        raise NoKeyError
    return Module, value.prefix, value.path


def _cell(image: ImageState, value: Cell) -> Hashable:
    if not value.is_global or _constant(image, value) is not value:
        raise NoKeyError
    return Cell, value.name, value.type, key_of(image, value.content)


def _constant(image: ImageState, cell: Cell) -> Cell | None:
    """The constant of an image that has the name of another image's one."""
    prefix, dot, name = cell.name.rpartition(".")
    lvalue = image.modules[prefix + dot].globals.get(name)
    return lvalue.cell if isinstance(lvalue, CellLvalue) else None


def _variable(image: ImageState, value: Variable) -> Hashable:
    if image.variables.get(value.name) is not value:
        raise NoKeyError
    return Variable, value.name, value.type


def _memory(_image: ImageState, value: MemoryLvalue) -> Hashable:
    if isinstance(value.address, ir.Register):
        raise NoKeyError
    return value


_PLAIN: Final = frozenset(
    (
        *(int, bool, str, bytes, type(None), Undefined, types.Simple, types.Int, types.Array),
        *(types.Pointer, types.Function, types.Struct, types.Enum),
    )
)
_INTEGERS: Final = frozenset((int, bool))
_NUMBERS: Final = _INTEGERS | {float}
_KEYS: Final[dict[type, Callable[[ImageState, Any], Hashable]]] = {
    float: lambda image, value: value.hex(),
    Lanes: _lanes,
    Module: _module,
    FunctionValue: lambda image, value: (
        *(FunctionValue, id(value.declaration)),
        key_of(image, value.module),
    ),
    Variable: _variable,
    Cell: _cell,
    PointerValue: lambda image, value: (
        *(PointerValue, key_of(image, value.target)),
        *(value.path, value.offset),
    ),
    Comptime: lambda image, value: (Comptime, value.type, key_of(image, value.value)),
    CellLvalue: lambda image, value: (
        *(CellLvalue, value.type, key_of(image, value.cell)),
        *(value.path, value.is_const),
    ),
    MemoryLvalue: _memory,
}
_MOVES: Final[dict[type, Callable[[ImageState, Any], Any]]] = {
    Lanes: lambda image, value: value.one(),
    Module: lambda image, value: image.modules[value.prefix],
    FunctionValue: lambda image, value: FunctionValue(
        value.declaration, moved(image, value.module)
    ),
    Variable: lambda image, value: image.variables[value.name],
    Cell: _constant,
    PointerValue: lambda image, value: PointerValue(
        moved(image, value.target), value.path, value.offset
    ),
    Comptime: lambda image, value: Comptime(value.type, moved(image, value.value)),
    CellLvalue: lambda image, value: CellLvalue(
        value.type, moved(image, value.cell), value.path, value.is_const
    ),
}
