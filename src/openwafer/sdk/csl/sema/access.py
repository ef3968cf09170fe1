"""The way into values: fields, elements, pointers."""

from dataclasses import replace

from openwafer.diagnostics import did_you_mean
from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema import lvalues
from openwafer.sdk.csl.sema.coercion import enum_element, gathered
from openwafer.sdk.csl.sema.lowering import lvalue_of_pointer
from openwafer.sdk.csl.sema.sema import Sema, evaluates
from openwafer.sdk.csl.types import Array, Enum, Int, Pointer, Struct, Type
from openwafer.sdk.csl.values import (
    ACCESS_FIELDS,
    Affine,
    Cell,
    CellLvalue,
    Comptime,
    MemoryLvalue,
    Module,
    Operand,
    PointerValue,
    Runtime,
    SlotLvalue,
    known_numbers,
    relative_strides,
    thaw,
)
from openwafer.sdk.ir import function as ir
from openwafer.source import Span

_INDEX_TYPES = (ir.Type.I16, ir.Type.U16)


@evaluates(ast.Member)
def _member(sema: Sema, node: ast.Member, _expected: Type | None) -> Operand:
    owner = sema.lvalue(node.operand)
    return member(sema, owner, node.name.text, node.span)


def member(sema: Sema, owner: Operand, name: str, span: Span) -> Operand:
    """`owner.name`: a field's lvalue, a module's symbol, an element of an enumeration."""
    if isinstance(owner.type, Pointer) and isinstance(owner.type.element, Struct):
        owner = dereference(sema, owner, span)
    if isinstance(owner, CellLvalue) and owner.type == types.COMPTIME_STRUCT:
        owner = replace(owner, type=owner.cell.type)
    if isinstance(owner.type, Struct):
        return _field(sema, owner, owner.type, name, span)
    loaded = sema.load(owner, span)
    match loaded:
        case Comptime(_, Module() as module):
            return _symbol(sema, module, name, span)
        case Comptime(_, Enum() as kind):
            return enum_element(sema, kind, name, span)
        case Comptime(_, Affine() as access) if name in ACCESS_FIELDS:
            return _field_of_access(sema, access, name, span)
        case _:
            return sema.fail("no-member", f"type '{loaded.type}' has no member '{name}'", span)


def _field_of_access(sema: Sema, access: Affine, name: str, span: Span) -> Operand:
    """A tensor access is the struct that `@get_dsd` takes the fields of one by one."""
    match name:
        case "base_address":
            return sema.address_of(access.array, span)
        case "offset":
            return sema.coerce(access.offset, types.I16, span)
        case "stride":
            element, numbers = types.I16, relative_strides(access)
        case _:
            element, numbers = types.U16, known_numbers(access.extents)
    if len(numbers) == 1 and element == types.I16:
        element = types.I8
    items = [sema.coerce(Comptime(types.COMPTIME_INT, n), element, span) for n in numbers]
    fields = tuple(types.Field(str(i), element) for i in range(len(items)))
    return gathered(Struct(fields, is_tuple=True), items)


def _field(sema: Sema, owner: Operand, kind: Struct, name: str, span: Span) -> Operand:
    index = kind.index_of(name)
    if index is None or kind.is_tuple:
        names = [field.name for field in kind.fields]
        sema.fail(
            "no-field",
            f"struct '{kind}' has no field '{name}'",
            span,
            help=did_you_mean(name, names) if names and not kind.is_tuple else "",
        )
    return lvalues.part(sema, owner, index)


def _symbol(sema: Sema, module: Module, name: str, span: Span) -> Operand:
    if name not in module.declarations:
        sema.fail(
            "no-symbol",
            f"module '{module}' has no symbol '{name}'",
            span,
            help=did_you_mean(name, module.declarations),
        )
    return sema.global_of(module, name, span)


@evaluates(ast.Dereference)
def _dereference(sema: Sema, node: ast.Dereference, _expected: Type | None) -> Operand:
    operand = sema.expression(node.operand)
    if isinstance(operand.type, Pointer) and operand.type.is_many:
        sema.fail(
            "many-dereference",
            f"cannot dereference '{operand.type}'",
            node.span,
            notes=("it points to an unknown number of elements",),
            help="use an index: pointer[0]",
        )
    return dereference(sema, operand, node.span)


def dereference(sema: Sema, operand: Operand, span: Span) -> Operand:
    """What a pointer points to."""
    pointer = sema.load(operand, span)
    match pointer:
        case Comptime(Pointer() as kind, PointerValue() as value):
            if isinstance(kind.element, types.Function):
                return Comptime(kind.element, value.target)
            return lvalue_of_pointer(kind, value)
        case Runtime(Pointer() as kind, address):
            return MemoryLvalue(kind.element, address, kind.is_const)
        case _:
            return sema.fail("not-a-pointer", f"cannot dereference type '{pointer.type}'", span)


@evaluates(ast.AddressOf)
def _address(sema: Sema, node: ast.AddressOf, _expected: Type | None) -> Operand:
    operand = sema.lvalue(node.operand)
    if isinstance(operand, SlotLvalue):
        sema.fail("no-address", f"'{node.operand.span.text}' has no address", node.span)
    if isinstance(operand, CellLvalue) and types.is_comptime_only(operand.type):
        operand = _function_or_refused(sema, operand, node)
    return sema.address_of(operand, node.operand.span)


def _function_or_refused(sema: Sema, operand: CellLvalue, node: ast.AddressOf) -> Operand:
    if isinstance(operand.type, types.Function):
        return sema.load(operand, node.span)
    if sema.is_comptime:
        return operand
    return sema.fail(
        "comptime-pointer", f"pointers to type '{operand.type}' are not allowed", node.span
    )


