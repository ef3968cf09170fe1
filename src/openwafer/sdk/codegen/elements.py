"""One element of each vector operation: compiled form of :mod:`openwafer.sdk.ir.elements`."""

from typing import Final

from openwafer.sdk.arch.vector_ops import VECTOR_OPS, VectorOp, element_words
from openwafer.sdk.codegen.body import Body
from openwafer.sdk.codegen.floats import Floats, from_raw_bits, raw_bits
from openwafer.sdk.codegen.scalars import binary, negate, shift
from openwafer.sdk.ir.function import Type

_MOVES: Final = frozenset(("mov16", "mov32", "fmovh", "fmovs"))
_SHIFTS: Final = {
    "sll16": ("shl", Type.U16),
    "slr16": ("shr", Type.U16),
    "sar16": ("shr", Type.I16),
}
_COUNTS: Final = {
    "clz": "@llvm.ctlz.i16(i16 {}, i1 false)",
    "ctz": "@llvm.cttz.i16(i16 {}, i1 false)",
    "popcnt": "@llvm.ctpop.i16(i16 {})",
}
_CONVERSIONS: Final = frozenset(("fh2s", "fs2h", "fh2xp16", "fs2xp16", "xp162fh", "xp162fs"))
_BINARY: Final = {"fadd": "add", "fsub": "sub", "fmul": "mul"}


def width_of(element_type: str) -> int:
    """Bits of an element."""
    return 16 * element_words(element_type)


def element(body: Body, floats: Floats, op: VectorOp, sources: list[str]) -> str:
    """Raw bits of one element.

    Args:
        body: where the code goes.
        floats: conversions.
        op: the operation.
        sources: raw bits of each source, as integers of the width of its elements.
    """
    if op.name in _MOVES:
        return sources[0]
    if op.destination == "any16":
        return _bits(body, floats, op.name, sources)
    if op.name in _CONVERSIONS:
        source, target = Type(op.sources[0]), Type(op.destination)
        value = from_raw_bits(body, sources[0], width_of(source), source)
        return raw_bits(body, floats.cast(body, value, source, target), target, width_of(target))
    kind = Type(op.destination)
    values = [
        from_raw_bits(body, bits, width_of(source), Type(source))
        for bits, source in zip(sources, op.sources, strict=True)
    ]
    return raw_bits(body, _float(body, floats, op, values), kind, width_of(kind))


def _bits(body: Body, floats: Floats, name: str, sources: list[str]) -> str:
    if name in _COUNTS:
        return body.value(f"call i16 {_COUNTS[name].format(sources[0])}")
    first, second = sources
    if name in _SHIFTS:
        op, kind = _SHIFTS[name]
        return shift(body, op, first, second, (kind, Type.U16))
    return binary(body, floats, name[:-2], first, second, Type.U16)


def _float(body: Body, floats: Floats, op: VectorOp, values: list[str]) -> str:
    kind = Type(op.destination)
    match op.name[: -2 if op.name.endswith("hs") else -1]:
        case "fadd" | "fsub" | "fmul" as name:
            first, second = values
            if op.sources[1] != op.destination:
                second = floats.cast(body, second, Type(op.sources[1]), kind)
            return binary(body, floats, _BINARY[name], first, second, kind)
        case "fmac":
            return _multiply_add(body, floats, op, values)
        case "fmax":
            return _maximum(body, floats, values, kind)
        case "fneg":
            return negate(body, values[0], kind)
        case "fabs":
            return _absolute(body, values[0], kind)
        case _:
            return _scale(body, floats, values, kind)


def _multiply_add(body: Body, floats: Floats, op: VectorOp, values: list[str]) -> str:
    """``a + x * y`` rounded once; the product of two f16 is exact in the wider formats."""
    if op.name == "fmach":
        a, x, y = (floats.to_double(body, value, Type.F16) for value in values)
        total = body.value(f"fadd double {a}, {body.value(f'fmul double {x}, {y}')}")
        return floats.from_double(body, total, Type.F16)
    a, x, y = (
        floats.to_float(body, value, Type(source))
        for value, source in zip(values, op.sources, strict=True)
    )
    if op.name == "fmachs":
        return body.value(f"fadd float {a}, {body.value(f'fmul float {x}, {y}')}")
    return body.value(f"call float @llvm.fma.f32(float {x}, float {y}, float {a})")


def _maximum(body: Body, floats: Floats, values: list[str], kind: Type) -> str:
    """The larger one; a number before NaN."""
    a, b = (floats.to_float(body, value, kind) for value in values)
    is_larger = body.value(f"fcmp ogt float {b}, {a}")
    is_nan = body.value(f"fcmp uno float {a}, {a}")
    takes_second = body.value(f"or i1 {is_larger}, {is_nan}")
    return body.select(takes_second, "float" if kind is Type.F32 else "i16", values[1], values[0])


def _absolute(body: Body, value: str, kind: Type) -> str:
    if kind is Type.F16:
        return body.value(f"and i16 {value}, 32767")
    bits = body.value(f"bitcast float {value} to i32")
    return body.value(f"bitcast i32 {body.value(f'and i32 {bits}, 2147483647')} to float")


def _scale(body: Body, floats: Floats, values: list[str], kind: Type) -> str:
    """``a * 2**n``, exact in f64 for every n that does not end at zero or infinity."""
    number, exponent = floats.to_double(body, values[0], kind), values[1]
    is_low = body.value(f"icmp slt i16 {exponent}, -600")
    exponent = body.select(is_low, "i16", "-600", exponent)
    is_high = body.value(f"icmp sgt i16 {exponent}, 600")
    exponent = body.select(is_high, "i16", "600", exponent)
    biased = body.value(f"add i16 {exponent}, 1023")
    power = body.value(f"shl i64 {body.value(f'zext i16 {biased} to i64')}, 52")
    factor = body.value(f"bitcast i64 {power} to double")
    return floats.from_double(body, body.value(f"fmul double {number}, {factor}"), kind)


def element_function(floats: Floats) -> str:
    """The function ``int64 element(int32 operation, int64, int64, int64)`` over all operations."""
    body = Body("define i64 @element(i32 %operation, i64 %a, i64 %b, i64 %c) nounwind")
    body.begin_entry()
    cases = "\n".join(f"    i32 {op.code}, label %op{op.code}" for op in VECTOR_OPS.values())
    body.do(f"switch i32 %operation, label %unknown [\n{cases}\n  ]")
    for op in VECTOR_OPS.values():
        body.begin(f"op{op.code}")
        sources = [
            body.value(f"trunc i64 {name} to i{width_of(source)}")
            for name, source in zip(("%a", "%b", "%c"), op.sources, strict=False)
        ]
        bits = element(body, floats, op, sources)
        body.do(f"ret i64 {body.value(f'zext i{width_of(op.destination)} {bits} to i64')}")
    body.begin("unknown")
    body.do("ret i64 0")
    return body.text()
