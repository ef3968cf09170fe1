"""Numbers as bits: exact decoding, and encoding that rounds once, to nearest even."""

import ctypes
import struct
from fractions import Fraction
from typing import Final

import numpy as np

from openwafer.dtypes import DTYPES, DType
from openwafer.sdk.ir.function import Type

WIDTHS: Final = {
    Type.PTR: 16,
    Type.FN: 16,
    **{kind: DTYPES[kind.value].num_bits for kind in Type if kind.value in DTYPES},
    Type.BOOL: 1,
    Type.DSD: 128,
    Type.DSD4: 256,
}
"""Bits of each type."""
FLOATS: Final = frozenset((Type.F16, Type.BF16, Type.CB16, Type.F32))
SIGNED: Final = frozenset((Type.I8, Type.I16, Type.I32, Type.I64))
_BEYOND_F16: Final = 65520.0
"""The least number that is rounded to infinity."""
INTEGERS: Final = SIGNED | {Type.U8, Type.U16, Type.U32, Type.U64}


def num_words(kind: Type) -> int:
    """Memory words of one value; 8-bit types and bool take a whole one."""
    return max(1, WIDTHS[kind] // 16)


def decode(bits: int, kind: Type) -> int | float:
    """Return the number that `bits` stand for; exact."""
    if kind in FLOATS:
        return _decode_float(bits, DTYPES[kind.value])
    if kind in SIGNED and bits >> (WIDTHS[kind] - 1):
        return bits - (1 << WIDTHS[kind])
    return bits


def encode(value: float | Fraction, kind: Type) -> int:
    """Return the bits of `value`: floats round to nearest even, integers wrap around."""
    if kind not in FLOATS:
        return int(value) & ((1 << WIDTHS[kind]) - 1)
    if isinstance(value, float) and kind is Type.F32:
        with np.errstate(over="ignore"):
            return int(np.float32(value).view(np.uint32))
    if isinstance(value, float) and kind is Type.F16:
        with np.errstate(over="ignore"):
            return int(np.float64(value).astype(np.float16).view(np.uint16))
    return _encode_float(value, DTYPES[kind.value])


def rounded(value: float, kind: Type) -> float:
    """Return the nearest number that a float type holds, to even."""
    if kind is Type.F32 and value == value:
        return ctypes.c_float(value).value
    if kind is Type.F16 and abs(value) < _BEYOND_F16:
        return float(struct.unpack("<e", struct.pack("<e", value))[0])
    return float(decode(encode(value, kind), kind))


def convert(bits: int, source: Type, target: Type) -> int:
    """Return the bits of the same number in another type.

    Floats lose their fraction toward zero on the way to an integer and saturate; NaN becomes 0.
    Anything becomes true unless it is zero.
    """
    value = decode(bits, source)
    if target is Type.BOOL:
        return int(value != 0)
    if source in FLOATS and target not in FLOATS:
        return _saturate(float(value), target)
    return encode(value if isinstance(value, float) else Fraction(value), target)


def _saturate(value: float, target: Type) -> int:
    if value != value:
        return 0
    width = WIDTHS[target]
    low, high = (
        (-(1 << (width - 1)), (1 << (width - 1)) - 1) if target in SIGNED else (0, (1 << width) - 1)
    )
    if value >= high:
        return encode(high, target)
    return encode(max(low, int(value)) if value > low else low, target)


def _decode_float(bits: int, kind: DType) -> float:
    if kind.name == "f32":
        return float(struct.unpack("<f", struct.pack("<I", bits))[0])
    bias = kind.exponent_bias
    sign = -1.0 if bits >> (kind.num_bits - 1) else 1.0
    exponent = (bits >> kind.mantissa_bits) & ((1 << kind.exponent_bits) - 1)
    mantissa = bits & ((1 << kind.mantissa_bits) - 1)
    if exponent == (1 << kind.exponent_bits) - 1:
        return sign * float("inf") if mantissa == 0 else float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - kind.mantissa_bits)
    return (
        sign
        * (mantissa + (1 << kind.mantissa_bits))
        * 2.0 ** (exponent - bias - kind.mantissa_bits)
    )


def _encode_float(value: float | Fraction, kind: DType) -> int:
    """Bits of a float format; the sign of a zero Fraction is plus."""
    special = (1 << kind.exponent_bits) - 1
    top = kind.num_bits - 1
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        quiet = 1 << (kind.mantissa_bits - 1) if value != value else 0
        return (int(value < 0) << top) | (special << kind.mantissa_bits) | quiet
    negative = np.signbit(value) if isinstance(value, float) else value < 0
    magnitude = abs(Fraction(value))
    return (int(negative) << top) | _encode_magnitude(magnitude, kind, special)


def _encode_magnitude(magnitude: Fraction, kind: DType, special: int) -> int:
    if magnitude == 0:
        return 0
    bias = kind.exponent_bias
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    exponent = max(exponent, 1 - bias)
    # round() of a Fraction goes to the even neighbour.
    steps = round(magnitude / Fraction(2) ** (exponent - kind.mantissa_bits))
    bits = ((exponent + bias - 1) << kind.mantissa_bits) + steps
    return min(bits, special << kind.mantissa_bits)
