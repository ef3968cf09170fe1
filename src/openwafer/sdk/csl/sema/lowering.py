"""Known values as the PE holds them: words of memory and operands of instructions."""

import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.csl import types
from openwafer.sdk.csl.lanes import Lanes
from openwafer.sdk.csl.sema.analysis import Analysis
from openwafer.sdk.csl.sema.recording import Question
from openwafer.sdk.csl.sema.shared_values import moved
from openwafer.sdk.csl.types import Array, Function, Pointer, Struct, Type
from openwafer.sdk.csl.values import (
    UNDEFINED,
    Cell,
    CellLvalue,
    Comptime,
    FunctionValue,
    MemoryLvalue,
    Operand,
    PointerValue,
    Runtime,
    Value,
    Variable,
    freeze,
)
from openwafer.sdk.ir import function as ir
from openwafer.sdk.ir.numbers import WIDTHS, encode
from openwafer.source import Span

_PLAIN: Final = frozenset((int, bool))


def bits_of(kind: Type, value: Value) -> int:
    """Bits of a known scalar; undefined gives zeros."""
    if value is UNDEFINED:
        return 0
    if kind in types.FLOATS:
        assert isinstance(value, float)
        return encode(value, types.ir_type(kind))
    assert isinstance(value, int)
    return encode(int(value), types.ir_type(kind))


def words_of(analysis: Analysis, kind: Type, value: Value, span: Span) -> list[int]:
    """Words of memory that hold a known value; undefined gives zeros."""
    if value is UNDEFINED:
        return [0] * types.num_words(kind)
    match kind:
        case Array(element=element):
            return _words_of_elements(analysis, kind, element, value, span)
        case Struct(is_packed=True):
            bits = packed_bits(analysis, kind, value, span)
            return [(bits >> (16 * i)) & 0xFFFF for i in range(types.num_words(kind))]
        case Struct(fields=fields):
            assert isinstance(value, tuple)
            parts = [
                words_of(analysis, f.type, item, span)
                for f, item in zip(fields, value, strict=True)
            ]
            return _joined(kind, parts)
        case Pointer():
            assert isinstance(value, PointerValue)
            return [pointer_bits(analysis, kind, value, span)]
        case _ if kind in types.DSDS:
            assert isinstance(value, tuple)
            return [int(word) for word in value]
        case _:
            bits = bits_of(kind, value)
            return [(bits >> (16 * i)) & 0xFFFF for i in range(types.num_words(kind))]


def packed_bits(analysis: Analysis, kind: Type, value: Value, span: Span) -> int:
    """Bits of a known value of a field; undefined gives zeros."""
    if value is UNDEFINED:
        return 0
    mask = (1 << types.num_bits(kind)) - 1
    match kind:
        case Struct(fields=fields):
            assert isinstance(value, tuple)
            bits = 0
            for index, (field, item) in enumerate(zip(fields, value, strict=True)):
                given = packed_bits(analysis, field.type, item, span)
                bits |= given << types.bit_offset(kind, index)
            return bits
        case Pointer():
            assert isinstance(value, PointerValue)
            return pointer_bits(analysis, kind, value, span) & mask
        case _ if kind in types.FLOATS:
            assert isinstance(value, float)
            return encode(value, types.ir_type(kind))
        case _:
            assert isinstance(value, int)
            return int(value) & mask


def _joined(kind: Struct, parts: list[list[int]]) -> list[int]:
    if not kind.is_union:
        return [word for part in parts for word in part]
    words = [0] * types.num_words(kind)
    for part in parts:
        for i, word in enumerate(part):
            words[i] |= word
    return words


def _words_of_elements(
    analysis: Analysis, _kind: Array, element: Type, value: Value, span: Span
) -> list[int]:
    assert isinstance(value, tuple)
    if types.is_byte(element):
        content = bytes(bits_of(element, item) for item in value) + bytes(len(value) % 2)
        return list(struct.unpack(f"<{len(content) // 2}H", content))
    if element == types.F32 and UNDEFINED not in value:
        packed = struct.pack(f"<{len(value)}f", *value)
        return list(struct.unpack(f"<{2 * len(value)}H", packed))
    if isinstance(element, types.Int) and UNDEFINED not in value:
        num_words, bits = types.num_words(element), WIDTHS[types.ir_type(element)]
        mask = (1 << bits) - 1
        if _PLAIN.issuperset(map(type, value)) and not any(value):
            return [0] * (num_words * len(value))
        packed = b"".join((int(item) & mask).to_bytes(2 * num_words, "little") for item in value)
        return list(struct.unpack(f"<{num_words * len(value)}H", packed))
    return [word for item in value for word in words_of(analysis, element, item, span)]


@dataclass(frozen=True, slots=True)
class _CopyOf(Question):
    """The question for a constant's address in memory."""

    cell: Cell
    span: Span = field(compare=False)

    def answer(self, analysis: Analysis) -> Variable:
        """The copy."""
        return materialize(analysis, moved(analysis.image, self.cell), self.span)

    def key(self, _analysis: Analysis, answer: Variable) -> Hashable:
        """Its name."""
        return answer.name


@dataclass(frozen=True, slots=True)
class _AddressOf(Question):
    """The question for a variable's address."""

    symbol: str

    def answer(self, analysis: Analysis) -> int:
        """The first word."""
        return analysis.image.variables[self.symbol].address


