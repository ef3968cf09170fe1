"""Statement lists, local variables, and assignments."""

from dataclasses import replace

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.arith import binary
from openwafer.sdk.csl.sema.hardly_meant import (
    warn_of_dropped_value,
    warn_of_hiding_local,
    warn_of_lost_statement,
)
from openwafer.sdk.csl.sema.image_state import UnsetLocal
from openwafer.sdk.csl.sema.join import NEVER
from openwafer.sdk.csl.sema.lowering import lower
from openwafer.sdk.csl.sema.lvalues import store
from openwafer.sdk.csl.sema.sema import Sema, evaluates
from openwafer.sdk.csl.types import Array, Enum, Struct, Type
from openwafer.sdk.csl.values import (
    NOTHING,
    UNDEFINED,
    BitsLvalue,
    Cell,
    CellLvalue,
    Comptime,
    Loaded,
    MemoryLvalue,
    Operand,
    SlotLvalue,
    thaw,
)
from openwafer.sdk.ir.unwritten import UNSET
from openwafer.source import Span


def statements(sema: Sema, nodes: tuple[ast.Statement, ...]) -> None:
    """Evaluate statements in order; in code for the PE, errors end one statement only."""
    for number, node in enumerate(nodes):
        if not sema.is_live:
            if number:
                warn_of_lost_statement(sema, nodes[number - 1], node)
            return
        warn_of_hiding_local(sema, node, nodes[number + 1 :])
        if sema.is_comptime:
            sema.set_place(node.span)
            warn_of_dropped_value(sema, node)
            sema.evaluate(node, types.VOID)
        else:
            recovered(sema, node)


def recovered(sema: Sema, node: ast.Statement) -> None:
    """Evaluate a statement; keep its error, and do not complain of the name that it declares."""
    sema.set_place(node.span)
    warn_of_dropped_value(sema, node)
    try:
        sema.evaluate(node, types.VOID)
    except OpenwaferError as error:
        sema.report(error)
        if isinstance(node, ast.Variable):
            sema.context.scope.names.setdefault(node.name.text, None)


@evaluates(ast.Variable)
def _variable(sema: Sema, node: ast.Variable, _expected: Type | None) -> Operand:
    kind = None if node.type is None else sema.type_of_node(node.type)
    if node.kind is ast.VariableKind.CONST:
        sema.declare(node.name, _constant(sema, node, kind))
    elif node.is_comptime or sema.is_comptime:
        sema.declare(node.name, _comptime_variable(sema, node, kind))
    else:
        sema.declare(node.name, _runtime_variable(sema, node, kind))
    return NOTHING


def named(value: Comptime, name: str) -> Comptime:
    """A type that is given its first name shows it in messages."""
    if isinstance(value.value, Struct | Enum) and not value.value.name:
        return Comptime(value.type, replace(value.value, name=name))
    return value


def _initial(sema: Sema, node: ast.Variable, kind: Type | None) -> Loaded | None:
    if node.initializer is None:
        return None
    value = sema.expression(node.initializer, kind)
    return value if kind is None else sema.coerce(value, kind, node.initializer.span)


def _constant(sema: Sema, node: ast.Variable, kind: Type | None) -> Operand:
    if node.initializer is None:
        sema.fail(
            "uninitialized",
            "only 'var' and 'extern const' variables may be uninitialized",
            node.span,
        )
    if node.is_comptime:
        value: Loaded | None = sema.comptime_value(node.initializer, kind)
    else:
        value = _initial(sema, node, kind)
    if isinstance(value, Comptime):
        value = named(value, node.name.text)
        cell = Cell(node.name.text, value.type, thaw(value.value), is_const=True)
        return CellLvalue(value.type, cell, (), is_const=True)
    assert value is not None
    if sema.is_comptime:
        sema.known(value, node.initializer.span)
    lvalue = _local(sema, node, value.type)
    store(sema, lvalue, value, node.span)
    return constant_lvalue(lvalue)


def constant_lvalue(lvalue: Operand) -> Operand:
    """The same lvalue, which nothing assigns to."""
    assert isinstance(lvalue, SlotLvalue | MemoryLvalue)
    return replace(lvalue, is_const=True)


def _local(sema: Sema, node: ast.Variable, kind: Type) -> Operand:
    name = node.name.text
    return sema.new_local(kind, name, in_memory=name in sema.context.with_address)


