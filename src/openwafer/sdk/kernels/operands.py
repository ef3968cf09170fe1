"""Operands that kernels take from users: numpy's arrays, no lists of numbers and no masks."""

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

from openwafer.diagnostics import error

Given = ParamSpec("Given")
Found = TypeVar("Found")


def takes_arrays(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """The same function, which refuses what is no array where its signature has one.

    It raises OpenwaferError, ``kernel-array``, with the operand's name; a masked array, too, whose
    mask a PE would not know. Where the signature has a `size`, it is two numbers, or refused as
    ``kernel-rectangle``.
    """
    signature = inspect.signature(function)
    wanted = dict(_arrays(signature))

    @wraps(function)
    def checked(*given: Given.args, **named: Given.kwargs) -> Found:
        for name, value in signature.bind(*given, **named).arguments.items():
            if name in wanted:
                _check_array(name, value, wanted[name])
            elif name == "size" and not (isinstance(value, tuple | list) and len(value) == 2):
                raise error(
                    "kernel-rectangle",
                    f"size is {value!r}; a kernel takes rows and columns of PEs",
                    help="give both, as in (4, 4)",
                )
        return function(*given, **named)

    return checked


def _check_array(name: str, value: object, types_of: tuple[type, ...]) -> None:
    if not isinstance(value, types_of):
        raise error(
            "kernel-array",
            f"{name} is of the type {type(value).__name__}; a kernel takes numpy's arrays",
            help="convert it, as by np.array(values, np.float32)",
        )
    check_mask(name, value)


def check_mask(name: str, value: object) -> None:
    """Refuse a masked array, whose mask a PE would not know.

    Raises:
        OpenwaferError: ``kernel-array``.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise error(
            "kernel-array",
            f"{name} has a mask, which no kernel knows",
            help="give its values, as by values.filled(0)",
        )


def _arrays(signature: inspect.Signature) -> Iterator[tuple[str, tuple[type, ...]]]:
    """Parameters that are arrays, and the types that each may have."""
    for name, parameter in signature.parameters.items():
        kind = parameter.annotation
        options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        origins = {typing.get_origin(one) or one for one in options}
        if np.ndarray in origins:
            yield name, tuple(origins)
