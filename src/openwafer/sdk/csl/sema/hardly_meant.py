"""What a statement or expression hardly means: what it changes, where it leads, what it loses."""

import math
from typing import Final

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.operators import PRECEDENCE, UnaryOperator
from openwafer.sdk.csl.operators import BinaryOperator as B
from openwafer.sdk.csl.sema.fold import OPERATIONS, fold_comparison
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.types import Type

_COMPARISONS: Final = frozenset(one for one in B if PRECEDENCE[one] == PRECEDENCE[B.EQUAL])
_VALUES: Final = (ast.Binary, ast.Unary, ast.Identifier, ast.IntLiteral, ast.FloatLiteral)
_OF_DSDS: Final = frozenset(
    ("get_dsd", "set_dsd_base_addr", "set_dsd_length", "set_dsd_stride", "increment_dsd_offset")
)
_COMPUTING: Final = _OF_DSDS | {"as", "bitcast", "ptrcast", "zeros", "constants", "get_color"}
"""Builtins that do nothing but give a value."""


def warn_of_dropped_value(sema: Sema, node: ast.Statement) -> None:
    """Warn of a statement that changes nothing."""
    is_builtin = isinstance(node, ast.BuiltinCall) and node.name.text in _COMPUTING
    # What is called may do more than to give a value.
    is_value = isinstance(node, _VALUES) and "(" not in node.span.text
    if is_builtin or is_value:
        message = f"nothing uses the value of '{node.span.text}'"
        sema.warn("value-unused", message, node.span, help=_remedy(node))


def warn_of_lost_statement(sema: Sema, before: ast.Statement | None, node: ast.Statement) -> None:
    """Warn of a statement that stands right behind one that leaves its block."""
    if isinstance(before, ast.Return | ast.Break | ast.Continue):
        message = f"this never runs: '{before.span.text.rstrip(';')}' stands before it"
        sema.warn("never-reached", message, node.span, help="remove it, or put it before")


def warn_of_hiding_local(sema: Sema, node: ast.Statement, after: tuple[ast.Statement, ...]) -> None:
    """Warn of a local that hides a name of the file, and that no statement `after` it reads."""
    if not isinstance(node, ast.Variable) or node.name.text not in sema.module.declarations:
        return
    inside = list(ast.walk(after))
    targets = [one.target for one in inside if isinstance(one, ast.Assign)]
    named = [one for one in inside if one == ast.Identifier(node.name.text, span=node.span)]
    if all(any(one is target for target in targets) for one in named):
        message = f"nothing reads this '{node.name.text}', which hides that of the file"
        help_text = "without the declaration, the file's is meant"
        sema.warn("hides-global", message, node.name.span, help=help_text)


def _remedy(node: ast.Statement) -> str:
    match node:
        case ast.Binary(operator=B.EQUAL):
            return "'=' assigns, '==' compares"
        case ast.BuiltinCall() if node.name.text in _OF_DSDS:
            return "it gives a new descriptor and leaves its argument: dsd = @... (dsd, ...)"
        case _:
            return "assign it, or remove the statement"


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
    kind = sema.lvalue(left.left).type
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