@evaluates(ast.Index)
def _index(sema: Sema, node: ast.Index, _expected: Type | None) -> Operand:
    owner = sema.lvalue(node.operand)
    if isinstance(owner.type, Pointer):
        owner = _pointed(sema, owner, node)
    kind = owner.type
    if isinstance(kind, Struct) and kind.is_tuple:
        return _tuple_element(sema, owner, kind, node)
    if not isinstance(kind, Array):
        sema.fail("not-indexable", f"cannot index a value of type '{kind}'", node.span)
    if len(node.indices) != len(kind.dims):
        sema.fail(
            "wrong-rank",
            f"array of type '{kind}' takes {len(kind.dims)} indices, {len(node.indices)} provided",
            node.span,
        )
    indices = [_index_value(sema, index) for index in node.indices]
    for index, dim, written in zip(indices, kind.dims, node.indices, strict=True):
        _check_index(sema, kind, index, dim, written.span)
    known = [i.value for i in indices if isinstance(i, Comptime) and isinstance(i.value, int)]
    if len(known) == len(indices):
        return _known_element(sema, owner, kind, known)
    return _element(sema, owner, kind, indices, node)


def _index_value(sema: Sema, node: ast.Expression) -> Comptime | Runtime:
    index = sema.expression(node)
    if isinstance(index.type, Enum) and isinstance(index, Comptime):
        index = Comptime(index.type.tag, index.value)
    if not types.is_int(index.type) or not isinstance(index, Comptime | Runtime):
        sema.fail("not-integer", f"an index is an integer, got: '{index.type}'", node.span)
    return index


def _known_element(sema: Sema, owner: Operand, kind: Array, indices: list[int]) -> Operand:
    flat = 0
    for index, dim in zip(indices, kind.dims, strict=True):
        flat = flat * dim + index
    return lvalues.part(sema, owner, flat)


def _check_index(sema: Sema, kind: Array, index: Comptime | Runtime, dim: int, span: Span) -> None:
    """Refuse a known index outside of its dim, whatever the others are."""
    value = index.value
    if isinstance(index, Comptime) and isinstance(value, int) and not 0 <= value < dim:
        sema.fail(
            "out-of-bounds",
            f"index {value} is out of bounds of type '{kind}'",
            span,
            notes=(f"the index goes from 0 to {dim - 1}",),
        )


def _element(
    sema: Sema,
    owner: Operand,
    kind: Array,
    indices: list[Comptime | Runtime],
    node: ast.Index,
) -> Operand:
    if sema.is_comptime:
        sema.fail("not-comptime", f"'{node.span.text}' is not comptime-known", node.span)
    memory = lvalues.in_memory(sema, owner, node.operand.span)
    flat: ir.Value | None = None
    for index, dim, written in zip(indices, kind.dims, node.indices, strict=True):
        value = index_word(sema, index, written.span)
        if flat is not None:
            scaled = sema.emit("mul", flat, ir.Constant(dim, flat.type), type=flat.type)
            value = cast(sema, value, flat.type)
            value = sema.emit("add", scaled, value, type=flat.type)
        flat = value
    assert flat is not None
    return lvalues.indexed(sema, memory, flat, kind.element)


def index_word(sema: Sema, index: Comptime | Runtime, span: Span) -> ir.Value:
    """An index as a 16-bit integer."""
    if index.type == types.COMPTIME_INT:
        index_type = types.I16 if isinstance(index.value, int) and index.value < 0 else types.U16
        return sema.lower(sema.coerce(index, index_type, span), span)
    value = sema.lower(index, span)
    if value.type in _INDEX_TYPES:
        return value
    assert isinstance(index.type, Int)
    return cast(sema, value, ir.Type.I16 if index.type.is_signed else ir.Type.U16)


def cast(sema: Sema, value: ir.Value, kind: ir.Type) -> ir.Value:
    """A number in another IR type."""
    return value if value.type is kind else sema.emit("cast", value, type=kind)


def _tuple_element(sema: Sema, owner: Operand, kind: Struct, node: ast.Index) -> Operand:
    index = sema.integer(node.indices[0], "a tuple's index")
    if not 0 <= index < len(kind.fields):
        sema.fail(
            "out-of-bounds",
            f"index {index} is out of bounds of a tuple of {len(kind.fields)} elements",
            node.indices[0].span,
        )
    return lvalues.part(sema, owner, index)


def _pointed(sema: Sema, owner: Operand, node: ast.Index) -> Operand:
    """What an indexed pointer points to: for `[*]T` an array that begins at its element."""
    pointer = sema.load(owner, node.operand.span)
    kind = pointer.type
    assert isinstance(kind, Pointer)
    if not kind.is_many:
        return dereference(sema, pointer, node.span)
    whole = Array((_UNBOUNDED,), kind.element)
    match pointer:
        case Comptime(_, PointerValue(Cell() as cell, path)) if path:
            return _cell_window(cell, path, kind)
        case Comptime(_, PointerValue() as value):
            return lvalue_of_pointer(Pointer(whole, kind.is_const), value)
        case Runtime(_, address):
            return MemoryLvalue(whole, address, kind.is_const)
        case _:
            raise AssertionError(pointer)


_UNBOUNDED = 1 << 16


def _cell_window(cell: Cell, path: tuple[int, ...], kind: Pointer) -> Operand:
    """The elements from the last index of `path` on; a pointer moves no further inside cells."""
    owner: Type = cell.type
    for index in path[:-1]:
        owner = lvalues.element_type(owner, index)
    return CellLvalue(owner, cell, path[:-1], kind.is_const or cell.is_const)


def temporary(kind: Type, value: object) -> CellLvalue:
    """A known value as a constant with an address."""
    return CellLvalue(kind, Cell("constant", kind, thaw(value), is_const=True), (), is_const=True)
