"""Conditions that never change, loops that never turn, and fractions that are lost."""

import math
from typing import Final

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.operators import PRECEDENCE, UnaryOperator
from openwafer.sdk.csl.operators import BinaryOperator as B
from openwafer.sdk.csl.sema.engine import Sema
from openwafer.sdk.csl.sema.fold import OPERATIONS, fold_comparison
from openwafer.sdk.csl.types import Type

_COMPARISONS: Final = frozenset(one for one in B if PRECEDENCE[one] == PRECEDENCE[B.EQUAL])


def warn_of_constant_condition(sema: Sema, node: ast.Binary) -> None:
    """Warn of `and` or `or` between comparisons of one name that no value of it changes."""
    sides = node.left, node.right
    if not all(isinstance(one, ast.Binary) and one.operator in _COMPARISONS for one in sides):
        return
    left, right = sides
    assert isinstance(left, ast.Binary)
    assert isinstance(right, ast.Binary)
    numbers = _constant(sema, left.right), _constant(sema, right.right)
    if not isinstance(left.left, ast.Identifier) or left.left != right.left or None in numbers:
        return
    first, second = (number for number in numbers if number is not None)
    kind = sema.place(left.left).type
    joined = any if node.operator is B.OR else all
    compared = (OPERATIONS[left.operator], first), (OPERATIONS[right.operator], second)
    outcomes = {
        joined(fold_comparison(operation, x, number) for operation, number in compared)
        for x in _samples(kind, first, second)
    }
    if len(outcomes) == 1:
        other = B.AND if node.operator is B.OR else B.OR
        message = f"'{node.span.text}' is always {str(*outcomes).lower()}"
        help_text = f"'{other}' may be meant, or another number"
        sema.warn("always-same", message, node.span, help=help_text)


def _samples(kind: Type, first: float, second: float) -> set[float]:
    """Values of each part of the line that two numbers cut; floats may lie between, or be none."""
    around = {number + step for number in (first, second) for step in (-1, 0, 1)}
    return around if types.is_int(kind) else around | {(first + second) / 2, math.nan}


def _constant(sema: Sema, node: ast.Expression) -> float | None:
    """A number as written, here or in a constant of the file; params are other ones elsewhere."""
    if isinstance(node, ast.Identifier) and sema.context.scope.find(node.name) is None:
        declared = sema.module.declarations.get(node.name)
        if isinstance(declared, ast.Variable) and declared.kind is ast.VariableKind.CONST:
            return _written(declared.initializer)
    return _written(node)


def _written(node: ast.Expression | None) -> float | None:
    match node:
        case ast.IntLiteral(value) | ast.FloatLiteral(value) | ast.CharLiteral(value):
            return value
        case ast.Unary(UnaryOperator.NEGATE, operand):
            number = _written(operand)
            return None if number is None else -number
        case _:
            return None


def warn_of_empty_range(sema: Sema, call: ast.BuiltinCall) -> None:
    """Warn of a range of constants whose step leads away from its stop."""
    bounds = [_constant(sema, bound) for bound in call.arguments[1:]]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return
    start, stop, step = known if len(known) > 1 else (0, *known, 1)
    if (stop - start) * step < 0:
        message = f"'{call.span.text}' has no numbers: its step leads away from its stop"
        sema.warn("range-empty", message, call.span, help="a step below zero counts down")


def warn_of_lost_fraction(sema: Sema, node: ast.Expression, kind: Type | None) -> None:
    """Warn of a quotient of integers that becomes a float, type `kind`, without its fraction."""
    is_quotient = isinstance(node, ast.Binary) and node.operator is B.DIVIDE
    if not is_quotient or kind is None or not types.is_float(kind):
        return
    assert isinstance(node, ast.Binary)
    dividend, divisor = _constant(sema, node.left), _constant(sema, node.right)
    if dividend and divisor and dividend % divisor:
        message = f"'{node.span.text}' divides integers, and leaves the fraction away"
        help_text = "write one of them as a float, or give the whole number a name"
        sema.warn("fraction-lost", message, node.span, help=help_text)
