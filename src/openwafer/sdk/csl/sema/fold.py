"""Arithmetic on known values; what has a width computes as the PE would."""

import operator
from collections.abc import Callable
from typing import Any, Final

from openwafer.sdk.csl import types
from openwafer.sdk.csl.lanes import lanes_of
from openwafer.sdk.csl.literals import MOST_BITS
from openwafer.sdk.csl.operators import BinaryOperator as B
from openwafer.sdk.csl.operators import UnaryOperator
from openwafer.sdk.csl.sema.analysis import Analysis
from openwafer.sdk.csl.symbolic import noted, symbolic_of, whole
from openwafer.sdk.csl.types import Int, Type
from openwafer.sdk.csl.values import UNDEFINED, Comptime, Value
from openwafer.sdk.ir import arithmetic
from openwafer.source import Span

OPERATIONS: Final = {
    B.ADD: "add",
    B.SUBTRACT: "sub",
    B.MULTIPLY: "mul",
    B.DIVIDE: "div",
    B.REMAINDER: "rem",
    B.BIT_AND: "and",
    B.BIT_OR: "or",
    B.BIT_XOR: "xor",
    B.SHIFT_LEFT: "shl",
    B.SHIFT_RIGHT: "shr",
    B.EQUAL: "eq",
    B.NOT_EQUAL: "ne",
    B.LESS: "lt",
    B.LESS_EQUAL: "le",
    B.GREATER: "gt",
    B.GREATER_EQUAL: "ge",
}
"""Of operators, as the intermediate code names them."""
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_INTEGER: Final[dict[str, Callable[[int, int], int]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}

_BEYOND: Final = 1 << MOST_BITS
_GROWING: Final = frozenset(("add", "sub", "mul"))
_real = whole(arithmetic.real)
_WRAP: Final = "csl-wrap"


def wrapped(kind: Type, value: int) -> int:
    """`value` as a fixed-width integer type holds it; a comptime_int holds any."""
    if not isinstance(kind, Int):
        return value
    lanes = lanes_of(value)
    if lanes is not None and kind.num_bits < 63:
        return lanes.wrapped(kind.num_bits, kind.lowest)  # type: ignore[no-any-return]
    # Without a choice, which would part those that go one way by the sign of each number.
    if kind.is_signed:
        return (value - kind.lowest & (1 << kind.num_bits) - 1) + kind.lowest
    return value & (1 << kind.num_bits) - 1


def fold_comparison(op: str, left: Value, right: Value) -> bool:
    """A comparison of two values of one type."""
    return _COMPARE[op](left, right)


def fold_binary(
    analysis: Analysis, op: str, left: Comptime, right: Comptime, span: Span
) -> Comptime:
    """An operation on two values of one type; of shifts, the count has its own."""
    if UNDEFINED in (left.value, right.value):
        analysis.fail("undefined", "use of an undefined value", span)
    if isinstance(left.value, float) and isinstance(right.value, float):
        return Comptime(left.type, _float(analysis, op, left, right, span))
    assert isinstance(left.value, int)
    assert isinstance(right.value, int)
    return Comptime(left.type, _integer(analysis, op, left, right.value, span))


def _integer(analysis: Analysis, op: str, left: Comptime, b: int, span: Span) -> int:
    a = left.value
    assert isinstance(a, int)
    if op in _INTEGER:
        result = _INTEGER[op](a, b)
        if left.type == types.COMPTIME_INT:
            return _held(analysis, result, span)
        if op in _GROWING:
            assert isinstance(left.type, Int)
            _warn_of_wrap(analysis, left.type, result, span)
        return wrapped(left.type, result)
    if op in ("div", "rem"):
        if b == 0:
            analysis.fail("division-by-zero", "division by zero", span)
        quotient = _quotient(a, b)
        return wrapped(left.type, quotient if op == "div" else a - b * quotient)
    if b < 0:
        analysis.fail("negative-shift", f"shift by a negative number of bits: {b}", span)
    if op == "shr":
        return a >> b
    if left.type == types.COMPTIME_INT:
        return _held(analysis, a << min(b, MOST_BITS), span) if a else 0
    assert isinstance(left.type, Int)
    return wrapped(left.type, a << min(b, left.type.num_bits))


def _warn_of_wrap(analysis: Analysis, kind: Int, result: int, span: Span) -> None:
    """Warn where a width cuts a result, once for each place; values of many PEs may mean it."""
    if symbolic_of(result) is not None and _is_warned_of_wrap(analysis, span):
        return
    if lanes_of(result) is not None or kind.lowest <= result <= kind.highest:
        return
    if not _is_warned_of_wrap(analysis, span):
        message = f"'{span.text}' is {result}, which a '{kind}' holds as {wrapped(kind, result)}"
        remedy = "compute it in a wider type, such as @as(i32, ...), or in a comptime_int"
        analysis.warn("wrap", message, span, remedy)


def _is_warned_of_wrap(analysis: Analysis, span: Span) -> bool:
    return any(one.code == _WRAP and one.span == span for one in analysis.diagnostics)


@whole
def _quotient(a: int, b: int) -> int:
    """Rounded toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _held(analysis: Analysis, value: int, span: Span) -> int:
    """A comptime_int, which has as many bits as the compiler computes with."""
    if lanes_of(value) is None and not -_BEYOND < value < _BEYOND:
        analysis.fail(
            "out-of-range",
            f"the result has more than {MOST_BITS} bits, which is the most of a comptime_int here",
            span,
            help="shift by less, or compute with fewer factors",
        )
    return value


def _float(analysis: Analysis, op: str, left: Comptime, right: Comptime, span: Span) -> float:
    a, b = left.value, right.value
    assert isinstance(a, float)
    assert isinstance(b, float)
    if left.type != types.COMPTIME_FLOAT:
        return _real(op, a, b, types.ir_type(left.type))
    if op == "div" and b == 0.0:
        analysis.fail("division-by-zero", "division by zero", span)
    operations: dict[str, Callable[[float, float], float]] = {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "div": operator.truediv,
    }
    result = operations[op](a, b)
    if result != result:
        analysis.fail("not-a-number", "the result of a comptime_float operation is NaN", span)
    return result


def fold_unary(op: UnaryOperator, operand: Comptime) -> Comptime:
    """A prefix operator on a known value of a type that has it."""
    value = operand.value
    match op:
        case UnaryOperator.NOT:
            return Comptime(operand.type, noted(operator.not_, value))
        case UnaryOperator.NEGATE if isinstance(value, float):
            return Comptime(operand.type, -value)
        case UnaryOperator.NEGATE:
            assert isinstance(value, int)
            return Comptime(operand.type, wrapped(operand.type, -value))
        case UnaryOperator.BIT_NOT:
            assert isinstance(value, int)
            return Comptime(operand.type, wrapped(operand.type, ~value))
