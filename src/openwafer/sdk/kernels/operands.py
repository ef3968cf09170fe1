"""Operands that kernels take from users: numpy's arrays, and no lists of numbers."""

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

    It raises OpenwaferError, ``kernel-array``, with the operand's name.
    """
    signature = inspect.signature(function)
    wanted = dict(_arrays(signature))

    @wraps(function)
    def checked(*given: Given.args, **named: Given.kwargs) -> Found:
        for name, value in signature.bind(*given, **named).arguments.items():
            if name in wanted and not isinstance(value, wanted[name]):
                raise error(
                    "kernel-array",
                    f"{name} is of the type {type(value).__name__}; a kernel takes numpy's arrays",
                    help="convert it, as by np.array(values, np.float32)",
                )
        return function(*given, **named)

    return checked


def _arrays(signature: inspect.Signature) -> Iterator[tuple[str, tuple[type, ...]]]:
    """Parameters that are arrays, and the types that each may have."""
    for name, parameter in signature.parameters.items():
        kind = parameter.annotation
        options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        origins = {typing.get_origin(one) or one for one in options}
        if np.ndarray in origins:
            yield name, tuple(origins)
