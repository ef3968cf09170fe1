"""What kernels take from users: numpy's arrays of numbers, sizes of a known count, and numbers.

A list of numbers, a mask that a PE would not know, what is no number (NaN) and a count that is not
whole are refused by name before anything is compiled, as by ``check_finite`` of scipy.linalg.
"""

import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error

Given = ParamSpec("Given")
Found = TypeVar("Found")
Check = Callable[[str, object], object]


def takes_operands(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """The same function, which refuses what its signature's arrays, sizes and numbers cannot be.

    It raises OpenwaferError with the operand's name: ``kernel-array`` for what is no array of
    numbers or has a mask, ``kernel-finite`` for NaN, ``kernel-rectangle`` and ``kernel-shape`` for
    a `size` and other numbers of another count or kind, ``kernel-number`` for one number.
    """
    return _checked(function, check_numbers)


def moves_operands(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """The same for values that are moved bit for bit, NaN among them."""
    return _checked(function, check_array)


_without_nan: ContextVar[tuple[object, ...]] = ContextVar("_without_nan", default=())
"""Arrays of the calls that are under way which were looked through."""


def _checked(function: Callable[Given, Found], check: Check) -> Callable[Given, Found]:
    signature = inspect.signature(function)
    arrays, numbers = dict(_arrays(signature)), _numbers_of(signature)

    @wraps(function)
    def checked(*given: Given.args, **named: Given.kwargs) -> Found:
        values = signature.bind(*given, **named).arguments
        looked_through = list(_without_nan.get())
        for name, others in arrays.items():
            if name in values and not isinstance(values[name], others):
                check(name, values[name])
                if check is check_numbers:
                    looked_through.append(values[name])
        for name, wanted in numbers.items():
            if name in values:
                wanted.check(name, values[name])
        before = _without_nan.set(tuple(looked_through))
        try:
            return function(*given, **named)
        finally:
            _without_nan.reset(before)

    return checked


def _arrays(signature: inspect.Signature) -> Iterator[tuple[str, tuple[type, ...]]]:
    """Parameters that are arrays, and the other types that each may have."""
    for name, parameter in signature.parameters.items():
        origins = {typing.get_origin(one) or one for one in _options(parameter)}
        if np.ndarray in origins:
            yield name, tuple(origins - {np.ndarray})


@dataclass(frozen=True)
class _Numbers:
    """Some numbers in a signature.

    Attributes:
        kind: whole ones, or any.
        is_optional: None is as good.
        count: how many a tuple has of them; None where it may be any number.
    """

    kind: type
    is_optional: bool
    count: int | None

    def check(self, name: str, value: object) -> None:
        """Refuse what is another count of them, or of another kind."""
        if value is None and self.is_optional:
            return
        given = typing.cast(list[object], value) if isinstance(value, tuple | list) else [None]
        are_numbers = all(_is_number(one, self.kind) for one in given)
        if are_numbers and self.count in (None, len(given)):
            return
        example = str((4,) * (self.count or 2))
        if name == "size":
            raise error(
                "kernel-rectangle",
                f"size is {value!r}; a kernel takes rows and columns of PEs",
                help=f"give both, as in {example}",
            )
        kind = "whole " if self.kind is Integral else ""
        count = "" if self.count is None else f"{self.count} "
        raise error(
            "kernel-shape",
            f"{name} is {value!r}; {count}{kind}numbers are needed",
            help=f"give all, as in {example}",
        )


@dataclass(frozen=True)
class _Number:
    """One number in a signature: whole, or any that is finite, and whether None is as good."""

    kind: type
    is_optional: bool

    def check(self, name: str, value: object) -> None:
        """Refuse what is none."""
        if value is not None or not self.is_optional:
            check_number(name, value, is_whole=self.kind is Integral)


def check_number(name: str, value: object, *, is_whole: bool = False) -> None:
    """Refuse what is no finite number, or no whole one. Results of no dims are numbers, too.

    Raises:
        OpenwaferError: ``kernel-number``.
    """
    if is_whole and _is_number(value, Integral):
        return
    number: object = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if not is_whole and _is_number(number, Real) and _is_finite(typing.cast(float, number)):
        return
    raise error(
        "kernel-number",
        f"{name} is {value!r}; a {'whole' if is_whole else 'finite'} number is needed",
        help=f"give one, as in {4 if is_whole else 0.5}",
    )


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def check_fields(record: object) -> None:
    """Refuse what the numbers of a dataclass cannot be, by the types of its fields.

    Raises:
        OpenwaferError: as of :func:`takes_operands`.
    """
    kind: Callable[..., object] = type(record)
    for name, wanted in _fields(kind).items():
        wanted.check(name, getattr(record, name))


@lru_cache
def _fields(kind: Callable[..., object]) -> dict[str, _Numbers | _Number]:
    return _numbers_of(inspect.signature(kind))


_KINDS: dict[object, type] = {int: Integral, float: Real}


def _numbers_of(signature: inspect.Signature) -> dict[str, _Numbers | _Number]:
    """Parameters that are some numbers, and behind them those that are one."""
    some: dict[str, _Numbers | _Number] = {}
    single: dict[str, _Numbers | _Number] = {}
    for name, parameter in signature.parameters.items():
        options = _options(parameter)
        is_optional = types.NoneType in options
        for one in options:
            if typing.get_origin(one) is tuple:
                numbers = typing.get_args(one)
                kind = Integral if set(numbers) <= {int, Ellipsis} else Real
                count = None if Ellipsis in numbers else len(numbers)
                some[name] = _Numbers(kind, is_optional, count)
            elif one in _KINDS:
                single[name] = _Number(_KINDS[one], is_optional)
    return some | single


def _options(parameter: inspect.Parameter) -> tuple[Any, ...]:
    kind = parameter.annotation
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def check_array(name: str, value: object) -> NDArray[Any]:
    """The value, which is refused if it is no array of numbers, or has a mask that no PE knows.

    Raises:
        OpenwaferError: ``kernel-array``.
    """
    if not isinstance(value, np.ndarray):
        raise error(
            "kernel-array",
            f"{name} is of the type {type(value).__name__}; a kernel takes numpy's arrays",
            help="convert it, as by np.array(values, np.float32)",
        )
    if isinstance(value, np.ma.MaskedArray):
        raise error(
            "kernel-array",
            f"{name} has a mask, which no kernel knows",
            help="give its values, as by values.filled(0)",
        )
    if isinstance(value, np.matrix) or value.dtype.kind not in "biufc":
        kind = "a matrix of numpy's" if isinstance(value, np.matrix) else f"of {value.dtype}"
        raise error(
            "kernel-array",
            f"{name} is {kind}; a kernel takes arrays of numbers",
            help="convert it, as by np.array(values, np.float32)",
        )
    return value


def check_numbers(name: str, value: object) -> None:
    """Refuse what :func:`check_array` does, and NaN, which no array is looked through for twice.

    Raises:
        OpenwaferError: ``kernel-array``, or ``kernel-finite`` for NaN.
    """
    values = check_array(name, value)
    if values.dtype.kind in "fc" and not any(values is one for one in _without_nan.get()):
        _refuse(name, values, np.isnan(values), "no numbers (NaN)", "replace them")


def check_finite(name: str, values: NDArray[Any]) -> None:
    """Refuse infinities and NaN: zeros that fill tiles would spread them, and bounds have none.

    Raises:
        OpenwaferError: ``kernel-finite``, there are some.
    """
    _refuse(
        name,
        values,
        ~np.isfinite(values),
        "infinite or no numbers",
        "replace them, or scale values that the elements' type cannot hold",
    )


def _refuse(
    name: str, values: NDArray[Any], wrong: NDArray[np.bool_], what: str, remedy: str
) -> None:
    number = int(np.count_nonzero(wrong))
    if number:
        first = tuple(int(one) for one in np.unravel_index(int(wrong.argmax()), wrong.shape))
        place = first if len(first) != 1 else first[0]
        raise error(
            "kernel-finite",
            f"{number} of the {values.size} values of {name} are {what}, the first at {place}",
            help=remedy,
        )
