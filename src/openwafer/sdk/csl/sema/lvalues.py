"""Loads, stores, and the way to the parts of arrays and structs."""

from collections.abc import Sequence
from typing import NoReturn

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.csl import types
from openwafer.sdk.csl.sema import registers
from openwafer.sdk.csl.sema.analysis import Analysis
from openwafer.sdk.csl.sema.lowering import (
    lower,
    materialize,
    packed_bits,
    path_offset,
    words_of,
)
from openwafer.sdk.csl.sema.packed import load_field, store_field, unpacked
from openwafer.sdk.csl.symbolic import concrete
from openwafer.sdk.csl.types import Array, Pointer, Struct, Type
from openwafer.sdk.csl.values import (
    UNDEFINED,
    Aggregate,
    BitsLvalue,
    Cell,
    CellLvalue,
    Comptime,
    FunctionValue,
    Loaded,
    MemoryLvalue,
    Operand,
    PointerValue,
    Runtime,
    SlotLvalue,
    Variable,
    freeze,
    thaw,
)
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.descriptor import (
    DSD_WORDS,
    WORD_BASE,
    WORD_ELEMENT,
    WORD_EXTENT,
    WORD_KIND,
    WORD_STRIDE,
    DsdKind,
)
from openwafer.source import Span


def load(analysis: Analysis, operand: Operand, span: Span) -> Loaded:
    """The value of an lvalue; run-time arrays and structs stay in memory."""
    if isinstance(operand, Comptime):
        return operand
    match operand:
        case CellLvalue(kind, cell, path):
            known = cell.type if kind == types.COMPTIME_STRUCT and not path else kind
            noted = analysis.path
            content = _content(cell, path) if noted is None else noted.content(cell, path)
            if content is UNDEFINED and path:
                analysis.lose_path()
                return Comptime(known, _other_variant(analysis, cell, path, span))
            return Comptime(known, freeze(content))
        case SlotLvalue(kind, slot):
            if analysis.is_comptime:
                _refuse_runtime(analysis, span)
            value = analysis.emit("get", type=types.ir_type(kind), names=(slot,))
            return Runtime(kind, value)
        case MemoryLvalue(kind, address) if not types.is_aggregate(kind):
            if analysis.is_comptime:
                _refuse_runtime(analysis, span)
            return Runtime(kind, _load_word(analysis, kind, address))
        case BitsLvalue(kind):
            return _load_bits(analysis, operand, span)
        case _:
            return operand


def _load_bits(analysis: Analysis, lvalue: BitsLvalue, span: Span) -> Loaded:
    kind = lvalue.type
    if isinstance(kind, Struct):
        parts = (load(analysis, part(analysis, lvalue, i), span) for i in range(len(kind.fields)))
        return Aggregate(kind, tuple(parts))
    if analysis.is_comptime:
        _refuse_runtime(analysis, span)
    return Runtime(kind, load_field(analysis, lvalue))


def _other_variant(analysis: Analysis, cell: Cell, path: Sequence[int], span: Span) -> object:
    """A part of a packed union by the bits of the field that was set; undefined elsewhere."""
    owner, value = cell.type, freeze(cell.content)
    for index in path:
        if not isinstance(value, tuple):
            return UNDEFINED
        kind, inner = element_type(owner, index), value[index]
        is_union = isinstance(owner, Struct) and owner.is_packed and owner.is_union
        if inner is UNDEFINED and is_union and any(item is not UNDEFINED for item in value):
            inner = unpacked(kind, packed_bits(analysis, owner, value, span))
        owner, value = kind, inner
    return value


def _refuse_runtime(analysis: Analysis, span: Span) -> None:
    analysis.fail(
        "not-comptime",
        f"'{span.text}' is not comptime-known",
        span,
        help="use a const with a comptime-known initializer, or move this to run time",
    )


def _load_word(analysis: Analysis, kind: Type, address: ir.Value) -> ir.Value:
    if analysis.builder.is_from_integer(address):
        return registers.load_either(analysis, kind, address)
    if registers.is_one(address):
        return registers.load(analysis, kind, registers.number_of(address))
    return analysis.emit("load", address, type=types.ir_type(kind))


def _content(cell: Cell, path: Sequence[int]) -> object:
    content = concrete(cell.content)
    for index in path:
        if content is UNDEFINED:
            return UNDEFINED
        assert isinstance(content, list)
        content = concrete(content[index])
    return content


def store(analysis: Analysis, lvalue: Operand, operand: Operand, span: Span) -> None:
    """Assign a value of the lvalue's own type."""
    value = load(analysis, operand, span)
    match lvalue:
        case CellLvalue() as cell:
            _store_cell(analysis, cell, value, span)
        case SlotLvalue(slot=slot):
            analysis.emit("set", lower(analysis, value, span), names=(slot,))
        case MemoryLvalue(kind, address) if types.is_aggregate(kind):
            _store_aggregate(analysis, kind, address, value, span)
        case MemoryLvalue(kind, address):
            _store_word(analysis, address, lower(analysis, value, span))
        case BitsLvalue(Struct(fields=fields) as kind):
            for index in range(len(fields)):
                item = part(analysis, value, index)
                if not isinstance(item, Comptime) or item.value is not UNDEFINED:
                    store(analysis, part(analysis, lvalue, index), item, span)
        case BitsLvalue():
            store_field(analysis, lvalue, lower(analysis, value, span))
        case _:
            analysis.fail("not-a-place", f"cannot assign to '{span.text}'", span)


