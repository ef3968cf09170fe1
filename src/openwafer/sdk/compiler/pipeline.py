"""The stages in order: layout and images, checks of the intermediate code, native code."""

from pathlib import Path

from openwafer import json_files
from openwafer.diagnostics import OpenwaferError, Severity
from openwafer.sdk.codegen.native import compile_images, llvm_text
from openwafer.sdk.compiler import compilations
from openwafer.sdk.compiler.artifacts import compilation_of
from openwafer.sdk.compiler.command_line import Command, Stage
from openwafer.sdk.compiler.compilations import Compilation
from openwafer.sdk.compiler.memory_map import memory_map
from openwafer.sdk.csl.ast import Module
from openwafer.sdk.csl.files import check_file
from openwafer.sdk.csl.imports import ImportPaths, beside_link
from openwafer.sdk.csl.layout import Built, build
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.text import render_module
from openwafer.sdk.ir.verifier import verify
from openwafer.sdk.program.debug_info import FrameTable
from openwafer.sdk.program.program import Program, with_frames


def parse_file(path: Path) -> Module:
    """The tree of one file.

    Raises:
        OpenwaferError: the file is missing, or is no CSL.
    """
    check_file(path)
    module, diagnostics = ImportPaths(path.parent).read(path)
    if errors := [found for found in diagnostics if found.severity is Severity.ERROR]:
        raise OpenwaferError(*errors)
    return module


def compile_files(layout: Path, options: CompileOptions) -> Compilation:
    """The files of a program, made anew and kept for :func:`compilations.find`.

    Raises:
        OpenwaferError: the program is wrong, or a file is missing.
    """
    check_file(layout)
    imports = ImportPaths(beside_link(layout).parent, options.import_paths)
    made = compilation_of(compile_program(layout, options, imports))
    compilations.keep(layout, options, imports.contents, made)
    return made


def compile_program(
    layout: Path, options: CompileOptions, imports: ImportPaths | None = None
) -> Program:
    """Compile a layout file and what it imports.

    Native code is made as well, so that the first run finds it on disk.

    Raises:
        OpenwaferError: the program is wrong, or a file is missing.
    """
    built = _build_verified(layout, options, imports)
    program = built.program
    code = compile_images(program.images, program.arch, modules=built.modules)
    return with_frames(program, json_files.decode(FrameTable, code.frames))


def render_stage(command: Command) -> str:
    """Return what ``--emit`` asks for: the layout file's tree, or code or memory of every image.

    Raises OpenwaferError where the program is wrong.
    """
    if command.emit is Stage.AST:
        return render_module(parse_file(command.layout))
    program = _build_verified(command.layout, command.options).program
    if command.emit is Stage.MEMORY:
        return memory_map(program)
    if command.emit is Stage.LLVM:
        return "\n".join(llvm_text(image, program.arch) for image in program.images)
    return "\n".join(image.code for image in program.images)


def _build_verified(
    layout: Path, options: CompileOptions, imports: ImportPaths | None = None
) -> Built:
    built = build(layout, options, imports)
    for module in built.modules:
        verify(module)
    return built
