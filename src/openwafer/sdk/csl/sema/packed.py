"""Packed structs and unions: fields as bits of one integer, in memory and at compile time."""

from openwafer.sdk.csl import types
from openwafer.sdk.csl.sema.analysis import Analysis
from openwafer.sdk.csl.sema.narrow import narrowed
from openwafer.sdk.csl.types import Enum, Int, Pointer, Struct, Type
from openwafer.sdk.csl.values import BitsLvalue, PointerValue, Value
from openwafer.sdk.ir import function as ir
from openwafer.sdk.ir.numbers import decode


def unpacked(kind: Type, bits: int) -> Value:
    """The value of a type that some bits stand for."""
    match kind:
        case Struct(fields=fields):
            starts = [types.bit_offset(kind, index) for index in range(len(fields))]
            pairs = zip(fields, starts, strict=True)
            return tuple(unpacked(field.type, bits >> start) for field, start in pairs)
        case Pointer():
            return PointerValue(None, (), bits & 0xFFFF)
        case Int() | Enum():
            number = kind.tag if isinstance(kind, Enum) else kind
            bits &= (1 << number.num_bits) - 1
            return bits - (1 << number.num_bits) if bits > number.highest else bits
        case _:
            bits &= (1 << types.num_bits(kind)) - 1
            return bool(bits) if kind == types.BOOL else decode(bits, types.ir_type(kind))


def _integer(kind: Type) -> ir.Type:
    return types.ir_type(Int(False, max(16, types.num_bits(kind))))


def load_field(analysis: Analysis, lvalue: BitsLvalue) -> ir.Value:
    """A scalar field's value."""
    wide = _integer(lvalue.owner.type)
    whole = analysis.emit("load", lvalue.owner.address, type=wide)
    bits = analysis.emit("shr", whole, ir.Constant(lvalue.shift, ir.Type.U16), type=wide)
    return _of_bits(analysis, lvalue.type, bits)


def _of_bits(analysis: Analysis, kind: Type, bits: ir.Value) -> ir.Value:
    target = types.ir_type(kind)
    if isinstance(kind, Int | Enum):
        number = kind.tag if isinstance(kind, Enum) else kind
        return narrowed(analysis, number, _cast(analysis, bits, target))
    width = Int(False, types.num_bits(kind))
    low = narrowed(analysis, width, _cast(analysis, bits, types.ir_type(width)))
    if kind == types.BOOL:
        return _cast(analysis, low, ir.Type.BOOL)
    return low if low.type is target else analysis.emit("bitcast", low, type=target)


def store_field(analysis: Analysis, lvalue: BitsLvalue, value: ir.Value) -> None:
    """Assign to a scalar field; the other bits stay."""
    wide = _integer(lvalue.owner.type)
    width = types.num_bits(lvalue.type)
    field = ((1 << width) - 1) << lvalue.shift
    bits = _cast(analysis, _to_bits(analysis, lvalue.type, value), wide)
    moved = analysis.emit("shl", bits, ir.Constant(lvalue.shift, ir.Type.U16), type=wide)
    kept_mask = ((1 << types.num_words(lvalue.owner.type) * 16) - 1) & ~field
    whole = analysis.emit("load", lvalue.owner.address, type=wide)
    kept = analysis.emit("and", whole, ir.Constant(kept_mask, wide), type=wide)
    analysis.emit("store", lvalue.owner.address, analysis.emit("or", kept, moved, type=wide))


def _to_bits(analysis: Analysis, kind: Type, value: ir.Value) -> ir.Value:
    unsigned = Int(False, types.num_bits(kind))
    target = types.ir_type(unsigned)
    if kind == types.BOOL:
        return _cast(analysis, value, target)
    bits = value if value.type is target else analysis.emit("bitcast", value, type=target)
    return narrowed(analysis, unsigned, bits)


def _cast(analysis: Analysis, value: ir.Value, kind: ir.Type) -> ir.Value:
    return value if value.type is kind else analysis.emit("cast", value, type=kind)
