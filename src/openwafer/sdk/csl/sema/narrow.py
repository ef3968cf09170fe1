"""Integers of any width in the PE's integers of 8, 16, 32 and 64 bits.

A value fills its PE integer: its spare bits are zero, or copies of the sign. So only what may leave
a wrong bit there has to be narrowed behind it.
"""

from openwafer.sdk.csl import types
from openwafer.sdk.csl.sema.analysis import Analysis
from openwafer.sdk.csl.types import Enum, Int, Type
from openwafer.sdk.ir import function as ir


def narrowed(analysis: Analysis, kind: Type, value: ir.Value) -> ir.Value:
    """`value` with its lowest bits as a value of the type: it wraps around."""
    spare = types.spare_bits(kind)
    if spare == 0:
        return value
    number = kind.tag if isinstance(kind, Enum) else kind
    assert isinstance(number, Int)
    if not number.is_signed:
        mask = ir.Constant(number.highest, value.type)
        return analysis.emit("and", value, mask, type=value.type)
    count = ir.Constant(spare, ir.Type.U16)
    raised = analysis.emit("shl", value, count, type=value.type)
    return analysis.emit("shr", raised, count, type=value.type)


def saturated(analysis: Analysis, kind: Type, value: ir.Value) -> ir.Value:
    """`value` or the type's nearest bound."""
    number = kind.tag if isinstance(kind, Enum) else kind
    if types.spare_bits(kind) == 0 or not isinstance(number, Int):
        return value
    slot = analysis.new_slot(number, "saturated")
    analysis.emit("set", value, names=(slot.slot,))
    for compare, bound in (("gt", number.highest), ("lt", number.lowest)):
        beyond, done = analysis.new_block("beyond"), analysis.new_block("within")
        limit = ir.Constant(bound, value.type)
        is_beyond = analysis.emit(compare, value, limit, type=ir.Type.BOOL)
        analysis.branch(is_beyond, beyond, done)
        analysis.enter(beyond)
        analysis.emit("set", limit, names=(slot.slot,))
        analysis.jump(done)
        analysis.enter(done)
    return analysis.emit("get", type=value.type, names=(slot.slot,))
