"""Imports of files, and what a file does when it is imported."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, suggestion
from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.imports import ImportPaths, display_name, module_name
from openwafer.sdk.csl.sema.globals import find_global
from openwafer.sdk.csl.sema.linking import note_definitions
from openwafer.sdk.csl.sema.sema import Sema, builtin
from openwafer.sdk.csl.sema.statements import recovered
from openwafer.sdk.csl.types import Type
from openwafer.sdk.csl.values import Comptime, Module, Operand
from openwafer.source import Span

_MOST_NAMED: Final = 8
"""Params of a file that are named."""
_MOST_OF_A_FILE: Final = 64
"""How often a file may stand among its own importers, each time with other params."""


def read_module(
    imports: ImportPaths, path: Path, prefix: str, params: dict[str, Comptime]
) -> tuple[Module, tuple[Diagnostic, ...]]:
    """A module whose names are known and not yet evaluated, and what is wrong with the file."""
    tree, findings = imports.read(path)
    module = Module(path, tree, prefix, params)
    again: list[Diagnostic] = []
    for node in tree.declarations:
        if isinstance(node, ast.Variable | ast.Function):
            name = node.name.text
            if name in module.declarations:
                again.append(_redeclared(node, module.declarations[name]))
            module.declarations[name] = node
    return module, (*findings, *again)


def _redeclared(node: ast.Variable | ast.Function, first: ast.Declaration) -> Diagnostic:
    line = first.span.source.position(first.span.start).line
    return Diagnostic(
        Severity.ERROR,
        "csl-redeclared",
        f"redeclaration of '{node.name.text}'",
        node.name.span,
        (f"it was declared first in line {line}",),
        "give one of them another name",
    )


def start_module(sema: Sema, module: Module) -> None:
    """Import what the file imports, make its FIFOs, and run its comptime blocks."""
    sema.unrecorded().modules[module.prefix] = module
    note_definitions(sema, module)
    for node in module.tree.declarations:
        if _acts(node):
            assert isinstance(node, ast.Variable)
            with sema.recovering():
                find_global(sema, module, node.name.text, node.span)
    if sema.layout is not None:
        return
    for node in module.tree.declarations:
        if isinstance(node, ast.ComptimeBlock):
            run_block(sema, module, node.body)
        elif isinstance(node, ast.Variable) and node.storage is ast.Storage.EXPORT:
            with sema.recovering():
                find_global(sema, module, node.name.text, node.span)


def _acts(node: ast.Declaration) -> bool:
    """Whether a global does more than to give a value: nobody has to ask for it."""
    if not isinstance(node, ast.Variable) or node.initializer is None:
        return False
    text = node.initializer.span.text
    names_register = text.startswith("@allocate_fifo") and (".dest" in text or ".src" in text)
    return "@import_module" in text or names_register


def run_block(sema: Sema, module: Module, block: ast.Block) -> None:
    """Run a top-level block; an error ends one statement."""
    with sema.in_module(module) as context:
        context.is_top_level = True
        for statement in block.statements:
            recovered(sema, statement)


def warn_of_unknown_params(
    sema: Sema, path: Path, params: Iterable[str], giver: ast.Expression | None
) -> None:
    """Warn of params that a file is given and does not declare.

    Args:
        sema: the analysis of who gives them.
        path: of the file.
        params: their names.
        giver: what gives them, as written; None is the command line.
    """
    known = sema.imports.params(path)
    unknown = [name for name in params if name not in known]
    # Layouts give each of their PEs its params, by a call each.
    if not unknown:
        return
    more = [f"and {len(known) - _MOST_NAMED} more"] * (len(known) > _MOST_NAMED)
    listed = ", ".join([*islice(known, _MOST_NAMED), *more]) or "none"
    for name in unknown:
        given = ", which the command line gives" if giver is None else ""
        span = None if giver is None else _span_of_field(giver, name)
        remedy = suggestion(name, known) or f"declare it there with 'param {name};'"
        message = f"'{module_name(path)}' has no param '{name}'{given}"
        sema.warn("unknown-param", message, span, f"{remedy} (its params: {listed})")


def _span_of_field(giver: ast.Expression, name: str) -> Span:
    """Where a struct names a field; all of it where that is not written there."""
    fields = giver.fields if isinstance(giver, ast.StructInit) else ()
    return next((field.name.span for field in fields if field.name.text == name), giver.span)


@builtin("import_module")
def _import_module(sema: Sema, call: ast.BuiltinCall, _expected: Type | None) -> Operand:
    if not sema.context.declaring:
        sema.fail(
            "import-place",
            "'@import_module' must initialize a global 'const'",
            call.span,
        )
    params: dict[str, Comptime] = {}
    if len(call.arguments) == 2:
        struct = sema.comptime_value(call.arguments[1])
        given = sema.fields(struct, call.arguments[1].span)
        params = {name: sema.known(value, call.span) for name, value in given.items()}
    name = sema.string(call.arguments[0])
    path = sema.imports.find(name, sema.module.path, call.arguments[0].span)
    warn_of_unknown_params(sema, path, params, call.arguments[-1])
    prefix = f"{sema.module.prefix}{sema.context.declaring}."
    _refuse_cycle(sema, path, params, call.arguments[0].span)
    module, findings = read_module(sema.imports, path, prefix, params)
    if any(found.severity is Severity.ERROR for found in findings):
        raise OpenwaferError(*findings)
    start_module(sema, module)
    return Comptime(types.IMPORTED_MODULE, module)


def _refuse_cycle(sema: Sema, path: Path, params: dict[str, Comptime], span: Span) -> None:
    """Refuse a file that is being imported already; with other params it may come to an end."""
    prefix = sema.module.prefix
    modules = sorted(sema.unrecorded().modules.values(), key=lambda module: len(module.prefix))
    chain = [module for module in modules if prefix.startswith(module.prefix)]
    same = [at for at, module in enumerate(chain) if module.path == path]
    equal = [at for at in same if chain[at].params == params]
    if equal or len(same) >= _MOST_OF_A_FILE:
        depth = "" if equal else f" {len(same)} times, each time with other params"
        since = (equal or same)[-1]
        cycle = [*(display_name(module.path) for module in chain[since:]), display_name(path)]
        sema.fail(
            "import-cycle",
            f"'{path.name}' imports itself{depth}",
            span,
            notes=(" imports ".join(cycle),),
            help="move what both files need into a third one",
        )
