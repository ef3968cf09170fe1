"""The plain meaning of arithmetic on bits: the oracle of compiled code."""

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Final

import numpy as np

from openwafer.sdk.ir.function import Type
from openwafer.sdk.ir.numbers import FLOATS, SIGNED, WIDTHS, decode, encode, rounded

_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_BITWISE: Final[dict[str, Callable[[int, int], int]]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
_FLOAT: Final[dict[str, Callable[[np.float64, np.float64], np.float64]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "rem": lambda a, b: np.float64(np.fmod(a, b)),
}
_EXACT: Final[dict[str, Callable[[float, float], float]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}
"""What Python computes as numpy does, where no divisor is zero."""
COMPARISONS: Final = frozenset(_COMPARE)
BINARY: Final = frozenset(_FLOAT.keys() | _BITWISE)
"""Operations on two values of a type that give a third one, but for shifts."""
_MATH: Final[dict[str, Callable[..., np.float64]]] = {
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "pow": np.power,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "abs": np.abs,
}


def compare(op: str, a: int, b: int, kind: Type) -> int:
    """Result of a comparison, as a bit."""
    return int(_COMPARE[op](decode(a, kind), decode(b, kind)))


def binary(op: str, a: int, b: int, kind: Type) -> int:
    """Bits of a binary operation on two values of one type."""
    if op in _BITWISE:
        return _BITWISE[op](a, b)
    if kind in FLOATS:
        return encode(real(op, float(decode(a, kind)), float(decode(b, kind)), kind), kind)
    return _integer(op, int(decode(a, kind)), int(decode(b, kind)), kind)


def real(op: str, x: float, y: float, kind: Type) -> float:
    """A binary operation on two numbers that a float type holds, as a number that it holds."""
    # Doubles hold more than twice the digits, so rounding twice equals rounding once.
    if op in _EXACT and (op != "div" or y):
        return rounded(_EXACT[op](x, y), kind)
    with np.errstate(all="ignore"):
        return rounded(float(_FLOAT[op](np.float64(x), np.float64(y))), kind)


def _integer(op: str, a: int, b: int, kind: Type) -> int:
    match op:
        case "add":
            return encode(a + b, kind)
        case "sub":
            return encode(a - b, kind)
        case "mul":
            return encode(a * b, kind)
        case "div":
            return encode(-1 if b == 0 else _quotient(a, b), kind)
        case "rem":
            return encode(a if b == 0 else a - b * _quotient(a, b), kind)
        case _:
            pass
    raise ValueError(f"no integer operation '{op}'")


def _quotient(a: int, b: int) -> int:
    magnitude = abs(a) // abs(b)
    return magnitude if (a < 0) == (b < 0) else -magnitude


def shift(op: str, bits: int, count: int, kind: Type) -> int:
    """Bits of a shift; `count` is not negative."""
    if op == "shl":
        return encode(bits << min(count, WIDTHS[kind]), kind)
    value = int(decode(bits, kind)) if kind in SIGNED else bits
    return encode(value >> min(count, WIDTHS[kind]), kind)


def negate(bits: int, kind: Type) -> int:
    """Bits of the negative; a float changes its sign bit alone."""
    if kind in FLOATS:
        return bits ^ (1 << (WIDTHS[kind] - 1))
    return encode(-bits, kind)


def fused_multiply_add(a: int, x: int, y: int, kind: Type, factors: Type) -> int:
    """Bits of ``a + x * y``, rounded once; `factors` is the type of x and y."""
    values = [decode(a, kind), decode(x, factors), decode(y, factors)]
    if not all(math.isfinite(value) for value in values) or 0 in values:
        with np.errstate(all="ignore"):
            addend, first, second = (np.float64(value) for value in values)
            return encode(float(addend + first * second), kind)
    addend_, first_, second_ = (Fraction(value) for value in values)
    return encode(addend_ + first_ * second_, kind)


def function(name: str, args: list[int], kind: Type) -> int:
    """Bits of a function of the real numbers."""
    with np.errstate(all="ignore"):
        value = _MATH[name](*(np.float64(decode(arg, kind)) for arg in args))
    return encode(float(value), kind)
