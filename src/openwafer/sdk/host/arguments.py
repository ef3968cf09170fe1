"""Arguments of launched functions: host numbers to the raw bits that a PE gets."""

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from openwafer.diagnostics import error
from openwafer.sdk.program.program import HostName

_INTEGERS = {
    "bool": (0, 1),
    **{f"u{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    **{f"i{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
}
_FLOATS = {"f16": "<e", "f32": "<f"}
_NUMBERS = (int, float, np.integer, np.floating, np.bool_)


def raw_arguments(function: HostName, values: Sequence[object]) -> tuple[int, ...]:
    """Check the arguments of a launch against the function's parameters and return their bits.

    Raises OpenwaferError for another number of arguments and for values out of a type's range.
    """
    inputs = function.inputs or ()
    if len(values) != len(inputs):
        takes = ", ".join(f"{name}: {kind}" for name, kind in inputs)
        raise error(
            "launch-arguments",
            f"function expects {len(inputs)} arguments, {len(values)} provided",
            notes=(f"{function.name}({takes})",),
        )
    return tuple(
        _raw(function, name, kind, value)
        for (name, kind), value in zip(inputs, values, strict=True)
    )


def _raw(function: HostName, name: str, kind: str, value: object) -> int:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if not isinstance(value, _NUMBERS):
        raise error(
            "launch-argument-type",
            f"{function.name}: {name} is {kind}, got {type(value).__name__}",
        )
    if kind in _FLOATS:
        return _raw_float(function, name, kind, value)
    return _raw_integer(function, name, kind, value)


def _raw_float(function: HostName, name: str, kind: str, value: Any) -> int:
    try:
        return int.from_bytes(struct.pack(_FLOATS[kind], float(value)), "little")
    except OverflowError:
        raise error(
            "launch-argument-range",
            f"{function.name}: {name} is {kind}, which does not reach as far as the value",
            help="give infinity itself where you mean it",
        ) from None


def _raw_integer(function: HostName, name: str, kind: str, value: Any) -> int:
    if kind not in _INTEGERS:
        raise error("launch-argument-type", f"{function.name}: the host cannot give a {kind}")
    low, high = _INTEGERS[kind]
    is_endless = isinstance(value, float | np.floating) and not math.isfinite(value)
    number = high + 1 if is_endless else int(value)
    if number != value or not low <= number <= high:
        raise error(
            "launch-argument-range",
            f"{function.name}: {name} is {kind}, from {low} to {high}; got {value}",
        )
    return int(number & ((1 << 64) - 1))
