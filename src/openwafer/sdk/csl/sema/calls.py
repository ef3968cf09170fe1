"""Calls: run at compile time, expanded in place, or emitted."""

from collections.abc import Sequence
from dataclasses import replace

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.access import temporary
from openwafer.sdk.csl.sema.analysis import Context, Poisoned, Scope, Target
from openwafer.sdk.csl.sema.calls_in_lanes import follow_call
from openwafer.sdk.csl.sema.functions import (
    Argument,
    Bound,
    bind,
    called,
    finish_inlined,
    instantiate,
    linked,
    note_parameters,
)
from openwafer.sdk.csl.sema.join import Returning, join
from openwafer.sdk.csl.sema.lvalues import in_memory, store
from openwafer.sdk.csl.sema.recording import NoKeyError
from openwafer.sdk.csl.sema.sema import Sema, evaluates
from openwafer.sdk.csl.sema.taken_addresses import names_with_address
from openwafer.sdk.csl.types import Function, Pointer, Type
from openwafer.sdk.csl.values import (
    NOTHING,
    Comptime,
    FunctionValue,
    Loaded,
    MemoryLvalue,
    Operand,
    PointerValue,
    Runtime,
)
from openwafer.sdk.ir import function as ir
from openwafer.source import Span


@evaluates(ast.Call)
def _call(sema: Sema, node: ast.Call, _expected: Type | None) -> Operand:
    callee = sema.expression(node.callee)
    arguments = [_argument(sema, argument) for argument in node.arguments]
    match callee:
        case Comptime(Function(), FunctionValue() as function):
            return call(sema, function, arguments, node.span)
        case Comptime(Pointer(), PointerValue(FunctionValue() as function)):
            return call(sema, function, arguments, node.span)
        case Runtime(Pointer(Function() as kind), address):
            return _call_indirect(sema, kind, address, arguments, node.span)
        case _:
            return sema.fail(
                "not-callable", f"type '{callee.type}' cannot be called", node.callee.span
            )


def _argument(sema: Sema, node: ast.Expression) -> Argument:
    return Argument(lambda expected: sema.expression(node, expected), node.span)


def call_function(
    sema: Sema, function: FunctionValue, operands: Sequence[Loaded], span: Span
) -> Operand:
    """A call with operands, as if it were written."""
    return call(sema, function, [Argument(lambda _, o=o: o, span) for o in operands], span)  # type: ignore[misc]


def call(sema: Sema, function: FunctionValue, arguments: Sequence[Argument], span: Span) -> Operand:
    """Value of a call."""
    if function.is_task:
        sema.fail(
            "task-call",
            "task cannot be called",
            span,
            notes=(f"'{function}' is a task; the machine starts it",),
            help="activate it with @activate, or make it a fn",
        )
    function = linked(sema, function, span)
    bound, result = bind(sema, function, arguments, span)
    if sema.is_comptime:
        return _run(sema, function, bound, result, span)
    if function.declaration.is_inline:
        return _expand(sema, function, bound, result, span)
    if all(isinstance(one.operand, Comptime) for one in bound):
        if types.is_comptime_only(result):
            with sema.at_comptime():
                return _run(sema, function, bound, result, span)
        if result != types.VOID and any(types.is_comptime_only(one.type) for one in bound):
            found = _tried(sema, function, bound, result, span)
            if found is not None:
                return found
    return _emit(sema, function, bound, result, span)


def _run(
    sema: Sema, function: FunctionValue, bound: list[Bound], result: Type, span: Span
) -> Operand:
    """Value of a call at compile time, from another image where one has the same."""
    _check_depth(sema, span)
    if sema.num_lane_loops:
        return _follow_in_lanes(sema, function, bound, result, span)
    try:
        arguments = tuple((one.type, sema.key_of(one.operand)) for one in bound)
    except NoKeyError:
        return _follow(sema, function, bound, result, span)
    key = (id(function.declaration), arguments, result, sema.call_depth)
    return sema.recalled(function.module, key, lambda: _follow(sema, function, bound, result, span))


def _follow_in_lanes(
    sema: Sema, function: FunctionValue, bound: list[Bound], result: Type, span: Span
) -> Operand:
    def follow(arguments: dict[str, Comptime]) -> Operand:
        given = [replace(one, operand=arguments[one.name]) for one in bound]
        return _follow(sema, function, given, result, span)

    known = {one.name: sema.known(one.operand, one.span) for one in bound}
    return follow_call(sema, function, known, follow)