def _store_word(analysis: Analysis, address: ir.Value, value: ir.Value) -> None:
    if analysis.builder.is_from_integer(address):
        registers.store_either(analysis, address, value)
    elif registers.is_one(address):
        registers.store(analysis, registers.number_of(address), value)
    else:
        analysis.emit("store", address, value)


def _store_cell(analysis: Analysis, lvalue: CellLvalue, value: Operand, span: Span) -> None:
    if not isinstance(value, Comptime):
        analysis.fail(
            "not-comptime",
            f"the comptime variable '{lvalue.cell.name}' cannot take a run-time value",
            span,
        )
    if analysis.context.runtime_depth > lvalue.cell.runtime_depth:
        analysis.fail(
            "comptime-store",
            f"the comptime variable '{lvalue.cell.name}' is assigned under run-time control flow",
            span,
            help="make the loop 'inline', or the condition comptime-known",
        )
    if analysis.num_lane_loops > lvalue.cell.num_lane_loops:
        analysis.in_order()
    if analysis.path is not None and analysis.path.store(lvalue, value):
        return
    if not lvalue.path:
        lvalue.cell.type = value.type
        lvalue.cell.content = thaw(value.value)
        return
    owner = _content(lvalue.cell, lvalue.path[:-1])
    if owner is UNDEFINED:
        analysis.fail("undefined", f"'{lvalue.cell.name}' has no value yet", span)
    assert isinstance(owner, list)
    owner[lvalue.path[-1]] = thaw(value.value)


def _store_aggregate(
    analysis: Analysis, kind: Type, address: ir.Value, value: Operand, span: Span
) -> None:
    match value:
        case Comptime(_, known) if known is UNDEFINED:
            return
        case Comptime(_, known):
            _store_known(analysis, kind, address, Comptime(kind, known), span)
        case Aggregate(_, elements):
            whole = MemoryLvalue(kind, address, is_const=False)
            for index, element in enumerate(elements):
                if not isinstance(element, Comptime) or element.value is not UNDEFINED:
                    store(analysis, part(analysis, whole, index), element, span)
        case MemoryLvalue(address=source):
            count = ir.Constant(types.num_bytes(kind), ir.Type.U16)
            analysis.emit("copy", address, source, count)
        case _:
            raise AssertionError(value)


def _store_known(
    analysis: Analysis, kind: Type, address: ir.Value, known: Comptime, span: Span
) -> None:
    words = words_of(analysis, kind, known.value, span)
    # An array of bytes may begin or end in the middle of a word.
    are_words = not (isinstance(kind, Array) and types.is_byte(kind.element))
    if are_words and len(words) <= 4:
        for index, word in enumerate(words):
            where = moved(analysis, address, WORD_BYTES * index)
            analysis.emit("store", where, ir.Constant(word, ir.Type.U16))
        return
    if are_words and len(set(words)) == 1:
        _fill(analysis, address, words[0], len(words))
        return
    variable = analysis.new_constant(f"{analysis.module.prefix}constant", kind, words)
    count = ir.Constant(types.num_bytes(kind), ir.Type.U16)
    analysis.emit("copy", address, ir.Address(variable.name), count)


def _fill(analysis: Analysis, address: ir.Value, word: int, count: int) -> None:
    """Set words of memory to one value."""
    shape = [0] * DSD_WORDS
    shape[WORD_KIND], shape[WORD_STRIDE], shape[WORD_ELEMENT] = DsdKind.MEM1D, 1, 1
    shape[WORD_EXTENT] = count
    base = analysis.emit("word_of", address, type=ir.Type.U16)
    descriptor = analysis.emit(
        "dsd_set",
        ir.Constant(tuple(shape), ir.Type.DSD),
        base,
        type=ir.Type.DSD,
        names=(str(WORD_BASE),),
    )
    filler = ir.Constant(word, ir.Type.U16)
    analysis.emit("vector", descriptor, filler, type=ir.Type.BOOL, names=("mov16",))


def moved(analysis: Analysis, address: ir.Value, num_bytes: int) -> ir.Value:
    """An address plus bytes."""
    match address:
        case _ if num_bytes == 0:
            return address
        case ir.Address(symbol, offset):
            return ir.Address(symbol, offset + num_bytes)
        case ir.Constant(int() as value):
            return ir.Constant((value + num_bytes) & 0xFFFF, ir.Type.PTR)
        case _:
            step = ir.Constant(num_bytes, ir.Type.I16)
            return analysis.emit("byte_add", address, step, type=ir.Type.PTR)


