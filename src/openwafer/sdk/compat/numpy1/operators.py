"""The operators and functions that host scripts compute with, by numpy 1's rules."""

import builtins
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, NoneType
from typing import Any, Final, TypeAlias

import numpy as np

from openwafer.sdk.compat.numpy1.promotion import NUMBERS, as_numpy_1, pair_as_numpy_1

Binary: TypeAlias = Callable[[Any, Any], Any]

_PLAIN: Final = frozenset((int, float, bool, complex, str, bytes, list, tuple, dict, set, NoneType))
"""Types whose operators have nothing to do with numpy, as long as both operands are of them."""
_TAKEN: Final = (*NUMBERS, np.ndarray)


def _checked(compute: Binary, *, is_searched: bool = False) -> Binary:
    """An operator that asks numpy 1's rules first where an operand is numpy's."""

    def operate(first: Any, second: Any) -> Any:
        if type(first) in _PLAIN and type(second) in _PLAIN:
            return compute(first, second)
        if isinstance(first, _TAKEN) and isinstance(second, _TAKEN):
            first, second = pair_as_numpy_1(first, second, is_searched=is_searched)
        return compute(first, second)

    return operate


_NAMES: Final = ("add", "sub", "mul", "truediv", "matmul")
_SEARCHED: Final = ("floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor")
_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")


def _operators() -> dict[str, Binary]:
    names = dict.fromkeys((*_NAMES, *_COMPARISONS), False) | dict.fromkeys(_SEARCHED, True)
    names |= {f"i{name.rstrip('_')}": name in _SEARCHED for name in (*_NAMES, *_SEARCHED)}
    return {
        name: _checked(getattr(operator, name), is_searched=is_searched)
        for name, is_searched in names.items()
    }


OPERATORS: Final[Mapping[str, Binary]] = MappingProxyType(_operators())
"""By their names in Python's `operator`; those that begin with ``i`` change their first operand."""

_add: Final = OPERATORS["add"]
_multiply: Final = OPERATORS["mul"]


_SEARCHED_UFUNCS: Final = frozenset(
    (
        *(np.floor_divide, np.remainder, np.fmod, np.divmod, np.power, np.gcd, np.lcm),
        *(np.left_shift, np.right_shift, np.bitwise_and, np.bitwise_or, np.bitwise_xor),
    )
)


class Ufunc:
    """A universal function of numpy that asks numpy 1's rules before it is called."""

    def __init__(self, ufunc: np.ufunc) -> None:
        self._ufunc = ufunc

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call it."""
        num, is_searched = self._ufunc.nin, self._ufunc in _SEARCHED_UFUNCS
        operands = as_numpy_1(*args[:num], is_searched=is_searched)
        return self._ufunc(*operands, *args[num:], **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ufunc, name)


def _where(condition: Any, *values: Any) -> Any:
    return np.where(condition, *as_numpy_1(*values)) if values else np.where(condition)


def _clip(array: Any, low: Any, high: Any, *rest: Any, **options: Any) -> Any:
    if low is not None and high is not None:
        array, low, high = as_numpy_1(array, low, high)
    return np.clip(array, low, high, *rest, **options)


def _linspace(start: Any, stop: Any, *rest: Any, **options: Any) -> Any:
    return np.linspace(_multiply(start, 1.0), _multiply(stop, 1.0), *rest, **options)


def _sum(items: Iterable[Any], /, start: Any = 0) -> Any:
    items = list(items)
    if type(start) in _PLAIN and all(type(item) in _PLAIN for item in items):
        return sum(items, start)
    return functools.reduce(_add, items, start)


def _prod(items: Iterable[Any], *, start: Any = 1) -> Any:
    return functools.reduce(_multiply, items, start)


def _accumulate(items: Iterable[Any], func: Binary = _add, **options: Any) -> Any:
    return itertools.accumulate(items, func, **options)


def _pow(base: Any, exp: Any, mod: Any = None) -> Any:
    return OPERATORS["pow"](base, exp) if mod is None else pow(base, exp, mod)


def _table() -> dict[int, tuple[object, Any]]:
    ufuncs = {
        one: Ufunc(one)
        for one in vars(np).values()
        if isinstance(one, np.ufunc) and one.nin > 1 and one is not np.ldexp
    }
    of_operator = {getattr(operator, name): made for name, made in OPERATORS.items()}
    others: dict[Any, Any] = {
        np.where: _where,
        np.clip: _clip,
        np.linspace: _linspace,
        builtins.sum: _sum,
        builtins.pow: _pow,
        builtins.divmod: _checked(divmod, is_searched=True),
        math.prod: _prod,
        itertools.accumulate: _accumulate,
    }
    # The function that an id belongs to is kept with it: ids of what is gone come again.
    return {id(one): (one, made) for one, made in {**ufuncs, **of_operator, **others}.items()}


FUNCTIONS: Final = _table()
"""A function, and what takes its place, by the function's id."""

NAMES: Final = frozenset(
    name
    for module in (np, operator, builtins, math, itertools)
    for name, value in vars(module).items()
    if id(value) in FUNCTIONS
)
"""Names that functions of this table go by."""
