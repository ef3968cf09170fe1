"""Builtins that ask about types, structs and the compilation."""

from dataclasses import replace

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.access import member
from openwafer.sdk.csl.sema.coercion import gathered
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.types import Field, Struct, Type
from openwafer.sdk.csl.values import Comptime, Loaded, Operand

_FIRST_GENERATION = "wse1"
"""Programs of the first releases ask for it; nothing is compiled for it."""


@builtin("type_of")
def _type_of(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    (argument,) = call.arguments
    return Comptime(types.TYPE, silent_type(sema, argument))


def silent_type(sema: Sema, node: ast.Expression) -> Type:
    """Type of an expression whose code is thrown away."""
    builder = sema.context.builder
    if builder is None:
        return sema.lvalue(node).type
    kept = builder.block
    aside = builder.new_block("type_of")
    builder.enter(aside)
    with sema.within(replace(sema.context, is_comptime=False)):
        kind = sema.lvalue(node).type
    builder.forget(aside)
    if kept is not None:
        builder.enter(kept)
    else:
        builder.leave()
    return kind


@builtin("is_same_type")
def _is_same_type(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    first, second = call.arguments
    return Comptime(types.BOOL, sema.type_of_node(first) == sema.type_of_node(second))


@builtin("is_arch")
def _is_arch(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    (argument,) = call.arguments
    name = sema.string(argument)
    if name not in list(Arch) and name != _FIRST_GENERATION:
        known = ", ".join(Arch)
        sema.fail("unknown-arch", f"unknown architecture '{name}'", argument.span, help=known)
    return Comptime(types.BOOL, name == sema.arch)


@builtin("is_comptime")
def _is_comptime(sema: Sema, _call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    return Comptime(types.BOOL, sema.is_comptime)


@builtin("fp16")
def _fp16(sema: Sema, _call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    return Comptime(types.TYPE, types.NAMED_TYPES[sema.options.fp16_format])


@builtin("has_field")
def _has_field(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    owner, name = call.arguments
    kind: Type = sema.lvalue(owner).type
    if kind == types.TYPE:
        kind = sema.type_of_node(owner)
    field = sema.string(name)
    has = isinstance(kind, Struct) and not kind.is_tuple and kind.index_of(field) is not None
    return Comptime(types.BOOL, has)


@builtin("field")
def _field(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    owner, name = call.arguments
    return member(sema, sema.lvalue(owner), sema.string(name), call.span)


@builtin("concat_structs")
def _concat_structs(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    first, second = call.arguments
    left, right = sema.expression(first), sema.expression(second)
    for operand, node in ((left, first), (right, second)):
        if not isinstance(operand.type, Struct):
            sema.fail("not-a-struct", f"expected a struct, got: '{operand.type}'", node.span)
    pairs = [*_parts(sema, left, first), *_parts(sema, right, second)]
    is_tuple = _is_tuple(sema, left, right, call)
    if is_tuple:
        pairs = [(str(i), value) for i, (_, value) in enumerate(pairs)]
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            sema.fail("duplicate-field", f"both structs have a field '{name}'", call.span)
    fields = tuple(Field(name, value.type) for name, value in pairs)
    return gathered(Struct(fields, is_tuple=is_tuple), [value for _, value in pairs])


def _parts(sema: Sema, operand: Loaded, node: ast.Expression) -> list[tuple[str, Loaded]]:
    return list(sema.fields(operand, node.span).items())


def _is_tuple(sema: Sema, left: Loaded, right: Loaded, call: ast.BuiltinCall) -> bool:
    """Whether the result's fields have no names; an empty struct fits either kind."""
    kinds = {
        operand.type.is_tuple
        for operand in (left, right)
        if isinstance(operand.type, Struct) and operand.type.fields
    }
    if len(kinds) > 1:
        sema.fail(
            "mixed-structs",
            "cannot concatenate a struct with named fields and one with nameless fields",
            call.span,
        )
    return kinds == {True}
