"""Arithmetic on scalars: the compiled form of :mod:`openwafer.sdk.ir.arithmetic`."""

from typing import Final

from openwafer.sdk.codegen.body import Body, llvm_type
from openwafer.sdk.codegen.floats import Floats, from_raw_bits, raw_bits, resize
from openwafer.sdk.ir.function import Type
from openwafer.sdk.ir.numbers import FLOATS, SIGNED, WIDTHS

_INTRINSICS: Final = {"abs": "fabs"}
_LIBRARY: Final = frozenset(("exp", "log", "sin", "cos", "tanh", "pow"))

DECLARATIONS: Final = "\n".join(
    [
        "declare i64 @llvm.umin.i64(i64, i64)",
        "declare i16 @llvm.fshr.i16(i16, i16, i16)",
        "declare i64 @llvm.umax.i64(i64, i64)",
        "declare i64 @llvm.abs.i64(i64, i1)",
        *(f"declare double @llvm.{name}.f64(double)" for name in ("fabs", "sqrt", "floor")),
        *(f"declare double @llvm.{name}.f64(double)" for name in ("ceil", "trunc")),
        *(
            f"declare i{width} @llvm.fpto{letter}i.sat.i{width}.f64(double)"
            for width in (8, 16, 32, 64)
            for letter in "su"
        ),
        *(f"declare double @{name}(double)" for name in sorted(_LIBRARY - {"pow"})),
        "declare double @pow(double, double)",
        "declare float @llvm.fma.f32(float, float, float)",
        *(f"declare i16 @llvm.ct{what}.i16(i16)" for what in ("pop",)),
        *(f"declare i16 @llvm.{what}.i16(i16, i1)" for what in ("ctlz", "cttz")),
        "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)",
        "",
    ]
)


def binary(body: Body, floats: Floats, op: str, a: str, b: str, kind: Type) -> str:
    """A binary operation on two values of one type."""
    llvm = llvm_type(kind)
    if op in ("and", "or", "xor"):
        if kind is Type.F32:
            first, second = (raw_bits(body, side, kind, 32) for side in (a, b))
            return from_raw_bits(body, body.value(f"{op} i32 {first}, {second}"), 32, kind)
        return body.value(f"{op} {llvm} {a}, {b}")
    if kind in FLOATS:
        return _float_binary(body, floats, op, (a, b), kind)
    if op in ("div", "rem"):
        return _division(body, op, a, b, kind)
    return body.value(f"{op} {llvm} {a}, {b}")


def _float_binary(body: Body, floats: Floats, op: str, sides: tuple[str, str], kind: Type) -> str:
    if kind in (Type.F32, Type.F16):
        a, b = (floats.to_float(body, side, kind) for side in sides)
        return floats.from_float(body, body.value(f"f{op} float {a}, {b}"), kind)
    a, b = (floats.to_double(body, side, kind) for side in sides)
    return floats.from_double(body, body.value(f"f{op} double {a}, {b}"), kind)


def _division(body: Body, op: str, a: str, b: str, kind: Type) -> str:
    """The divisor is replaced where the host would fault: zero, and the lowest number by -1."""
    llvm, letter = llvm_type(kind), "s" if kind in SIGNED else "u"
    is_zero = body.value(f"icmp eq {llvm} {b}, 0")
    faults = is_zero
    if kind in SIGNED:
        is_minus_one = body.value(f"icmp eq {llvm} {b}, -1")
        is_lowest = body.value(f"icmp eq {llvm} {a}, {-(1 << (WIDTHS[kind] - 1))}")
        overflows = body.value(f"and i1 {is_minus_one}, {is_lowest}")
        faults = body.value(f"or i1 {is_zero}, {overflows}")
    safe = body.select(faults, llvm, "1", b)
    result = body.value(f"{letter}{op} {llvm} {a}, {safe}")
    return body.select(is_zero, llvm, "-1" if op == "div" else a, result)


def compare(body: Body, floats: Floats, op: str, sides: tuple[str, str], kind: Type) -> str:
    """A comparison, as ``i1``."""
    if kind in FLOATS:
        a, b = (floats.to_float(body, side, kind) for side in sides)
        return body.value(f"fcmp {'une' if op == 'ne' else f'o{op}'} float {a}, {b}")
    if op not in ("eq", "ne"):
        op = ("s" if kind in SIGNED else "u") + op
    return body.value(f"icmp {op} {llvm_type(kind)} {sides[0]}, {sides[1]}")


def shift(body: Body, op: str, bits: str, count: str, kinds: tuple[Type, Type]) -> str:
    """A shift; by the width or more the result is zero, or all sign."""
    kind, count_kind = kinds
    llvm, width = llvm_type(kind), WIDTHS[kind]
    amount = resize(body, count, count_kind, Type.U16)
    is_over = body.value(f"icmp uge i16 {amount}, {width}")
    amount = resize(body, amount, Type.U16, kind)
    is_signed = op == "shr" and kind in SIGNED
    safe = body.select(is_over, llvm, str(width - 1) if is_signed else "0", amount)
    if is_signed:
        return body.value(f"ashr {llvm} {bits}, {safe}")
    shifted = body.value(f"{'shl' if op == 'shl' else 'lshr'} {llvm} {bits}, {safe}")
    return body.select(is_over, llvm, "0", shifted)


def negate(body: Body, value: str, kind: Type) -> str:
    """The negative; a float changes its sign bit alone."""
    if kind is Type.F32:
        return body.value(f"fneg float {value}")
    if kind in FLOATS:
        return body.value(f"xor i16 {value}, 32768")
    return body.value(f"sub {llvm_type(kind)} 0, {value}")


def bitcast(body: Body, value: str, source: Type, target: Type) -> str:
    """The same bits as another type."""
    if source is target or llvm_type(source) == llvm_type(target):
        return value
    return from_raw_bits(body, raw_bits(body, value, source, 32), 32, target)


def function(body: Body, floats: Floats, name: str, args: list[str], kind: Type) -> str:
    """A function of the real numbers, computed in f64 and rounded once."""
    if kind in FLOATS:
        wide = [floats.to_double(body, arg, kind) for arg in args]
    else:
        letter = "s" if kind in SIGNED else "u"
        wide = [body.value(f"{letter}itofp {llvm_type(kind)} {arg} to double") for arg in args]
    callee = name if name in _LIBRARY else f"llvm.{_INTRINSICS.get(name, name)}.f64"
    result = body.value(f"call double @{callee}({', '.join(f'double {arg}' for arg in wide)})")
    if kind in FLOATS:
        return floats.from_double(body, result, kind)
    whole = body.value(f"call i64 @llvm.fptosi.sat.i64.f64(double {result})")
    return resize(body, whole, Type.I64, kind)