def element_type(kind: Type, index: int) -> Type:
    """Type of an array's element or a struct's field."""
    match kind:
        case Array(element=element):
            return element
        case Struct(fields=fields):
            return fields[index].type
        case _:
            raise AssertionError(kind)


def part(analysis: Analysis, operand: Operand, index: int) -> Operand:
    """Element (flat) of an array or field of a struct; in range."""
    kind = element_type(operand.type, index)
    match operand:
        case Comptime(_, value):
            if value is UNDEFINED:
                return Comptime(kind, UNDEFINED)
            assert isinstance(value, tuple)
            return Comptime(kind, value[index])
        case MemoryLvalue(Struct(is_packed=True) as whole):
            return BitsLvalue(kind, operand, types.bit_offset(whole, index))
        case BitsLvalue(Struct() as whole, owner, shift):
            return BitsLvalue(kind, owner, shift + types.bit_offset(whole, index))
        case Aggregate(_, elements):
            return elements[index]
        case CellLvalue(_, cell, path, is_const):
            return CellLvalue(kind, cell, (*path, index), is_const)
        case MemoryLvalue(whole, address, is_const):
            where = moved(analysis, address, path_offset(whole, (index,)))
            return MemoryLvalue(kind, where, is_const)
        case _:
            raise AssertionError(operand)


def in_memory(analysis: Analysis, operand: Operand, span: Span) -> MemoryLvalue:
    """The same array or struct in the PE's memory."""
    match operand:
        case MemoryLvalue():
            return operand
        case CellLvalue(kind, cell, path, True):
            variable = materialize(analysis, cell, span)
            where = ir.Address(variable.name, path_offset(cell.type, path))
            return MemoryLvalue(kind, where, is_const=True)
        case CellLvalue(cell=cell):
            return analysis.fail(
                "comptime-var-address",
                f"the comptime variable '{cell.name}' has no address at run time",
                span,
                help="copy it into a const or var first",
            )
        case Comptime(kind, value):
            constant = Cell("constant", kind, thaw(value), is_const=True)
            return in_memory(analysis, CellLvalue(kind, constant, (), True), span)
        case _:
            memory = analysis.new_memory(operand.type)
            store(analysis, memory, operand, span)
            return memory


def indexed(
    analysis: Analysis, lvalue: MemoryLvalue, flat: ir.Value, element: Type
) -> MemoryLvalue:
    """Element of an array in memory at a run-time index, a 16-bit integer."""
    if types.is_byte(element):
        byte = analysis.emit("byte_add", lvalue.address, flat, type=ir.Type.PTR)
        return MemoryLvalue(element, byte, lvalue.is_const)
    words = types.num_words(element)
    step = flat
    if words != 1:
        step = analysis.emit("mul", flat, ir.Constant(words, flat.type), type=flat.type)
    where = analysis.emit("ptr_add", lvalue.address, step, type=ir.Type.PTR)
    return MemoryLvalue(element, where, lvalue.is_const)


def address_of(analysis: Analysis, operand: Operand, span: Span) -> Operand:
    """A pointer to an lvalue or function."""
    match operand:
        case BitsLvalue():
            return _refuse_address(analysis, span)
        case CellLvalue(kind, cell, path, is_const):
            _refuse_packed(analysis, cell, path, span)
            if not is_const and not analysis.is_comptime:
                in_memory(analysis, operand, span)
            return Comptime(Pointer(kind, is_const), PointerValue(cell, path))
        case MemoryLvalue(kind, ir.Address(symbol, offset), is_const):
            target = analysis.variable(symbol)
            return Comptime(Pointer(kind, is_const), PointerValue(target, (), offset))
        case MemoryLvalue(kind, ir.Constant(int() as value), is_const):
            return Comptime(Pointer(kind, is_const), PointerValue(None, (), value))
        case MemoryLvalue(kind, address, is_const):
            return Runtime(Pointer(kind, is_const), address)
        case Comptime(types.Function() as kind, FunctionValue() as function):
            return Comptime(Pointer(kind, is_const=True), PointerValue(function))
        case _:
            return analysis.fail(
                "no-address",
                f"'{span.text}' is a temporary value and has no address",
                span,
                help="store it in a variable and take the variable's address",
            )


def _refuse_address(analysis: Analysis, span: Span) -> NoReturn:
    analysis.fail(
        "packed-address",
        "address of packed struct field is unsupported",
        span,
        notes=(f"'{span.text}' may begin within a word",),
        help="copy it into a variable",
    )


def _refuse_packed(analysis: Analysis, cell: Cell, path: Sequence[int], span: Span) -> None:
    owner = cell.type
    for index in path:
        if isinstance(owner, Struct) and owner.is_packed:
            _refuse_address(analysis, span)
        owner = element_type(owner, index)


def variable_lvalue(variable: Variable, *, is_const: bool = False) -> MemoryLvalue:
    """The whole of a global."""
    return MemoryLvalue(variable.type, ir.Address(variable.name), is_const)
