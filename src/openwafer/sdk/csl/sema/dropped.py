"""Statements that change nothing or never run: they hardly mean what they say."""

from typing import Final

from openwafer.sdk.csl import ast
from openwafer.sdk.csl.operators import BinaryOperator
from openwafer.sdk.csl.sema.engine import Sema

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
        case ast.Binary(operator=BinaryOperator.EQUAL):
            return "'=' assigns, '==' compares"
        case ast.BuiltinCall() if node.name.text in _OF_DSDS:
            return "it gives a new descriptor and leaves its argument: dsd = @... (dsd, ...)"
        case _:
            return "assign it, or remove the statement"
