"""Arguments of builtins: wrong ones, functions, values under another type."""

from typing import NoReturn

from openwafer.sdk.csl import ast
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import Comptime, FunctionValue, Operand, Runtime


def wrong_type(
    sema: Sema, node: ast.Expression, expected: str, operand: Operand, help: str = ""
) -> NoReturn:
    """Report an operand of a type that the builtin does not take."""
    sema.fail(
        "type-mismatch",
        f"expected type '{expected}', got: '{operand.type}'",
        node.span,
        help=help,
    )


def function_argument(sema: Sema, node: ast.Expression) -> FunctionValue:
    """A function or task given by its name."""
    operand = sema.expression(node)
    if not isinstance(operand, Comptime) or not isinstance(operand.value, FunctionValue):
        wrong_type(sema, node, "a function or task", operand)
    return operand.value


def with_type(operand: Operand, kind: Type) -> Comptime | Runtime:
    """The same bits as a value of another type of the same representation."""
    if isinstance(operand, Comptime):
        return Comptime(kind, operand.value)
    assert isinstance(operand, Runtime)
    return Runtime(kind, operand.value)