@dataclass(frozen=True, slots=True)
class _NumberOf(Question):
    """The question for a function's number."""

    name: str

    def answer(self, analysis: Analysis) -> int:
        """Its number among the functions."""
        return list(analysis.image.module.functions).index(self.name)


def materialize(analysis: Analysis, cell: Cell, span: Span) -> Variable:
    """The constant's copy in the PE's memory, made when first needed."""
    if cell.is_global and analysis.recording is not None:
        copy: Variable = analysis.ask(_CopyOf(cell, span))
        return copy
    if cell.variable is None:
        if types.is_comptime_only(cell.type):
            analysis.fail(
                "comptime-only",
                f"a value of type '{cell.type}' must be comptime-known and has no address",
                span,
                help="give the variable a fixed-width type",
            )
        if analysis.layout is not None:
            analysis.fail("no-memory", "there is no PE memory in the layout", span)
        words = words_of(analysis, cell.type, freeze(cell.content), span)
        cell.variable = analysis.new_constant(cell.name, cell.type, words)
    return cell.variable


def address(analysis: Analysis, _kind: Pointer, pointer: PointerValue, span: Span) -> ir.Value:
    """A known pointer as an operand."""
    match pointer.target:
        case Variable() as variable:
            return ir.Address(variable.name, pointer.offset)
        case Cell() as cell:
            variable = materialize(analysis, cell, span)
            return ir.Address(variable.name, pointer.offset + path_offset(cell.type, pointer.path))
        case FunctionValue() as function:
            return ir.FunctionName(analysis.name_function(function, span))
        case None:
            return ir.Constant(pointer.offset & 0xFFFF, ir.Type.PTR)


def word_address(analysis: Analysis, kind: Pointer, pointer: PointerValue, span: Span) -> int:
    """The word that a known pointer points to."""
    return pointer_bits(analysis, kind, pointer, span) // WORD_BYTES


def pointer_bits(analysis: Analysis, kind: Pointer, pointer: PointerValue, span: Span) -> int:
    """A known pointer as a number: its byte address, or the number of a function."""
    match address(analysis, kind, pointer, span):
        case ir.Address(symbol, offset):
            start: int = analysis.ask(_AddressOf(symbol))
            return (WORD_BYTES * start + offset) & 0xFFFF
        case ir.FunctionName(name):
            number: int = analysis.ask(_NumberOf(name))
            return number
        case ir.Constant(value) if isinstance(value, int):
            return value
        case other:
            raise AssertionError(other)


def path_offset(kind: Type, path: Sequence[int]) -> int:
    """Bytes from the first of a value to the part that `path` leads to."""
    offset = 0
    for index in path:
        match kind:
            case Array(element=element):
                offset += index * types.num_bytes(element)
                kind = element
            case Struct(fields=fields):
                offset += WORD_BYTES * types.field_offset(kind, index)
                kind = fields[index].type
            case _:
                offset += index * types.num_bytes(kind)
    return offset


def lower(analysis: Analysis, operand: Operand, span: Span) -> ir.Value:
    """A loaded scalar, pointer or descriptor as an operand of an instruction."""
    match operand:
        case Runtime(value=value):
            return value
        case MemoryLvalue(address=start):
            return start
        case Comptime(Pointer() as kind, PointerValue() as pointer):
            return address(analysis, kind, pointer, span)
        case Comptime(kind, value):
            return _lower_scalar(analysis, kind, value, span)
        case _:
            raise AssertionError(operand)


def _lower_scalar(analysis: Analysis, kind: Type, value: Value, span: Span) -> ir.Value:
    if kind in types.DSDS:
        words = words_of(analysis, kind, value, span)
        return ir.Constant(tuple(words), types.ir_type(kind))
    if isinstance(kind, Pointer):
        return ir.Constant(0, types.ir_type(kind))
    if types.is_comptime_only(kind) and kind not in types.DSRS and kind != types.FIFO:
        analysis.fail(
            "comptime-only",
            f"a value of type '{kind}' must be comptime-known",
            span,
            help=_remedy(kind),
        )
    if value is UNDEFINED:
        return ir.Constant(0, types.ir_type(kind))
    if kind in types.FLOATS:
        return ir.Constant(bits_of(kind, value), types.ir_type(kind))
    if isinstance(value, Lanes) and not value.group.decides(value.numbers):
        number = analysis.unrecorded().parameter(value, types.ir_type(kind))
        return analysis.emit("parameter", type=types.ir_type(kind), names=(str(number),))
    assert isinstance(value, int), (kind, value)
    return ir.Constant(int(value), types.ir_type(kind))


def _remedy(kind: Type) -> str:
    if kind in (types.COMPTIME_INT, types.COMPTIME_FLOAT):
        example = "i16" if kind == types.COMPTIME_INT else "f32"
        return f"give it a width, for instance @as({example}, value)"
    if isinstance(kind, Function):
        return "take the function's address with '&'"
    return ""


def lvalue_of_pointer(kind: Pointer, pointer: PointerValue) -> CellLvalue | MemoryLvalue:
    """What a known pointer points to."""
    match pointer.target:
        case Cell() as cell:
            return CellLvalue(kind.element, cell, pointer.path, kind.is_const or cell.is_const)
        case Variable() as variable:
            where: ir.Value = ir.Address(variable.name, pointer.offset)
        case _:
            where = ir.Constant(pointer.offset & 0xFFFF, ir.Type.PTR)
    return MemoryLvalue(kind.element, where, kind.is_const)
