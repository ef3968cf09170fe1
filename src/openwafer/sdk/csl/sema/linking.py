"""`extern` declarations and the `export` definitions that they stand for, within one image."""

from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import FunctionValue, Module
from openwafer.source import Span


def link_name(sema: Sema, node: ast.Variable | ast.Function) -> str:
    """Name that a declaration and its definition have in common."""
    name = node.attributes.linkname
    return node.name.text if name is None else sema.string(name)


def note_definitions(sema: Sema, module: Module) -> None:
    """Remember what a module exports."""
    for node in module.declarations.values():
        if isinstance(node, ast.Variable | ast.Function) and node.storage is ast.Storage.EXPORT:
            with sema.in_module(module):
                sema.unrecorded().definitions.setdefault(link_name(sema, node), (module, node))


def defined_function(sema: Sema, function: FunctionValue, span: Span) -> FunctionValue:
    """The function itself, or for an extern one the exported function of its name."""
    node = function.declaration
    if node.body is not None:
        return function
    with sema.in_module(function.module):
        name = link_name(sema, node)
    module, definition = sema.unrecorded().definitions.get(name, (None, None))
    if module is None or not isinstance(definition, ast.Function):
        sema.fail(
            "extern-function",
            f"extern function '{function}' has no definition to link with",
            span,
            help=f"write 'export fn {name}' in a file of this program",
        )
    return FunctionValue(definition, module)


def check_linked(sema: Sema, name: str, declared: Type, defined: Type, span: Span) -> None:
    """Report a declaration of another type than its definition."""
    if declared != defined:
        sema.fail(
            "extern-type",
            f"'{name}' is declared extern with type '{declared}' and defined with type '{defined}'",
            span,
            help="declare it with the type of its definition",
        )


def check_abi(sema: Sema, kind: Type, what: str, span: Span) -> None:
    """Refuse an integer of a width that only this program knows, where others look at it."""
    if types.spare_bits(kind):
        sema.fail(
            "odd-width",
            f"{what} has a width of 8, 16, 32 or 64 bits, '{kind}' has not",
            span,
            help="keep narrower integers in a packed struct, or widen it with @as",
        )
