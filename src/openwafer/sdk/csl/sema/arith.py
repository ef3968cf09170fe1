"""Operators: folded where both sides are known, emitted otherwise."""

from typing import Final

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.operators import BinaryOperator as B
from openwafer.sdk.csl.operators import UnaryOperator
from openwafer.sdk.csl.sema.coercion import peer_type
from openwafer.sdk.csl.sema.fold import OPERATIONS, fold_binary, fold_comparison, fold_unary
from openwafer.sdk.csl.sema.hardly_meant import (
    warn_of_constant_condition,
    warn_of_lost_fraction,
)
from openwafer.sdk.csl.sema.narrow import narrowed
from openwafer.sdk.csl.sema.sema import Sema, evaluates
from openwafer.sdk.csl.symbolic import Symbolic
from openwafer.sdk.csl.types import Enum, Int, Type
from openwafer.sdk.csl.values import Comptime, Loaded, Operand, Runtime
from openwafer.sdk.ir import function as ir
from openwafer.source import Span

_EQUALITY: Final = frozenset((B.EQUAL, B.NOT_EQUAL))
_ORDER: Final = frozenset((B.LESS, B.LESS_EQUAL, B.GREATER, B.GREATER_EQUAL))
_BELOW_ZERO: Final = frozenset((B.LESS, B.GREATER_EQUAL))
_SHIFTS: Final = frozenset((B.SHIFT_LEFT, B.SHIFT_RIGHT))
_INTEGER_ONLY: Final = frozenset((B.REMAINDER, B.BIT_AND, B.BIT_OR, B.BIT_XOR))
_COMPARABLE: Final = (
    types.IDS | types.DSRS | {types.BOOL, types.DIRECTION, types.COMPTIME_STRING, types.TYPE}
)


@evaluates(ast.Binary)
def _binary(sema: Sema, node: ast.Binary, expected: Type | None) -> Operand:
    if node.operator in (B.AND, B.OR):
        return _logical(sema, node)
    left = sema.expression(node.left, expected if types.is_number(expected or types.VOID) else None)
    right = sema.expression(node.right, left.type)
    if left.type == right.type == types.COMPTIME_INT:
        warn_of_lost_fraction(sema, node, expected)
    elif left.type == types.COMPTIME_INT:
        warn_of_lost_fraction(sema, node.left, right.type)
    return binary(sema, node.operator, left, right, node.span)


def binary(sema: Sema, operator: B, left: Loaded, right: Loaded, span: Span) -> Loaded:
    """Value of `left operator right`."""
    if operator in _SHIFTS:
        return _shift(sema, operator, left, right, span)
    kind = _common_type(sema, operator, left, right, span)
    left, right = sema.coerce(left, kind, span), sema.coerce(right, kind, span)
    if operator in _EQUALITY | _ORDER:
        return _comparison(sema, operator, left, right, span)
    is_allowed = types.is_int if operator in _INTEGER_ONLY else types.is_number
    if not is_allowed(kind):
        _refuse(sema, operator, kind, span)
    if isinstance(left, Comptime) and isinstance(right, Comptime):
        return fold_binary(sema, OPERATIONS[operator], left, right, span)
    return _emit(sema, operator, left, right, span)


def _emit(sema: Sema, operator: B, left: Loaded, right: Loaded, span: Span) -> Runtime:
    a, b = sema.lower(left, span), sema.lower(right, span)
    value = sema.emit(OPERATIONS[operator], a, b, type=types.ir_type(left.type))
    return Runtime(left.type, narrowed(sema, left.type, value))


def _common_type(sema: Sema, operator: B, left: Loaded, right: Loaded, span: Span) -> Type:
    kinds = [left.type, right.type]
    if kinds[0] is kinds[1] or kinds[0] == kinds[1]:
        return kinds[0]
    if types.is_number(kinds[0]) and types.is_number(kinds[1]):
        literal = types.COMPTIME_INT if types.COMPTIME_INT in kinds else types.COMPTIME_FLOAT
        is_mixed = types.is_float(kinds[0]) is not types.is_float(kinds[1])
        if literal not in kinds or (is_mixed and literal == types.COMPTIME_FLOAT):
            _differ(sema, operator, left.type, right.type, span)
    return peer_type(sema, kinds, span)


def _differ(sema: Sema, operator: B, left: Type, right: Type, span: Span) -> None:
    sema.fail(
        "operand-types",
        f"operands of '{operator}' have different types: '{left}' and '{right}'",
        span,
        help="convert one of them with @as",
    )


def _refuse(sema: Sema, operator: B | UnaryOperator, kind: Type, span: Span) -> None:
    what = "comparison" if operator in _EQUALITY | _ORDER else "arithmetic"
    sema.fail("invalid-operand", f"invalid {what} operation '{operator}' for type: '{kind}'", span)


