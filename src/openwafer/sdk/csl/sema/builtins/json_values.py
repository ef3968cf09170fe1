"""`@import_comptime_value`: a JSON file as a known value."""

import json

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.parser import parse
from openwafer.sdk.csl.sema.coercion import round_float
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.types import Array, Field, Int, Struct, Type
from openwafer.sdk.csl.values import Comptime, Operand
from openwafer.source import SourceText, Span


@builtin("import_comptime_value")
def _import_comptime_value(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    written, name = call.arguments
    kind = sema.type_of_node(written)
    path = sema.imports.find(sema.string(name), sema.module.path, name.span)
    try:
        content = json.loads(sema.imports.content(path) or b"")
    except ValueError as error:
        sema.fail("json", f"'{path.name}' is not JSON: {error}", name.span)
    return _value(sema, content, kind, name.span)


def _value(sema: Sema, content: object, kind: Type, span: Span) -> Comptime:
    match content, kind:
        case bool(), types.BOOL:
            return Comptime(kind, content)
        case str(), types.COMPTIME_STRING:
            return Comptime(kind, content.encode())
        case int(), Int() if not isinstance(content, bool):
            return sema.known(sema.coerce(Comptime(types.COMPTIME_INT, content), kind, span), span)
        case int(), types.COMPTIME_INT:
            return Comptime(kind, content)
        case ((int() | float()), _) if types.is_float(kind):
            return Comptime(kind, round_float(kind, float(content)))
        case list(), Array() if len(content) == kind.num_elements:
            items = [_value(sema, item, kind.element, span) for item in content]
            return Comptime(kind, tuple(item.value for item in items))
        case dict(), types.COMPTIME_STRUCT:
            return _struct(sema, content, span)
        case dict(), Struct():
            items = [_value(sema, content.get(f.name), f.type, span) for f in kind.fields]
            return Comptime(kind, tuple(item.value for item in items))
        case _:
            return sema.fail(
                "json", f"expected type '{kind}', got: {json.dumps(content)[:60]}", span
            )


def _struct(sema: Sema, content: dict[str, object], span: Span) -> Comptime:
    """Fields spelled `name:type` have that type; others the type of the JSON value."""
    fields: list[Field] = []
    values: list[object] = []
    for key, item in content.items():
        name, _, written = key.partition(":")
        value = _value(sema, item, _field_type(sema, written.strip(), item, span), span)
        fields.append(Field(name.strip(), value.type))
        values.append(value.value)
    return Comptime(Struct(tuple(fields)), tuple(values))


def _field_type(sema: Sema, written: str, item: object, span: Span) -> Type:
    if written:
        return _written_type(sema, written, span)
    match item:
        case bool():
            return types.BOOL
        case int():
            return types.COMPTIME_INT
        case float():
            return types.COMPTIME_FLOAT
        case str():
            return types.COMPTIME_STRING
        case dict():
            return types.COMPTIME_STRUCT
        case _:
            return sema.fail("json", "a list in a struct needs its type in the name", span)


def _written_type(sema: Sema, written: str, span: Span) -> Type:
    tree, findings = parse(SourceText("field type", f"const it = {written};"))
    node = tree.declarations[0] if tree.declarations and not findings else None
    if not isinstance(node, ast.Variable) or node.initializer is None:
        sema.fail("json", f"'{written}' is no type", span)
    return sema.type_of_node(node.initializer)
