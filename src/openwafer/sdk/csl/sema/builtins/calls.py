"""Calls of builtins, as their contract has it."""

from collections.abc import Sequence
from typing import Final

from openwafer.diagnostics import counted, did_you_mean
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.sema.builtins.table import SIGNATURES, Where
from openwafer.sdk.csl.sema.sema import BUILTINS, Sema, evaluates
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import Operand


@evaluates(ast.BuiltinCall)
def _builtin(sema: Sema, node: ast.BuiltinCall, expected: Type | None) -> Operand:
    name = node.name.text
    signature = SIGNATURES.get(name)
    if signature is None:
        remedy = did_you_mean(name, SIGNATURES)
        sema.fail("unknown-builtin", f"there is no builtin '@{name}'", node.name.span, help=remedy)
    if signature.counts is not None:
        help_text = f"call it as @{name}({signature.arguments})"
        check_number(sema, node, signature.counts, help_text)
    _check_where(sema, node, signature.where)
    sema.set_place(node.span)
    if sema.path is not None and not _is_plain(sema, name):
        sema.lose_path()
    return BUILTINS[name](sema, node, expected)


_PLAIN: Final = frozenset(
    (
        *("as", "bitcast", "zeros", "constants", "dimensions", "rank", "element_type"),
        *("element_count", "range", "range_start", "range_stop", "range_step", "strcat", "strlen"),
        *("get_array", "get_string_from_byte", "comptime_assert", "assert", "type_of", "fp16"),
        *("is_same_type", "is_arch", "is_comptime", "has_field", "field", "concat_structs"),
        *("get_int", "openwafer_type_kind", "openwafer_type_size", "openwafer_math"),
    )
)
"""What does nothing but give a value of its arguments."""


def _is_plain(sema: Sema, name: str) -> bool:
    """Whether a path may have the builtin in it."""
    return name in _PLAIN and (name != "type_of" or sema.context.builder is None)


def check_number(
    sema: Sema, call: ast.BuiltinCall, counts: Sequence[int], help: str = ""
) -> tuple[ast.Expression, ...]:
    """The arguments, of which there must be one of `counts`."""
    number = len(call.arguments)
    if number not in counts:
        *others, most = counts
        expected = " or ".join((*map(str, others), counted(most, "argument")))
        message = f"'@{call.name.text}' expects {expected}, {number} provided"
        sema.fail("wrong-count", message, call.span, help=help)
    return call.arguments


def _check_where(sema: Sema, call: ast.BuiltinCall, where: Where) -> None:
    name = call.name.text
    if where is Where.LAYOUT and sema.layout is None:
        message = f"@{name} is for the layout block"
        sema.fail("not-in-layout", message, call.span, help="move it into layout { ... }")
    if where is Where.START and (not sema.is_comptime or sema.layout is not None):
        message = f"@{name} is for the comptime block at the top of a file"
        sema.fail("not-top-level", message, call.span, help="move it into comptime { ... }")
    if where is Where.CODE and sema.is_comptime:
        message = f"@{name} cannot run at compile time"
        sema.fail("not-comptime", message, call.span, help="call it in a function or task")
