"""Analysis of one image: from a file and its params to a module of the IR."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity
from openwafer.sdk.arch.generation import MEMORY_WORDS
from openwafer.sdk.csl import ast
from openwafer.sdk.csl.imports import ImportPaths
from openwafer.sdk.csl.lanes import Group
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.recursion import deep_recursion
from openwafer.sdk.csl.sema.calls import call_function
from openwafer.sdk.csl.sema.evaluators import EVALUATORS
from openwafer.sdk.csl.sema.functions import function_name
from openwafer.sdk.csl.sema.globals import find_global
from openwafer.sdk.csl.sema.image_names import names_of
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.sema.layout_state import LayoutState, MemoryPlan, Rectangle, Surroundings
from openwafer.sdk.csl.sema.memory_plan import memory_plan
from openwafer.sdk.csl.sema.modules import (
    read_module,
    run_block,
    start_module,
    warn_of_unknown_params,
)
from openwafer.sdk.csl.sema.sema import Sema
from openwafer.sdk.csl.types import num_words
from openwafer.sdk.csl.values import Comptime
from openwafer.sdk.ir import function as ir
from openwafer.sdk.ir.folding import folded
from openwafer.sdk.program.debug_info import ImageNames

# A parameter stands for a constant, which is part of the instruction that uses it.
_NO_CODE: Final = frozenset(("parameter", "show"))
# Importing them registers what the engine evaluates.
assert EVALUATORS


@dataclass(frozen=True)
class ImageResult:
    """An image as far as the analysis of its source goes.

    Attributes:
        module: verified by nobody yet.
        state: the machine's start-up state and everything exported.
        code_words: estimate of the machine code's length.
        names: what the source calls things.
        warnings: what is hardly meant.
        printed: lines of `@comptime_print`.
    """

    module: ir.Module
    state: ImageState
    code_words: int
    names: ImageNames
    warnings: tuple[Diagnostic, ...]
    printed: tuple[str, ...]


def new_sema(
    path: Path,
    params: dict[str, Comptime],
    options: CompileOptions,
    imports: ImportPaths,
    layout: LayoutState | None = None,
    group: Group | None = None,
) -> Sema:
    """An analysis whose root module has been read.

    Raises:
        OpenwaferError: the file is not CSL.
    """
    root, findings = read_module(imports, path, "", params)
    if any(found.severity is Severity.ERROR for found in findings):
        raise OpenwaferError(*findings)
    state = ImageState(ir.Module(path.name, 0, MEMORY_WORDS))
    sema = Sema(options, state, root, imports, layout, group)
    sema.find_global = lambda module, name, span: find_global(sema, module, name, span)
    sema.name_function = lambda function, span: function_name(sema, function, span)
    sema.call = lambda function, operands, span: call_function(
        sema, function, [sema.load(o, span) for o in operands], span
    )
    return sema


def analyze_image(
    path: Path,
    params: dict[str, Comptime],
    options: CompileOptions,
    imports: ImportPaths | None = None,
    surroundings: Surroundings | None = None,
    group: Group | None = None,
) -> ImageResult:
    """Analyse the code of one PE, or of many whose params differ in numbers.

    Args:
        path: the source file.
        params: values of its params.
        options: of the compilation.
        imports: shared by the images of a program, so that each file is read once.
        surroundings: the layout that the image is for; None for a file compiled alone.
        group: the PEs, as lanes of the params; those that left it have another image.

    Raises:
        OpenwaferError: every error found.
    """
    paths = imports or ImportPaths(path.parent, options.import_paths)

    shared = surroundings or Surroundings(Rectangle((1, 1), (1, 1), (0, 0)), {})

    def analyzed(plan: MemoryPlan | None) -> Sema:
        sema = new_sema(path, params, options, paths, group=group)
        sema.image.surroundings = surroundings
        sema.image.tables, sema.memo = shared.tables, shared.memo
        if plan is not None:
            sema.image.planned, sema.image.next_address = plan.addresses, plan.end
        _analyze(sema)
        return sema

    # Only the whole analysis tells which variables there are, and known descriptors hold addresses.
    # Most images of a file have the same variables, so that the plan of the last one fits.
    sema = analyzed(shared.plans.get(path))
    plan = memory_plan(sema.image)
    if plan.addresses != sema.image.addresses():
        sema = analyzed(plan)
    shared.plans[path] = plan
    return _assembled(sema)


def _analyze(sema: Sema) -> None:
    with deep_recursion():
        start_module(sema, sema.module)
        while sema.image.pending:
            sema.image.pending.popleft()()
    _raise_errors(sema)


def run_layout(
    path: Path,
    params: dict[str, Comptime],
    options: CompileOptions,
    imports: ImportPaths,
    layout: LayoutState,
) -> tuple[Diagnostic, ...]:
    """Run the layout block of a file; the builtins fill `layout`. Gives the warnings.

    Raises:
        OpenwaferError: every error found, or there is no layout block.
    """
    sema = new_sema(path, params, options, imports, layout)
    sema.image.tables = layout.tables
    blocks = [d for d in sema.module.tree.declarations if isinstance(d, ast.LayoutBlock)]
    if not blocks:
        message = f"'{path.name}' has no layout block"
        raise OpenwaferError(Diagnostic(Severity.ERROR, "csl-no-layout", message))
    with deep_recursion():
        warn_of_unknown_params(sema, path, params, None)
        start_module(sema, sema.module)
        for block in blocks:
            run_block(sema, sema.module, block.body)
    layout.printed.extend(sema.printed)
    _raise_errors(sema)
    layout.constants = names_of(sema).variables
    return tuple(sema.diagnostics)


def _raise_errors(sema: Sema) -> None:
    if sema.has_errors:
        raise OpenwaferError(*sema.diagnostics)


def _assembled(sema: Sema) -> ImageResult:
    state = sema.image
    state.module.globals = state.globals()
    state.module.stack_base = state.next_address
    if state.surroundings is not None:
        state.surroundings.note(state.machine)
    module = folded(state.module)
    functions = module.functions.values()
    code_words = sum(one.op not in _NO_CODE for every in functions for one in every.instructions)
    _check_memory(state, module, code_words)
    module.places = state.tables.places
    module.stack_base = state.next_address + code_words
    module.entries = [entry.function for entry in state.entries]
    names = names_of(sema)
    return ImageResult(
        module, state, code_words, names, tuple(sema.diagnostics), tuple(sema.printed)
    )


def _check_memory(state: ImageState, module: ir.Module, code_words: int) -> None:
    if code_words <= state.free_words:
        return
    data = 2 * state.next_address
    largest = sorted(state.variables.values(), key=lambda v: -num_words(v.type))[:3]
    raise OpenwaferError(
        Diagnostic(
            Severity.ERROR,
            "csl-memory",
            f"ld.lld: ran out of PE memory in '{module.name}'",
            notes=(
                f"data takes {data}, code about {2 * code_words} of {2 * MEMORY_WORDS} bytes",
                "largest variables: " + ", ".join(f"{v.name} ({v.type})" for v in largest),
            ),
            help="make arrays smaller, or spread the data over more PEs",
        )
    )
