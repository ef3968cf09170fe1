"""Literals, names, and initializers of structs and arrays."""

from dataclasses import replace

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.coercion import build_struct, gathered
from openwafer.sdk.csl.sema.sema import Sema, evaluates
from openwafer.sdk.csl.types import Array, Field, Struct, Type
from openwafer.sdk.csl.values import Comptime, Loaded, Operand


@evaluates(ast.IntLiteral)
def _int(_sema: Sema, node: ast.IntLiteral, _expected: Type | None) -> Operand:
    return Comptime(types.COMPTIME_INT, node.value)


@evaluates(ast.CharLiteral)
def _char(_sema: Sema, node: ast.CharLiteral, _expected: Type | None) -> Operand:
    return Comptime(types.COMPTIME_INT, node.value)


@evaluates(ast.FloatLiteral)
def _float(_sema: Sema, node: ast.FloatLiteral, _expected: Type | None) -> Operand:
    return Comptime(types.COMPTIME_FLOAT, node.value)


@evaluates(ast.StringLiteral)
def _string(_sema: Sema, node: ast.StringLiteral, _expected: Type | None) -> Operand:
    return Comptime(types.COMPTIME_STRING, node.value)


@evaluates(ast.BoolLiteral)
def _bool(_sema: Sema, node: ast.BoolLiteral, _expected: Type | None) -> Operand:
    return Comptime(types.BOOL, node.value)


@evaluates(ast.EnumLiteral)
def _enum(_sema: Sema, node: ast.EnumLiteral, _expected: Type | None) -> Operand:
    return Comptime(types.ENUM_LITERAL, node.name.text)


@evaluates(ast.Identifier)
def _identifier(sema: Sema, node: ast.Identifier, _expected: Type | None) -> Operand:
    return sema.find(node.name, node.span)


@evaluates(ast.StructInit)
def _struct(sema: Sema, node: ast.StructInit, expected: Type | None) -> Operand:
    target = expected if node.type is None else sema.type_of_node(node.type)
    spans = {init.name.text: init.span for init in node.fields}
    if len(spans) < len(node.fields):
        sema.fail("duplicate-field", "a field is given twice", node.span)
    if isinstance(target, Struct) and target.origin:
        given: dict[str, Operand] = {}
        for init in node.fields:
            index = target.index_of(init.name.text)
            wanted = None if index is None else target.fields[index].type
            given[init.name.text] = sema.expression(init.value, wanted)
        return build_struct(sema, target, given, spans, node.span)
    if node.type is not None:
        sema.fail("not-a-struct", f"'{target}' has no fields to initialize", node.type.span)
    values = [sema.expression(init.value) for init in node.fields]
    fields = zip(node.fields, values, strict=True)
    kind = Struct(tuple(Field(init.name.text, value.type) for init, value in fields))
    return gathered(kind, values)


@evaluates(ast.ArrayInit)
def _array(sema: Sema, node: ast.ArrayInit, expected: Type | None) -> Operand:
    target = expected if node.type is None else _initialized_type(sema, node)
    if isinstance(target, Array):
        return _elements(sema, node, target)
    if isinstance(target, Struct) and target.origin and not node.elements:
        return build_struct(sema, target, {}, {}, node.span)
    if node.type is not None:
        sema.fail("not-an-array", f"'{target}' has no elements to initialize", node.type.span)
    values = [sema.expression(element) for element in node.elements]
    kind = Struct(tuple(Field(str(i), value.type) for i, value in enumerate(values)), is_tuple=True)
    return gathered(kind, values)


def _initialized_type(sema: Sema, node: ast.ArrayInit) -> Type:
    """Type before the braces; a dim written `_` is counted."""
    match node.type:
        case ast.ArrayType(dims=(ast.Identifier(name="_"),), element=element):
            return Array((len(node.elements),), sema.type_of_node(element))
        case written:
            assert written is not None
            return sema.type_of_node(written)


def _elements(sema: Sema, node: ast.ArrayInit, target: Array) -> Loaded:
    if len(node.elements) != target.num_elements:
        sema.fail(
            "wrong-count",
            f"array of type '{target}' takes {target.num_elements} elements, "
            f"{len(node.elements)} provided",
            node.span,
        )
    values = [sema.typed(item, target.element) for item in node.elements]
    if target.element == types.COMPTIME_STRUCT and len({value.type for value in values}) == 1:
        # Elements keep their fields.
        target = replace(target, element=values[0].type)
    return gathered(target, values)


@evaluates(ast.Comptime)
def _comptime(sema: Sema, node: ast.Comptime, expected: Type | None) -> Operand:
    return sema.comptime_value(node.operand) if sema.is_comptime else _forced(sema, node, expected)


def _forced(sema: Sema, node: ast.Comptime, expected: Type | None) -> Operand:
    with sema.at_comptime():
        return sema.known(sema.expression(node.operand, expected), node.operand.span)


@evaluates(ast.Asm)
def _asm(sema: Sema, node: ast.Asm, _expected: Type | None) -> Operand:
    sema.fail(
        "assembly",
        "inline assembly is not supported",
        node.span,
        help="write it in CSL: there is no machine code here that it could be part of",
    )