def _comparison(sema: Sema, operator: B, left: Loaded, right: Loaded, span: Span) -> Loaded:
    kind = left.type
    is_equality = operator in _EQUALITY and (
        kind in _COMPARABLE or isinstance(kind, Enum | types.Pointer | types.Function)
    )
    if not types.is_number(kind) and not is_equality:
        _refuse(sema, operator, kind, span)
    if isinstance(left, Comptime) and isinstance(right, Comptime):
        known = [sema.defined(side, span).value for side in (left, right)]
        return Comptime(types.BOOL, fold_comparison(OPERATIONS[operator], *known))
    is_unsigned = isinstance(kind, Int) and not kind.is_signed
    if is_unsigned and operator in _BELOW_ZERO and _number(right) == 0:
        always = "false" if operator is B.LESS else "true"
        message = f"'{span.text}' is always {always}: '{kind}' has no negative numbers"
        sema.warn("always-same", message, span, help="compare with 1, or count in a signed type")
    a, b = sema.lower(left, span), sema.lower(right, span)
    return Runtime(types.BOOL, sema.emit(OPERATIONS[operator], a, b, type=ir.Type.BOOL))


def _number(operand: Loaded) -> int | None:
    """A known integer that is the same for all PEs; asking for another one would part them."""
    value = operand.value if isinstance(operand, Comptime) else None
    return value if type(value) in (int, Symbolic) else None  # type: ignore[return-value]


def _shift(sema: Sema, operator: B, left: Loaded, right: Loaded, span: Span) -> Loaded:
    if not types.is_int(left.type) or not types.is_int(right.type):
        wrong = right if types.is_int(left.type) else left
        _refuse(sema, operator, wrong.type, span)
    if isinstance(right.type, Int) and right.type.is_signed and not isinstance(right, Comptime):
        sema.fail(
            "signed-shift",
            f"the number of bits of '{operator}' must be unsigned, got: '{right.type}'",
            span,
            help=f"convert it with @as(u{right.type.num_bits}, ...)",
        )
    distance = _number(right)
    if isinstance(left.type, Int) and distance is not None and distance >= left.type.num_bits:
        message = f"'{operator}' by {distance} bits leaves nothing of a '{left.type}'"
        sema.warn("shift-too-far", message, span, help="widen it with @as before the shift")
    if isinstance(left, Comptime) and isinstance(right, Comptime):
        return fold_binary(sema, OPERATIONS[operator], left, right, span)
    if left.type == types.COMPTIME_INT:
        left = sema.coerce(left, right.type, span)
    if right.type == types.COMPTIME_INT:
        right = sema.coerce(right, types.U16, span)
    return _emit(sema, operator, left, right, span)


def _logical(sema: Sema, node: ast.Binary) -> Operand:
    """`and` and `or`: the right side is looked at only where it counts."""
    warn_of_constant_condition(sema, node)
    left = sema.typed(node.left, types.BOOL)
    decides = node.operator is B.OR
    if isinstance(left, Comptime):
        sema.defined(left, node.left.span)
        return left if bool(left.value) is decides else sema.typed(node.right, types.BOOL)
    result = sema.new_slot(types.BOOL, "logical")
    more, done = sema.new_block("logical"), sema.new_block("logical_end")
    condition = sema.lower(left, node.span)
    sema.emit("set", condition, names=(result.slot,))
    sema.branch(condition, *((done, more) if decides else (more, done)))
    sema.enter(more)
    right = sema.typed(node.right, types.BOOL)
    sema.emit("set", sema.lower(right, node.span), names=(result.slot,))
    sema.jump(done)
    sema.enter(done)
    return sema.load(result, node.span)


@evaluates(ast.Unary)
def _unary(sema: Sema, node: ast.Unary, expected: Type | None) -> Operand:
    if node.operator is UnaryOperator.NOT:
        operand = sema.typed(node.operand, types.BOOL)
    else:
        operand = sema.expression(node.operand, expected)
    kind = operand.type
    is_allowed = {
        UnaryOperator.NOT: kind == types.BOOL,
        UnaryOperator.NEGATE: types.is_number(kind),
        UnaryOperator.BIT_NOT: isinstance(kind, Int),
    }
    if not is_allowed[node.operator]:
        _refuse(sema, node.operator, kind, node.span)
    if isinstance(operand, Comptime):
        return fold_unary(node.operator, sema.defined(operand, node.span))
    op = {UnaryOperator.NOT: "not", UnaryOperator.NEGATE: "neg"}.get(node.operator, "bitnot")
    value = sema.lower(operand, node.span)
    result = sema.emit(op, value, type=types.ir_type(kind))
    return Runtime(kind, narrowed(sema, kind, result))