def _follow(
    sema: Sema, function: FunctionValue, bound: list[Bound], result: Type, span: Span
) -> Operand:
    """Follow the body at compile time."""
    scope = Scope()
    for one in bound:
        scope.names[one.name] = temporary(one.type, sema.known(one.operand, one.span).value)
    body = function.declaration.body
    assert body is not None
    sema.call_depth += 1
    sema.deepest_call = max(sema.deepest_call, sema.call_depth)
    try:
        with sema.within(Context(function.module, scope, return_type=result)):
            sema.evaluate(body, types.VOID)
    except Returning as returning:
        return returning.operand
    except Poisoned:
        raise
    except OpenwaferError as error:
        raise OpenwaferError(*(called(d, function, span) for d in error.diagnostics)) from error
    finally:
        sema.call_depth -= 1
    if result != types.VOID:
        sema.fail("missing-return", f"function '{function}' ended without a return", span)
    return NOTHING


def _tried(
    sema: Sema, function: FunctionValue, bound: list[Bound], result: Type, span: Span
) -> Operand | None:
    """Value of a function of types and strings; None where it needs the PE."""
    try:
        with sema.at_comptime():
            return _run(sema, function, bound, result, span)
    except OpenwaferError:
        return None


def _check_depth(sema: Sema, span: Span) -> None:
    sema.spend_step(span)
    limit = sema.options.comptime_func_depth_limit
    if sema.call_depth >= limit:
        sema.fail(
            "call-depth",
            f"exceeded the maximum of {limit} nested calls at compile time",
            span,
            help="raise it with --comptime-func-depth-limit",
        )


def _expand(
    sema: Sema, function: FunctionValue, bound: list[Bound], result: Type, span: Span
) -> Operand:
    """Analyse the body of an inline function in the caller's place."""
    _check_depth(sema, span)
    body = function.declaration.body
    assert body is not None
    target = Target("", is_loop=False, expected=result)
    context = Context(
        function.module,
        Scope(end=body.span.end),
        sema.builder,
        is_comptime=False,
        return_type=result,
        inlined=target,
        function=sema.context.function,
        runtime_depth=sema.context.runtime_depth,
        with_address=names_with_address(body, sema.imports.with_address),
        expanded=(str(function), sema.place_of(span)),
    )
    for one in bound:
        context.scope.names[one.name] = _inlined_parameter(sema, one, context.with_address)
    place, sema.call_depth = sema.builder.place, sema.call_depth + 1
    try:
        with sema.within(context):
            note_parameters(sema, function.declaration)
            sema.evaluate(body, types.VOID)
            finish_inlined(sema, function, target)
    finally:
        sema.builder.place, sema.call_depth = place, sema.call_depth - 1
    return join(sema, target.results, result, span)


def _inlined_parameter(sema: Sema, bound: Bound, with_address: frozenset[str]) -> Operand:
    match bound.operand:
        case Comptime(kind, value):
            return temporary(kind, value)
        case Runtime() as value if bound.name in with_address:
            memory = sema.new_memory(bound.type, bound.name)
            store(sema, memory, value, bound.span)
            return replace(memory, is_const=True)
        case operand:
            return operand


def _emit(
    sema: Sema, function: FunctionValue, bound: list[Bound], result: Type, span: Span
) -> Operand:
    name = instantiate(sema, function, bound, result, span)
    passed = [_passed(sema, one.operand, one.span) for one in bound if not one.is_value]
    return _emit_call(sema, "call", (name,), passed, result, span)


def _passed(sema: Sema, operand: Loaded, span: Span) -> ir.Value:
    """An argument as it travels: a copy's address for arrays and structs in memory."""
    if not types.is_aggregate(operand.type):
        return sema.lower(operand, span)
    if isinstance(operand, MemoryLvalue):
        copy = sema.new_memory(operand.type, "argument")
        store(sema, copy, operand, span)
        return copy.address
    return in_memory(sema, operand, span).address


def _emit_call(
    sema: Sema,
    op: str,
    names: tuple[str, ...],
    passed: list[ir.Value],
    result: Type,
    span: Span,
) -> Operand:
    sema.set_place(span)
    if types.is_aggregate(result):
        memory = sema.new_memory(result, "result")
        at = 0 if op == "call" else 1
        sema.emit(op, *passed[:at], memory.address, *passed[at:], names=names)
        return memory
    if result == types.VOID:
        sema.emit(op, *passed, names=names)
        return NOTHING
    return Runtime(result, sema.emit(op, *passed, type=types.ir_type(result), names=names))


def _call_indirect(
    sema: Sema, kind: Function, address: ir.Value, arguments: list[Argument], span: Span
) -> Operand:
    if len(arguments) != len(kind.parameters):
        sema.fail(
            "wrong-count",
            f"function expects {len(kind.parameters)} arguments, {len(arguments)} provided",
            span,
            notes=(f"its type is '{kind}'",),
        )
    passed = [address]
    for wanted, argument in zip(kind.parameters, arguments, strict=True):
        operand = argument.value(wanted)
        if wanted is not None:
            operand = sema.coerce(operand, wanted, argument.span)
        passed.append(_passed(sema, operand, argument.span))
    return _emit_call(sema, "call_indirect", (), passed, kind.result, span)
