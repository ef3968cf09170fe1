"""Explicit conversions: `@as`, `@bitcast`, `@ptrcast`."""

from dataclasses import replace

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.lanes import as_integer
from openwafer.sdk.csl.sema.coercion import round_float
from openwafer.sdk.csl.sema.fold import wrapped
from openwafer.sdk.csl.sema.lowering import bits_of
from openwafer.sdk.csl.sema.narrow import narrowed, saturated
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.symbolic import noted, whole
from openwafer.sdk.csl.types import Enum, Int, Pointer, Struct, Type
from openwafer.sdk.csl.values import (
    Aggregate,
    Comptime,
    Loaded,
    Operand,
    PointerValue,
    Runtime,
    Value,
)
from openwafer.sdk.ir import function as ir
from openwafer.sdk.ir.numbers import convert, decode
from openwafer.source import Span

_WITHOUT_VALUE = (ast.Assign, ast.Block, ast.Return, ast.Break, ast.Continue)


@builtin("as")
def _as(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    written, argument = call.arguments
    target = sema.type_of_node(written)
    if isinstance(argument, ast.If | ast.Switch):
        return sema.evaluate(_inside(call, argument), target)
    operand = sema.expression(argument, target)
    if operand.type == target:
        return operand
    if not _is_castable(operand.type) or not _is_castable(target):
        return sema.coerce(operand, target, argument.span)
    if isinstance(operand.type, Enum) and isinstance(target, Enum):
        sema.fail(
            "enum-cast",
            f"cannot convert enum '{operand.type}' to enum '{target}'",
            call.span,
            help=f"convert through an integer: @as({target}, @as({target.tag}, ...))",
        )
    if isinstance(operand, Comptime):
        return Comptime(target, _known(sema, operand, target, call.span))
    value = sema.emit("cast", sema.lower(operand, argument.span), type=types.ir_type(target))
    fit = saturated if types.is_float(operand.type) else narrowed
    return Runtime(target, fit(sema, target, value))


def _inside(call: ast.BuiltinCall, argument: ast.If | ast.Switch) -> ast.Expression:
    """The choice between converted values: the branches need not have the type of the result."""

    def converted(branch: ast.Body) -> ast.Body:
        if isinstance(branch, _WITHOUT_VALUE):
            return branch
        return replace(call, arguments=(call.arguments[0], branch), span=branch.span)

    if isinstance(argument, ast.Switch):
        prongs = tuple(replace(one, body=converted(one.body)) for one in argument.prongs)
        return replace(argument, prongs=prongs)
    otherwise = None if argument.otherwise is None else converted(argument.otherwise)
    return replace(argument, then=converted(argument.then), otherwise=otherwise)


def _is_castable(kind: Type) -> bool:
    return types.is_number(kind) or kind == types.BOOL or isinstance(kind, Enum)


def _known(sema: Sema, operand: Comptime, target: Type, span: Span) -> Value:
    value = operand.value
    if target == types.BOOL:
        return value != 0
    if not isinstance(value, int | float):
        sema.fail("undefined", "use of an undefined value", span)
    if types.is_float(target):
        return round_float(target, value)
    if target == types.COMPTIME_INT:
        return as_integer(value)
    number = target.tag if isinstance(target, Enum) else target
    assert isinstance(number, Int)
    if isinstance(value, float):
        if operand.type == types.COMPTIME_FLOAT or types.spare_bits(number):
            return _truncated(number, value)
        return _converted(operand.type, value, types.ir_type(number))
    if operand.type == types.COMPTIME_INT:
        sema.coerce(operand, number, span)
    result = wrapped(number, as_integer(value))
    if isinstance(target, Enum) and all(result != known for _, known in target.elements):
        sema.fail("no-element", f"enum '{target}' has no element of value {result}", span)
    return result


@whole
def _converted(have: Type, value: float, kind: ir.Type) -> float:
    """A float as the PE makes it an integer."""
    return decode(convert(bits_of(have, value), types.ir_type(have), kind), kind)


@whole
def _truncated(kind: Int, value: float) -> int:
    """Toward zero, and to the nearest bound where it does not fit."""
    if value != value:
        return 0
    return int(max(min(value, kind.highest), kind.lowest))


@builtin("bitcast")
def _bitcast(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    written, argument = call.arguments
    target = sema.type_of_node(written)
    operand = sema.expression(argument)
    if operand.type == types.COMPTIME_INT:
        operand = _sized(sema, operand, target, argument.span)
    if operand.type == target:
        return operand
    _check_width(sema, operand, target, call.span)
    if isinstance(operand, Comptime):
        return _known_bits(sema, operand, target, argument.span)
    return Runtime(target, _reinterpreted(sema, operand, target, argument.span))


def _reinterpreted(sema: Sema, operand: Loaded, target: Type, span: Span) -> ir.Value:
    value, kind = sema.lower(operand, span), types.ir_type(target)
    # A u1 lies in eight bits, which a bool does not have.
    op = "cast" if types.BOOL in (operand.type, target) else "bitcast"
    return narrowed(sema, target, sema.emit(op, value, type=kind))


def _sized(sema: Sema, operand: Loaded, target: Type, span: Span) -> Loaded:
    """A literal takes the unsigned integer of the target's width."""
    width = types.num_bits(target) if _has_bits(target) else types.RUNTIME_BITS
    value = sema.defined(operand, span).value
    assert isinstance(value, int)
    sign = bool(value < 0)
    return sema.coerce(operand, Int(sign, width), span)


def _check_width(sema: Sema, operand: Loaded, target: Type, span: Span) -> None:
    have, want = operand.type, target
    if not _has_bits(have) or not _has_bits(want):
        sema.fail("bitcast-type", f"cannot bitcast '{have}' to '{want}'", span)
    widths = [types.num_bits(kind) for kind in (have, want)]
    if widths[0] != widths[1]:
        sema.fail(
            "bitcast-width",
            f"cannot bitcast '{have}' of {widths[0]} bits to '{want}' of {widths[1]} bits",
            span,
            help="the widths must be equal",
        )


def _has_bits(kind: Type) -> bool:
    """Whether values have a width that could be reinterpreted."""
    is_plain = not isinstance(kind, Struct | types.Array) and kind != types.VOID
    return is_plain and not types.is_comptime_only(kind)


def _known_bits(sema: Sema, operand: Comptime, target: Type, span: Span) -> Operand:
    if isinstance(operand.type, Pointer):
        if isinstance(target, Pointer):
            return Comptime(target, operand.value)
        bits = sema.pointer_bits(operand, span)
    else:
        bits = noted(bits_of, operand.type, operand.value)
    if isinstance(target, Pointer):
        return Comptime(target, PointerValue(None, (), bits))
    number = target.tag if isinstance(target, Enum) else target
    is_int = isinstance(number, Int)
    value = wrapped(number, bits) if is_int else noted(decode, bits, types.ir_type(target))
    return Comptime(target, noted(bool, value) if target == types.BOOL else value)


@builtin("ptrcast")
def _ptrcast(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    written, argument = call.arguments
    target = sema.type_of_node(written)
    if not isinstance(target, Pointer):
        sema.fail("not-a-pointer", f"expected a pointer type, got: '{target}'", written.span)
    operand = sema.expression(argument)
    if not isinstance(operand.type, Pointer) or isinstance(operand, Aggregate):
        sema.fail("not-a-pointer", f"expected a pointer, got: '{operand.type}'", argument.span)
    if isinstance(operand, Runtime):
        return Runtime(target, operand.value)
    known = sema.known(operand, argument.span)
    return _retyped(sema, known, target, argument.span)


def _retyped(sema: Sema, pointer: Comptime, target: Pointer, span: Span) -> Operand:
    """A known address, from now on counted in bytes of a global."""
    match sema.lower(pointer, span):
        case ir.Address(symbol, offset):
            return Comptime(target, PointerValue(sema.variable(symbol), (), offset))
        case _:
            return Comptime(target, pointer.value)
