"""Builtins about arrays and ranges."""

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.builtins.calls import check_number
from openwafer.sdk.csl.sema.hardly_meant import warn_of_empty_range
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.sema.statements import zero
from openwafer.sdk.csl.types import Array, Int, Type
from openwafer.sdk.csl.values import (
    Aggregate,
    Comptime,
    Operand,
    RangeValue,
    Runtime,
)


@builtin("zeros")
def _zeros(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    (written,) = call.arguments
    kind = _array_type(sema, written)
    if not types.is_number(kind.element) and kind.element != types.BOOL:
        sema.fail("zeros-type", f"'@zeros' takes an array of numbers, got: '{kind}'", written.span)
    value = 0.0 if types.is_float(kind.element) else zero(kind.element)
    filler = False if kind.element == types.BOOL else value
    return Comptime(kind, (filler,) * kind.num_elements)


@builtin("constants")
def _constants(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    written, argument = call.arguments
    kind = _array_type(sema, written)
    value = sema.typed(argument, kind.element)
    if isinstance(value, Comptime):
        return Comptime(kind, (value.value,) * kind.num_elements)
    return Aggregate(kind, (value,) * kind.num_elements)


def _array_type(sema: Sema, node: ast.Expression) -> Array:
    kind = sema.type_of_node(node)
    if not isinstance(kind, Array):
        sema.fail("not-an-array", f"expected an array type, got: '{kind}'", node.span)
    return kind


@builtin("dimensions")
def _dimensions(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    kind = _array_type(sema, *call.arguments)
    return Comptime(Array((len(kind.dims),), types.U32), kind.dims)


@builtin("rank")
def _rank(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    return Comptime(types.U16, len(_array_type(sema, *call.arguments).dims))


@builtin("element_type")
def _element_type(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    return Comptime(types.TYPE, _array_type(sema, *call.arguments).element)


@builtin("element_count")
def _element_count(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    return Comptime(types.U32, _array_type(sema, *call.arguments).num_elements)


@builtin("range")
def _range(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    remedy = "the type of the numbers comes first: @range(u16, n)"
    written, *bounds = check_number(sema, call, (2, 4), remedy)
    kind = sema.type_of_node(written)
    if not types.is_int(kind):
        sema.fail("range-type", f"'@range' takes an integer type, got: '{kind}'", written.span)
    values = [_bound(sema, node, kind) for node in bounds]
    if len(values) == 1:
        values = [Comptime(kind, 0), values[0], Comptime(kind, 1)]
    start, stop, step = values
    if isinstance(step, Comptime) and step.value == 0:
        sema.fail("range-step", "the step of '@range' must not be 0", bounds[2].span)
    warn_of_empty_range(sema, call)
    return Comptime(types.RANGE, RangeValue(kind, start, stop, step))


def _bound(sema: Sema, node: ast.Expression, kind: Type) -> Comptime | Runtime:
    """A bound of the range's type; another integer is converted, as `@as` does."""
    value = sema.expression(node, kind)
    if isinstance(value.type, Int) and isinstance(kind, Int) and value.type != kind:
        if isinstance(value, Comptime):
            value = Comptime(types.COMPTIME_INT, value.value)
        else:
            lowered = sema.lower(value, node.span)
            return Runtime(kind, sema.emit("cast", lowered, type=types.ir_type(kind)))
    if isinstance(value.type, Int) and isinstance(value, Comptime):
        value = Comptime(kind, value.value)
    bound = sema.coerce(value, kind, node.span)
    assert isinstance(bound, Comptime | Runtime)
    return bound


@builtin("range_start", "range_stop", "range_step")
def _range_part(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    (argument,) = call.arguments
    operand = sema.expression(argument)
    if not isinstance(operand, Comptime) or not isinstance(operand.value, RangeValue):
        sema.fail("not-a-range", f"expected a range, got: '{operand.type}'", argument.span)
    bounds = operand.value
    return {"start": bounds.start, "stop": bounds.stop, "step": bounds.step}[
        call.name.text.removeprefix("range_")
    ]
