"""Params taken apart into their numbers and all the rest, and made of these again."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from openwafer.sdk.csl.lanes import Lanes
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import Comptime

_LARGEST: Final = 1 << 62
Number: TypeAlias = int | Lanes


class _Hole(Enum):
    """Where a number was."""

    INTEGER = "integer"
    BOOL = "bool"


@dataclass(frozen=True)
class Shape:
    """Params without their numbers: of each its name, its type, and its value with holes."""

    params: tuple[tuple[str, Type, Any], ...]


def take_apart(params: Mapping[str, Comptime]) -> tuple[Shape, tuple[Number, ...]]:
    """The params' shape and their numbers in order; numbers beyond 64 bits stay in the shape."""
    numbers: list[Number] = []
    shape = tuple(
        (name, value.type, _with_holes(value.value, numbers))
        for name, value in sorted(params.items())
    )
    return Shape(shape), tuple(numbers)


def with_numbers(shape: Shape, numbers: Iterator[Number]) -> dict[str, Comptime]:
    """The params of a shape and of numbers."""
    return {name: Comptime(kind, _filled(value, numbers)) for name, kind, value in shape.params}


def _with_holes(value: Any, numbers: list[Number]) -> Any:
    if type(value) is tuple:
        return tuple(_with_holes(item, numbers) for item in value)
    # A comparison with what 64 bits do not hold would part lanes, whose numbers they hold.
    is_small = type(value) is Lanes or (isinstance(value, int) and -_LARGEST < value < _LARGEST)
    if not is_small:
        return value
    numbers.append(value)
    return _Hole.BOOL if isinstance(value, bool) else _Hole.INTEGER


def _filled(value: Any, numbers: Iterator[Number]) -> Any:
    match value:
        case tuple():
            return tuple(_filled(item, numbers) for item in value)
        case _Hole.INTEGER:
            return next(numbers)
        case _Hole.BOOL:
            number = next(numbers)
            return number if isinstance(number, Lanes) else bool(number)
        case _:
            return value
