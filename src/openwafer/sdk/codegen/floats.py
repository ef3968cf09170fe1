"""Conversions between number formats, each rounded once, to nearest even.

16-bit floats are computed in a wider format: f16 in f32, the others in f64; both hold more than
twice the digits and two, so rounding the wide result of one operation equals rounding the exact
one. A value that was rounded to f64 reaches f16 through f32 rounded *to odd*, which keeps what a
second rounding needs. Where the processor has no conversions of f16, integer code does them.
"""

from typing import Final

from openwafer.dtypes import DTYPES
from openwafer.sdk.codegen.body import Body, llvm_type
from openwafer.sdk.ir.function import Type
from openwafer.sdk.ir.numbers import FLOATS, SIGNED, WIDTHS

SUPPORT: Final = """\
define internal double @decode(i16 %bits, i64 %exponent_bits, i64 %bias) alwaysinline nounwind {
  %wide = zext i16 %bits to i64
  %magnitude = and i64 %wide, 32767
  %mantissa_bits = sub i64 15, %exponent_bits
  %up = sub i64 52, %mantissa_bits
  %raised = shl i64 %magnitude, %up
  %number = bitcast i64 %raised to double
  %factor_exponent = sub i64 2046, %bias
  %factor_bits = shl i64 %factor_exponent, 52
  %factor = bitcast i64 %factor_bits to double
  %scaled = fmul double %number, %factor
  %special_power = shl i64 1, %exponent_bits
  %special = sub i64 %special_power, 1
  %exponent = lshr i64 %magnitude, %mantissa_bits
  %is_special = icmp eq i64 %exponent, %special
  %special_bits = or i64 %raised, 9218868437227405312
  %special_number = bitcast i64 %special_bits to double
  %positive = select i1 %is_special, double %special_number, double %scaled
  %sign = and i64 %wide, 32768
  %is_negative = icmp ne i64 %sign, 0
  %negative = fneg double %positive
  %result = select i1 %is_negative, double %negative, double %positive
  ret double %result
}
define internal i16 @encode(double %number, i64 %exponent_bits, i64 %bias) alwaysinline nounwind {
  %bits = bitcast double %number to i64
  %magnitude = and i64 %bits, 9223372036854775807
  %positive = bitcast i64 %magnitude to double
  %mantissa_bits = sub i64 15, %exponent_bits
  %down = sub i64 52, %mantissa_bits
  %rebias = sub i64 1023, %bias
  %half_shift = sub i64 %down, 1
  %half = shl i64 1, %half_shift
  %below_half = sub i64 %half, 1
  %last = lshr i64 %magnitude, %down
  %odd = and i64 %last, 1
  %bump = add i64 %below_half, %odd
  %bumped = add i64 %magnitude, %bump
  %rounded = lshr i64 %bumped, %down
  %exponent_offset = shl i64 %rebias, %mantissa_bits
  %normal = sub i64 %rounded, %exponent_offset
  %first_normal = add i64 %rebias, 1
  %first_normal_bits = shl i64 %first_normal, 52
  %is_small = icmp ult i64 %magnitude, %first_normal_bits
  %step_exponent = sub i64 %first_normal, %mantissa_bits
  %magic_exponent = add i64 %step_exponent, 52
  %magic_bits = shl i64 %magic_exponent, 52
  %magic = bitcast i64 %magic_bits to double
  %sum = fadd double %positive, %magic
  %sum_bits = bitcast double %sum to i64
  %steps = sub i64 %sum_bits, %magic_bits
  %finite = select i1 %is_small, i64 %steps, i64 %normal
  %special_power = shl i64 1, %exponent_bits
  %special = sub i64 %special_power, 1
  %infinite = shl i64 %special, %mantissa_bits
  %limited = call i64 @llvm.umin.i64(i64 %finite, i64 %infinite)
  %sign = lshr i64 %bits, 48
  %sign_bit = and i64 %sign, 32768
  %signed = or i64 %limited, %sign_bit
  %quiet_shift = sub i64 %mantissa_bits, 1
  %quiet = shl i64 1, %quiet_shift
  %nan = or i64 %infinite, %quiet
  %is_nan = fcmp uno double %number, 0.0
  %result = select i1 %is_nan, i64 %nan, i64 %signed
  %narrow = trunc i64 %result to i16
  ret i16 %narrow
}
define internal float @round_to_odd(double %number) alwaysinline nounwind {
  %nearest = fptrunc double %number to float
  %back = fpext float %nearest to double
  %is_inexact = fcmp one double %back, %number
  %bits = bitcast float %nearest to i32
  %last = and i32 %bits, 1
  %is_even = icmp eq i32 %last, 0
  %moves = and i1 %is_inexact, %is_even
  %size = call double @llvm.fabs.f64(double %number)
  %back_size = call double @llvm.fabs.f64(double %back)
  %is_below = fcmp olt double %back_size, %size
  %direction = select i1 %is_below, i32 1, i32 -1
  %step = select i1 %moves, i32 %direction, i32 0
  %odd = add i32 %bits, %step
  %result = bitcast i32 %odd to float
  ret float %result
}
"""


