"""Calls of builtins, and what their handlers share."""

from openwafer.diagnostics import did_you_mean
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.sema.engine import BUILTINS, Sema, evaluates
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import Operand


@evaluates(ast.BuiltinCall)
def _builtin(sema: Sema, node: ast.BuiltinCall, expected: Type | None) -> Operand:
    handler = BUILTINS.get(node.name.text)
    if handler is None:
        sema.fail(
            "unknown-builtin",
            f"there is no builtin '@{node.name.text}'",
            node.name.span,
            help=did_you_mean(node.name.text, BUILTINS),
        )
    sema.set_place(node.span)
    return handler(sema, node, expected)


def arguments(
    sema: Sema, call: ast.BuiltinCall, *counts: int, help: str = ""
) -> tuple[ast.Expression, ...]:
    """The arguments, of which there must be one of `counts`."""
    if len(call.arguments) not in counts:
        expected = " or ".join(map(str, counts))
        sema.fail(
            "wrong-count",
            f"'@{call.name.text}' expects {expected} arguments, {len(call.arguments)} provided",
            call.span,
            help=help,
        )
    return call.arguments
