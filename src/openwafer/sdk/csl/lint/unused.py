"""Mistakes in what the files of a program declare and nothing uses.

A name at the top of a file is evaluated when something first asks for it, so a mistake in one that
nothing asks for takes no part in the program. It is a warning. The analysis here is one of its own,
of which nothing else is kept.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity
from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.imports import LIBRARY, PARAMS, ImportPaths
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.recursion import deep_recursion
from openwafer.sdk.csl.sema.functions import function_name, is_generic
from openwafer.sdk.csl.sema.globals import find_global
from openwafer.sdk.csl.sema.image import new_sema
from openwafer.sdk.csl.sema.layout_state import LayoutState, Surroundings
from openwafer.sdk.csl.sema.modules import start_module
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.values import Comptime, FunctionValue, Module

_OF_OTHER_USES: Final = frozenset(
    f"csl-{code}" for code in ("not-comptime", "comptime-only", "run-time-only", "not-top-level")
)
"""What is wrong with a function in one use, and may be right in another."""


def mistakes_in_code(
    path: Path,
    params: dict[str, Comptime],
    options: CompileOptions,
    imports: ImportPaths,
    surroundings: Surroundings,
) -> Iterator[Diagnostic]:
    """Warnings about the code of a PE, once the images of all PEs were analysed."""
    sema = new_sema(path, params, options, imports)
    sema.image.surroundings = surroundings
    sema.image.tables, sema.memo = surroundings.tables, surroundings.memo
    return _mistakes(sema)


def mistakes_in_layout(
    path: Path, params: dict[str, Comptime], options: CompileOptions, imports: ImportPaths
) -> Iterator[Diagnostic]:
    """The same about the file of the layout."""
    return _mistakes(new_sema(path, params, options, imports, LayoutState()))


def _mistakes(sema: Sema) -> Iterator[Diagnostic]:
    used = frozenset(sema.imports.used)
    with deep_recursion():
        start_module(sema, sema.module)
        for module in list(sema.image.modules.values()):
            if module.path.is_relative_to(LIBRARY):
                continue
            _give_up_absent_params(sema, module)
            for name, node in module.declarations.items():
                if (module.path, name) not in used:
                    yield from _mistakes_in(sema, module, node)


def _give_up_absent_params(sema: Sema, module: Module) -> None:
    """What depends on a param without a value is right as long as nothing uses it.

    Programs write ``param p = {};`` for one that an importer may leave out.
    """
    for name, node in module.declarations.items():
        if isinstance(node, ast.Variable) and node.kind in PARAMS:
            with sema.recovering():
                if find_global(sema, module, name, node.span).type == types.VOID:
                    module.globals[name] = None
                    sema.fail("uninitialized", f"param '{name}' has no value", node.span)


def _mistakes_in(sema: Sema, module: Module, node: ast.Declaration) -> Iterator[Diagnostic]:
    assert isinstance(node, ast.Variable | ast.Function)
    # What comptime blocks asked for was found to be right.
    sema.image.pending.clear()
    before = len(sema.diagnostics)
    with sema.recovering():
        _evaluate(sema, module, node)
    while sema.image.pending:
        with sema.recovering():
            sema.image.pending.popleft()()
    for found in sema.diagnostics[before:]:
        if found.severity is Severity.ERROR and found.code not in _OF_OTHER_USES:
            note = f"nothing uses '{node.name.text}', so the program goes without it"
            yield replace(found, severity=Severity.WARNING, notes=(*found.notes, note))


def _evaluate(sema: Sema, module: Module, node: ast.Variable | ast.Function) -> None:
    if isinstance(node, ast.Variable):
        if node.kind not in PARAMS:
            find_global(sema, module, node.name.text, node.span)
        return
    has_body = node.body is not None and not node.is_inline
    if sema.layout is None and has_body and not is_generic(node) and _runs(sema, module, node):
        function_name(sema, FunctionValue(node, module), node.name.span)


def _runs(sema: Sema, module: Module, node: ast.Function) -> bool:
    """Whether a PE could run a function at all; some are for compile time only."""
    written = [p.type for p in node.parameters] + ([] if node.result is None else [node.result])
    with sema.in_module(module):
        try:
            kinds = [sema.type_of_node(one) for one in written]
        except OpenwaferError as error:
            sema.report(error)
            return False
    return not any(map(types.is_comptime_only, kinds))
