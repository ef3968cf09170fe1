"""Type expressions: arrays, pointers, functions, structs, enumerations."""

from typing import Final

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.sema import Sema, evaluates
from openwafer.sdk.csl.types import Array, Enum, Field, Function, Int, Pointer, Struct, Type
from openwafer.sdk.csl.values import Comptime, Operand
from openwafer.source import Span

_MAX_CELLS: Final = 1 << 22
"""Far more than a PE's memory holds; at compile time arrays may be larger than that."""


def origin_of(span: Span) -> str:
    """Names the place of a definition, which tells named types apart."""
    return f"{span.source.name}:{span.start}"


@evaluates(ast.ArrayType)
def _array(sema: Sema, node: ast.ArrayType, _expected: Type | None) -> Operand:
    dims = tuple(sema.integer(dim, "array size") for dim in node.dims)
    for dim, written in zip(dims, node.dims, strict=True):
        if dim < 0:
            sema.fail("negative-size", f"array size {dim} is negative", written.span)
    element = sema.type_of_node(node.element)
    if isinstance(element, Array):
        sema.fail(
            "array-of-arrays",
            "the element type of an array must not be an array",
            node.span,
            help=f"write [{', '.join(map(str, (*dims, *element.dims)))}]{element.element}",
        )
    kind = Array(dims, element)
    if num_cells(kind) > _MAX_CELLS:
        sema.fail("array-size", f"'{kind}' has more than {_MAX_CELLS} elements", node.span)
    return Comptime(types.TYPE, kind)


def num_cells(kind: Type) -> int:
    """How many values a value consists of."""
    match kind:
        case Array(element=element):
            return kind.num_elements * num_cells(element)
        case Struct(fields=fields):
            return sum(num_cells(field.type) for field in fields)
        case _:
            return 1


@evaluates(ast.PointerType)
def _pointer(sema: Sema, node: ast.PointerType, _expected: Type | None) -> Operand:
    element = sema.type_of_node(node.element)
    if types.is_comptime_only(element) and not isinstance(element, Function):
        sema.fail("comptime-pointer", f"pointers to type '{element}' are not allowed", node.span)
    return Comptime(types.TYPE, Pointer(element, node.is_const, node.is_many))


@evaluates(ast.FunctionType)
def _function(sema: Sema, node: ast.FunctionType, _expected: Type | None) -> Operand:
    parameters = tuple(
        None if isinstance(p, ast.AnyType) else sema.type_of_node(p) for p in node.parameters
    )
    return Comptime(types.TYPE, Function(parameters, sema.type_of_node(node.result)))


@evaluates(ast.AggregateType)
def _aggregate(sema: Sema, node: ast.AggregateType, _expected: Type | None) -> Operand:
    fields: list[Field] = []
    for item in node.fields:
        if any(field.name == item.name.text for field in fields):
            sema.fail("duplicate-field", f"field '{item.name.text}' is declared twice", item.span)
        kind = sema.type_of_node(item.type)
        fields.append(Field(item.name.text, kind))
    is_packed = node.layout is ast.AggregateLayout.PACKED
    struct = Struct(
        tuple(fields), origin_of(node.span), is_union=node.is_union, is_packed=is_packed
    )
    if is_packed:
        _check_packed(sema, struct, node)
    return Comptime(types.TYPE, struct)


def _check_packed(sema: Sema, struct: Struct, node: ast.AggregateType) -> None:
    widths: list[int] = []
    for field, item in zip(struct.fields, node.fields, strict=True):
        try:
            widths.append(types.num_bits(field.type))
        except KeyError:
            sema.fail(
                "packed",
                f"type '{field.type}' is no run of bits that a packed struct could hold",
                item.span,
                help="fields are integers, floats, bool, enums, pointers, and packed structs",
            )
    if struct.is_union and len(set(widths)) > 1:
        pairs = zip(struct.fields, widths, strict=True)
        found = ", ".join(f"'{field.name}' has {width}" for field, width in pairs)
        sema.fail("packed", f"fields of a packed union have equally many bits: {found}", node.span)
    total = types.num_bits(struct)
    if total > types.RUNTIME_BITS:
        sema.fail(
            "packed",
            f"a packed struct has at most {types.RUNTIME_BITS} bits, this one has {total}",
            node.span,
        )


@evaluates(ast.EnumType)
def _enum(sema: Sema, node: ast.EnumType, _expected: Type | None) -> Operand:
    tag = types.U16 if node.tag is None else sema.type_of_node(node.tag)
    if not isinstance(tag, Int):
        sema.fail("enum-tag", f"an enum's type is a fixed-width integer, got: '{tag}'", node.span)
    given: dict[str, int] = {}
    for element in node.elements:
        if element.value is not None:
            given[element.name.text] = sema.integer(element.value, "enum value")
    elements: list[tuple[str, int]] = []
    free = 0
    for element in node.elements:
        name = element.name.text
        while name not in given and free in given.values():
            free += 1
        value = given.get(name, free)
        free += name not in given
        _check_element(sema, element, value, tag, elements)
        elements.append((name, value))
    return Comptime(types.TYPE, Enum(tag, tuple(elements), origin_of(node.span)))


def _check_element(
    sema: Sema, element: ast.EnumElement, value: int, tag: Int, before: list[tuple[str, int]]
) -> None:
    name = element.name.text
    if not tag.holds(value):
        sema.fail("out-of-range", f"value {value} does not fit in type '{tag}'", element.span)
    for other, taken in before:
        if other == name:
            sema.fail("duplicate-element", f"element '{name}' is declared twice", element.span)
        if taken == value:
            sema.fail(
                "duplicate-value",
                f"elements '{other}' and '{name}' have the same value {value}",
                element.span,
            )
