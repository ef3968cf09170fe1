"""What a fuzz test does with a text: everything that the compiler does with a file.

Whatever the text is, the end is a program that the verifier accepts, or diagnostics that can be
rendered. Anything else is a crash.
"""

import re
from pathlib import Path

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, render
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.imports import ImportPaths
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.lint.image import linted
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.parser import parse
from openwafer.sdk.csl.sema.image import analyze_image
from openwafer.sdk.csl.text import render_module
from openwafer.sdk.ir import text as ir_text
from openwafer.sdk.ir.verifier import verify
from openwafer.source import SourceText

MAX_STEPS = 5000
"""At compile time, so that a changed bound ends in a diagnostic and not in a long wait."""
_FILE = re.compile(r'"(?:\./)?([\w-]+\.csl)"')
_PARAM = re.compile(r"^param (\w+)\b(?!\s*=)", re.MULTILINE)


def syntax(text: str) -> list[Diagnostic]:
    """Parse a text; when it is right, its printed tree is right, too.

    The printed tree has more parentheses than the text, perhaps too many inside of each other.
    """
    module, diagnostics = parse(SourceText("fuzz.csl", text))
    if not diagnostics:
        again = parse(SourceText("printed.csl", render_module(module)))[1]
        wrong = [found for found in again if found.code != "csl-too-deep"]
        assert not wrong, f"the printed tree does not parse: {render(wrong[0])}"
    return list(diagnostics)


def sema(text: str, arch: Arch) -> list[Diagnostic]:
    """Analyse a text as the code of a PE and verify what comes out."""
    path = Path("/program/fuzz.csl")
    imports = ImportPaths(path.parent)
    imports.parsed[path] = parse(SourceText("fuzz.csl", text))
    options = CompileOptions(arch=arch, comptime_step_limit=MAX_STEPS)
    try:
        result = linted(analyze_image(path, {}, options, imports), arch)
        verify(result.module)
    except OpenwaferError as error:
        return _without_faults(error)
    return list(result.warnings)


def layout(folder: Path, text: str, arch: Arch) -> list[Diagnostic]:
    """Compile a whole program in a folder; files that the layout names are there and empty."""
    (folder / "layout.csl").write_text(text, "utf-8", "replace")
    for name in {"pe.csl", *_FILE.findall(text)} - {"layout.csl"}:
        (folder / name).write_text("", "utf-8")
    options = CompileOptions(
        arch=arch,
        is_memcpy=True,
        params=tuple((name, "3") for name in dict.fromkeys(_PARAM.findall(text))),
        comptime_step_limit=MAX_STEPS,
    )
    try:
        for image in build_program(folder / "layout.csl", options).images:
            verify(ir_text.parse(image.code, image.name))
    except OpenwaferError as error:
        return _without_faults(error)
    return []


def _without_faults(error: OpenwaferError) -> list[Diagnostic]:
    """Only what is wrong with the text; a wrong program behind a right text is our own fault."""
    assert not any(found.code.startswith("ir-") for found in error.diagnostics), str(error)
    assert any(found.severity is Severity.ERROR for found in error.diagnostics)
    return list(error.diagnostics)


def codes_of(folder: Path, text: str, arch: Arch) -> frozenset[str]:
    """Do it all, and give the codes of what was found."""
    found = syntax(text)
    if not found:
        found = layout(folder, text, arch) if "layout {" in text else sema(text, arch)
    for diagnostic in found:
        render(diagnostic)
    return frozenset(diagnostic.code for diagnostic in found)