def _comptime_variable(sema: Sema, node: ast.Variable, kind: Type | None) -> Operand:
    if node.initializer is None:
        value = Comptime(_declared(sema, node, kind), UNDEFINED)
    else:
        value = sema.comptime_value(node.initializer, kind)
    content = thaw(value.value)
    if value.value is UNDEFINED:
        content = blank(value.type)
    depth = sema.context.runtime_depth
    cell = Cell(
        node.name.text,
        value.type,
        content,
        runtime_depth=depth,
        num_lane_loops=sema.num_lane_loops,
    )
    return CellLvalue(kind or value.type, cell, (), is_const=False)


def blank(kind: Type) -> object:
    """Content of a variable that was not assigned yet, whose parts can be."""
    match kind:
        case Array(element=element):
            return [blank(element) for _ in range(kind.num_elements)]
        case Struct(fields=fields):
            return [blank(field.type) for field in fields]
        case _:
            return UNDEFINED


def _declared(sema: Sema, node: ast.Variable, kind: Type | None) -> Type:
    if kind is None:
        sema.fail(
            "no-type",
            f"variable '{node.name.text}' needs a type or an initializer",
            node.span,
        )
    return kind


def _runtime_variable(sema: Sema, node: ast.Variable, kind: Type | None) -> Operand:
    value = _initial(sema, node, kind)
    kind = _declared(sema, node, kind) if value is None else value.type
    check_runtime_type(sema, kind, node.span)
    lvalue = _local(sema, node, kind)
    is_unset = value is None or (isinstance(value, Comptime) and value.value is UNDEFINED)
    if value is not None and not is_unset:
        store(sema, lvalue, value, node.span)
    elif isinstance(lvalue, SlotLvalue):
        nothing = lower(sema, Comptime(kind, zero(kind)), node.span)
        sema.emit("set", nothing, names=(lvalue.slot, UNSET))
    if is_unset and isinstance(lvalue, SlotLvalue) and sema.is_live:
        function, name = sema.builder.function.name, node.name
        sema.unrecorded().unset_locals.append(
            UnsetLocal(function, lvalue.slot, name.text, name.span)
        )
    return lvalue


def zero(kind: Type) -> object:
    """Content of a scalar variable without an initializer, so that every run is the same."""
    if kind in types.FLOATS:
        return 0.0
    return UNDEFINED if kind in types.DSDS or isinstance(kind, types.Pointer) else 0


def check_runtime_type(sema: Sema, kind: Type, span: Span) -> None:
    """Refuse a variable that the PE cannot hold."""
    if types.is_comptime_only(kind) or kind == types.VOID:
        sema.fail(
            "comptime-only",
            f"variable of type '{kind}' must be comptime-known",
            span,
            help="declare it const or comptime var, or give it a fixed-width type",
        )


@evaluates(ast.Assign)
def _assign(sema: Sema, node: ast.Assign, _expected: Type | None) -> Operand:
    if isinstance(node.target, ast.Identifier) and node.target.name == "_":
        sema.expression(node.value)
        return NOTHING
    lvalue = sema.lvalue(node.target)
    _check_assignable(sema, lvalue, node)
    if node.operator is None:
        value = sema.expression(node.value, lvalue.type)
    else:
        old = sema.load(lvalue, node.target.span)
        right = sema.expression(node.value, lvalue.type)
        value = binary(sema, node.operator, old, right, node.span)
    if not sema.is_live:
        return NEVER
    store(sema, lvalue, sema.coerce(value, lvalue.type, node.value.span), node.span)
    return NOTHING


def _check_assignable(sema: Sema, lvalue: Operand, node: ast.Assign) -> None:
    text = node.target.span.text
    if not isinstance(lvalue, CellLvalue | SlotLvalue | MemoryLvalue | BitsLvalue):
        sema.fail("not-a-place", f"cannot assign to '{text}'", node.target.span)
    if lvalue.is_const:
        sema.fail(
            "assign-const",
            f"cannot assign to constant '{text}'",
            node.target.span,
            help="declare it with 'var', or point to it without 'const'",
        )
    if sema.is_comptime and not isinstance(lvalue, CellLvalue):
        sema.fail(
            "comptime-store",
            f"cannot assign to the run-time variable '{text}' at compile time",
            node.target.span,
        )
