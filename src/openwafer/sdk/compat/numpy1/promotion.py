"""numpy 1's choice of a result's type, by the values of the scalars that take part.

Among scalars alone, a number of Python is one of 64 bits; numpy 2 gives it the other one's type, so
that ``np.uint16(3) << 16`` is 0 and not 196608. A scalar beside an array has the smallest type that
holds its value, if it is of no higher kind than the array; in numpy 2 a scalar of numpy keeps its
type. The rules are those of numpy's documentation of `result_type`, before version 2, and NEP 50.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

NUMBERS: Final = (int, float, complex, np.number, np.bool_)
"""Scalars that take part, besides arrays without a dimension."""
_SIZED: Final[Mapping[type, Callable[[Any], Any]]] = MappingProxyType(
    {int: np.int64, float: np.float64, bool: np.bool_}
)
_MAX_INTEGER: Final = (1 << 63) - 1
_MAX_BYTE: Final = (1 << 7) - 1
_RANKS: Final = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 2}


def as_numpy_1(*operands: Any, is_searched: bool = False) -> Sequence[Any]:
    """Return operands, some of them as numbers of other types, from which numpy 2 makes the result.

    Operands are taken as they are where one of them is no number and no array of numbers.

    Args:
        operands: numbers and arrays.
        is_searched: the operation takes the first of numpy's types, signed ones first, that holds
            all operands, as those on bits, shifts, powers and divisions of whole numbers do.
    """
    types = [_dtype(operand) for operand in operands]
    if any(dtype.kind not in (*_RANKS, "O") for dtype in types):
        return operands
    of_arrays = [dtype for one, dtype in zip(operands, types, strict=True) if not is_scalar(one)]
    if len(of_arrays) == len(operands):
        return operands
    scalars = [one for one in operands if is_scalar(one)]
    if not of_arrays or _rank(of_arrays) < _rank([_dtype(one) for one in scalars]):
        return [_sized(one) if isinstance(one, int | float | complex) else one for one in operands]
    common = of_arrays[0]
    for dtype in of_arrays[1:]:
        common = np.promote_types(common, dtype)
    for one in scalars:
        common = np.promote_types(common, _smallest(one, common))
    if is_searched and common.kind == "u":
        common = _signed(common, of_arrays, scalars)
    return [_of_type(one, common) if is_scalar(one) else one for one in operands]


def pair_as_numpy_1(first: Any, second: Any, *, is_searched: bool) -> Sequence[Any]:
    """The same for two, with a shorter way for the pairs that scripts are full of."""
    if isinstance(first, np.generic):
        if isinstance(second, np.generic):
            return first, second
        if type(second) in _SIZED and abs(second) <= _MAX_INTEGER:
            return first, _SIZED[type(second)](second)
    elif isinstance(second, np.generic) and type(first) in _SIZED and abs(first) <= _MAX_INTEGER:
        return _SIZED[type(first)](first), second
    elif _is_small_beside(first, second) or _is_small_beside(second, first):
        return first, second
    return as_numpy_1(first, second, is_searched=is_searched)


def _is_small_beside(number: Any, array: Any) -> bool:
    """Whether a number of Python is so small that no rule finds a larger type than the array's."""
    return (
        type(number) is int
        and 0 <= number <= _MAX_BYTE
        and isinstance(array, np.ndarray)
        and array.ndim > 0
        and array.dtype.kind in "iuf"
    )


def is_scalar(operand: Any) -> bool:
    """Whether the value of an operand decided on types: a number, or an array of no dimension."""
    return isinstance(operand, NUMBERS) or np.ndim(operand) == 0


def _dtype(operand: Any) -> np.dtype[Any]:
    """Type of an operand by itself."""
    if isinstance(operand, np.ndarray | np.generic):
        return operand.dtype
    return np.asarray(operand).dtype


def _rank(types: Sequence[np.dtype[Any]]) -> int:
    return max(_RANKS.get(dtype.kind, 3) for dtype in types)


def _sized(number: complex) -> Any:
    """A number of Python as numpy has it, an array where it is too large for 64 bits."""
    array = np.asarray(number)
    return array if array.dtype.kind == "O" else array[()]


def _smallest(scalar: Any, beside: np.dtype[Any]) -> np.dtype[Any]:
    """The smallest type with a scalar's value, with a sign where the other one has it."""
    smallest = np.min_scalar_type(scalar)
    if smallest.kind == "u" and beside.kind == "i":
        signed = np.dtype(f"i{smallest.itemsize}")
        if int(scalar) <= np.iinfo(signed).max:
            return signed
    return smallest


def _signed(
    common: np.dtype[Any], of_arrays: Sequence[np.dtype[Any]], scalars: Sequence[Any]
) -> np.dtype[Any]:
    """The type of the same size with a sign, if it holds all operands."""
    signed = np.dtype(f"i{common.itemsize}")
    is_wide = all(np.can_cast(dtype, signed) for dtype in of_arrays)
    fits = all(int(one) <= np.iinfo(signed).max for one in scalars)
    return signed if is_wide and fits else common


def _of_type(scalar: Any, dtype: np.dtype[Any]) -> Any:
    array = np.asarray(scalar, dtype)
    return array if dtype.kind == "O" else array[()]
