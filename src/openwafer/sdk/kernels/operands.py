"""What kernels take from users: numpy's arrays of numbers, and sizes of a known count.

A list of numbers, a mask that a PE would not know, and what is no number (NaN) are refused by name
before anything is compiled, as by ``check_finite`` of scipy.linalg.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error

Given = ParamSpec("Given")
Found = TypeVar("Found")
Check = Callable[[str, object], object]


def takes_operands(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """The same function, which refuses what its signature's arrays and sizes cannot be.

    It raises OpenwaferError with the operand's name: ``kernel-array`` for what is no array of
    numbers or has a mask, ``kernel-finite`` for NaN, ``kernel-rectangle`` and ``kernel-shape`` for
    a `size` and other numbers of another count or kind.
    """
    return _checked(function, check_numbers)


def moves_operands(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """The same for values that are moved bit for bit, NaN among them."""
    return _checked(function, check_array)


def _checked(function: Callable[Given, Found], check: Check) -> Callable[Given, Found]:
    signature = inspect.signature(function)
    arrays, counts = dict(_arrays(signature)), dict(_counts(signature))

    @wraps(function)
    def checked(*given: Given.args, **named: Given.kwargs) -> Found:
        for name, value in signature.bind(*given, **named).arguments.items():
            if name in arrays and not isinstance(value, arrays[name]):
                check(name, value)
            elif name in counts:
                _check_count(name, value, counts[name])
        return function(*given, **named)

    return checked


def _arrays(signature: inspect.Signature) -> Iterator[tuple[str, tuple[type, ...]]]:
    """Parameters that are arrays, and the other types that each may have."""
    for name, parameter in signature.parameters.items():
        origins = {typing.get_origin(one) or one for one in _options(parameter)}
        if np.ndarray in origins:
            yield name, tuple(origins - {np.ndarray})


@dataclass(frozen=True)
class _Numbers:
    """Some numbers in a signature: how many, of which kind, and whether None is as good."""

    count: int
    kind: type
    is_optional: bool


def _counts(signature: inspect.Signature) -> Iterator[tuple[str, _Numbers]]:
    """Parameters that are some numbers."""
    for name, parameter in signature.parameters.items():
        options = _options(parameter)
        for one in options:
            numbers = typing.get_args(one)
            if typing.get_origin(one) is tuple and Ellipsis not in numbers:
                kind = Integral if set(numbers) == {int} else Real
                yield name, _Numbers(len(numbers), kind, types.NoneType in options)


def _options(parameter: inspect.Parameter) -> tuple[Any, ...]:
    kind = parameter.annotation
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _check_count(name: str, value: object, wanted: _Numbers) -> None:
    if value is None and wanted.is_optional:
        return
    is_some = isinstance(value, tuple | list) and len(value) == wanted.count
    if is_some and all(isinstance(one, wanted.kind) for one in typing.cast(list[object], value)):
        return
    example = str((4,) * wanted.count)
    if name == "size":
        raise error(
            "kernel-rectangle",
            f"size is {value!r}; a kernel takes rows and columns of PEs",
            help=f"give both, as in {example}",
        )
    kind = "whole " if wanted.kind is Integral else ""
    raise error(
        "kernel-shape",
        f"{name} is {value!r}; {wanted.count} {kind}numbers are needed",
        help=f"give all, as in {example}",
    )


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
    """Refuse what :func:`check_array` does, and NaN.

    Raises:
        OpenwaferError: ``kernel-array``, or ``kernel-finite`` for NaN.
    """
    values = check_array(name, value)
    if values.dtype.kind in "fc":
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
