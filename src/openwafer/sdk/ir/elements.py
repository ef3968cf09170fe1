"""The plain meaning of one element of each vector operation, on raw bits."""

import math

from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE, VectorOp
from openwafer.sdk.ir.arithmetic import binary, compare, fused_multiply_add, negate, shift
from openwafer.sdk.ir.function import Type
from openwafer.sdk.ir.numbers import convert, decode, encode

_SUFFIX_TYPES = {"h": Type.F16, "s": Type.F32}
_BINARY = {"fadd": "add", "fsub": "sub", "fmul": "mul"}
_SHIFTS = {"sll16": ("shl", Type.U16), "slr16": ("shr", Type.U16), "sar16": ("shr", Type.I16)}
_CONVERSIONS = {
    "fh2s": (Type.F16, Type.F32),
    "fs2h": (Type.F32, Type.F16),
    "xp162fh": (Type.I16, Type.F16),
    "xp162fs": (Type.I16, Type.F32),
}


def element(code: int, a: int, b: int = 0, c: int = 0) -> int:
    """Bits of one element; ``a``, ``b``, ``c`` are the bits of the sources in CSL's order."""
    op = VECTOR_OPS_BY_CODE[code]
    if op.name in ("mov16", "mov32", "fmovh", "fmovs"):
        return a
    if op.destination.startswith("any"):
        return _bits(op.name, a, b)
    return _float(op, a, b, c)


def _bits(name: str, a: int, b: int) -> int:
    match name:
        case "add16":
            return (a + b) & 0xFFFF
        case "sub16":
            return (a - b) & 0xFFFF
        case "and16" | "or16" | "xor16":
            return binary(name[:-2], a, b, Type.U16)
        case "clz":
            return 16 - (a & 0xFFFF).bit_length()
        case "ctz":
            return 16 if a & 0xFFFF == 0 else ((a & -a).bit_length() - 1)
        case "popcnt":
            return (a & 0xFFFF).bit_count()
        case _:
            pass
    op, kind = _SHIFTS[name]
    return shift(op, a, b, kind)


def _float(op: VectorOp, a: int, b: int, c: int) -> int:
    if op.name in _CONVERSIONS:
        return convert(a, *_CONVERSIONS[op.name])
    if op.name in ("fh2xp16", "fs2xp16"):
        return convert(a, Type(op.sources[0]), Type.I16)
    if op.name == "faddhs":
        return binary("add", a, convert(b, Type.F16, Type.F32), Type.F32)
    if op.name == "fmachs":
        return fused_multiply_add(a, b, c, Type.F32, Type.F16)
    kind = _SUFFIX_TYPES[op.name[-1]]
    match op.name[:-1]:
        case "fadd" | "fsub" | "fmul":
            return binary(_BINARY[op.name[:-1]], a, b, kind)
        case "fmac":
            return fused_multiply_add(a, b, c, kind, kind)
        case "fmax":
            return _maximum(a, b, kind)
        case "fneg":
            return negate(a, kind)
        case "fabs":
            return a & ~(1 << (15 if kind is Type.F16 else 31))
        case _:
            pass
    return _scale(a, int(decode(b & 0xFFFF, Type.I16)), kind)


def _maximum(a: int, b: int, kind: Type) -> int:
    """The larger one; a number before NaN."""
    x = decode(a, kind)
    if x != x:
        return b
    return b if compare("gt", b, a, kind) else a


def _scale(bits: int, exponent: int, kind: Type) -> int:
    value = float(decode(bits, kind))
    if not math.isfinite(value):
        return bits
    # Past this range the result is zero or infinite anyway, and a double still holds it.
    return encode(math.ldexp(value, max(-600, min(600, exponent))), kind)