class Floats:
    """Conversions for one processor.

    Args:
        has_f16: the processor converts f16 by itself.
    """

    def __init__(self, *, has_f16: bool) -> None:
        self.has_f16 = has_f16

    def to_float(self, body: Body, value: str, kind: Type) -> str:
        """A float value of any format as LLVM ``float``; exact."""
        if kind is Type.F32:
            return value
        if kind is Type.F16 and self.has_f16:
            half = body.value(f"bitcast i16 {value} to half")
            return body.value(f"fpext half {half} to float")
        return body.value(f"fptrunc double {self._decode(body, value, kind)} to float")

    def from_float(self, body: Body, value: str, kind: Type) -> str:
        """An LLVM ``float`` rounded to a format."""
        if kind is Type.F32:
            return value
        if kind is Type.F16 and self.has_f16:
            half = body.value(f"fptrunc float {value} to half")
            return body.value(f"bitcast half {half} to i16")
        wide = body.value(f"fpext float {value} to double")
        return self._encode(body, wide, kind)

    def to_double(self, body: Body, value: str, kind: Type) -> str:
        """A float value of any format as LLVM ``double``; exact."""
        if kind is Type.F32 or (kind is Type.F16 and self.has_f16):
            return body.value(f"fpext float {self.to_float(body, value, kind)} to double")
        return self._decode(body, value, kind)

    def from_double(self, body: Body, value: str, kind: Type) -> str:
        """An LLVM ``double`` rounded to a format."""
        if kind is Type.F32:
            return body.value(f"fptrunc double {value} to float")
        if kind is Type.F16 and self.has_f16:
            odd = body.value(f"call float @round_to_odd(double {value})")
            return self.from_float(body, odd, kind)
        return self._encode(body, value, kind)

    def cast(self, body: Body, value: str, source: Type, target: Type) -> str:
        """The same number in another type; floats truncate and saturate to integers."""
        if source is target:
            return value
        if target is Type.BOOL:
            return self._is_not_zero(body, value, source)
        if source in FLOATS:
            if target in FLOATS:
                return self._between_floats(body, value, source, target)
            return self._to_integer(body, value, source, target)
        if target in FLOATS:
            return self._from_integer(body, value, source, target)
        return resize(body, value, source, target)

    def _between_floats(self, body: Body, value: str, source: Type, target: Type) -> str:
        if target is Type.F32:
            return self.to_float(body, value, source)
        if source is Type.F32:
            return self.from_float(body, value, target)
        return self.from_double(body, self.to_double(body, value, source), target)

    def _to_integer(self, body: Body, value: str, source: Type, target: Type) -> str:
        wide = self.to_double(body, value, source)
        letter, to = "s" if target in SIGNED else "u", llvm_type(target)
        return body.value(f"call {to} @llvm.fpto{letter}i.sat.{to}.f64(double {wide})")

    def _from_integer(self, body: Body, value: str, source: Type, target: Type) -> str:
        letter, kind = "s" if source in SIGNED else "u", llvm_type(source)
        if target is Type.F32:
            return body.value(f"{letter}itofp {kind} {value} to float")
        wide = body.value(f"{letter}itofp {kind} {value} to double")
        return self.from_double(body, wide, target)

    def _is_not_zero(self, body: Body, value: str, kind: Type) -> str:
        if kind in FLOATS:
            return body.value(f"fcmp une double {self.to_double(body, value, kind)}, 0.0")
        return body.value(f"icmp ne {llvm_type(kind)} {value}, 0")

    def _decode(self, body: Body, value: str, kind: Type) -> str:
        return body.value(f"call double @decode(i16 {value}, {_shape(kind)})")

    def _encode(self, body: Body, value: str, kind: Type) -> str:
        return body.value(f"call i16 @encode(double {value}, {_shape(kind)})")


def _shape(kind: Type) -> str:
    """Exponent bits and bias of a 16-bit float, as arguments."""
    return f"i64 {DTYPES[kind.value].exponent_bits}, i64 {DTYPES[kind.value].exponent_bias}"


def resize(body: Body, value: str, source: Type, target: Type) -> str:
    """An integer, bool, pointer or function with the width of another."""
    have, want = WIDTHS[source], WIDTHS[target]
    if have == want:
        return value
    word = "trunc" if want < have else "sext" if source in SIGNED else "zext"
    return body.value(f"{word} {llvm_type(source)} {value} to {llvm_type(target)}")


def raw_bits(body: Body, value: str, kind: Type, width: int) -> str:
    """The bits of a scalar as an integer of `width` bits; upper ones are zero or cut off."""
    if kind is Type.F32:
        value = body.value(f"bitcast float {value} to i32")
    have = WIDTHS[kind]
    if have == width:
        return value
    return body.value(f"{'trunc' if width < have else 'zext'} i{have} {value} to i{width}")


def from_raw_bits(body: Body, value: str, width: int, kind: Type) -> str:
    """A scalar from the low bits of an integer of `width` bits."""
    have = WIDTHS[kind]
    if have != width:
        value = body.value(f"{'trunc' if have < width else 'zext'} i{width} {value} to i{have}")
    return body.value(f"bitcast i32 {value} to float") if kind is Type.F32 else value
