"""Native code of the images of a program, loaded into this process."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from llvmlite import binding as llvm

from openwafer import json_files
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.codegen import cache
from openwafer.sdk.codegen.modules import ImageKind, ModuleText, element_text, module_text
from openwafer.sdk.codegen.objects import (
    Effort,
    Host,
    Recipe,
    compile_text,
    object_code,
    target_machine,
    this_host,
)
from openwafer.sdk.codegen.sharing import ProgramText, Way, program_text
from openwafer.sdk.ir import text as ir_text
from openwafer.sdk.ir.checks import Depth
from openwafer.sdk.ir.function import Module
from openwafer.sdk.ir.order import reach_of
from openwafer.sdk.program.debug_info import FrameInfo, FrameTable
from openwafer.sdk.program.image import Image, TaskKind
from openwafer.sdk.program.sources import source_digest


@dataclass(frozen=True)
class NativeCode:
    """Two native functions by address, as :mod:`openwafer.sdk.program.mailbox` describes them.

    The addresses are valid as long as this object lives. `frames` is JSON of a :class:`FrameTable`.
    """

    run_address: int
    element_address: int
    frames: bytes = field(repr=False)
    _libraries: tuple[llvm.ResourceTracker, ...] = field(repr=False)


@dataclass(frozen=True)
class _Linker:
    """Loads libraries under names of their own."""

    jit: llvm.LLJIT
    names: list[str] = field(default_factory=list)

    def load(self, objects: Sequence[bytes], symbols: Iterable[str]) -> llvm.ResourceTracker:
        self.names.append(f"library{len(self.names)}")
        builder = llvm.JITLibraryBuilder()
        for code in objects:
            builder.add_object_img(code)
        builder.add_current_process()
        for symbol in symbols:
            builder.export_symbol(symbol)
        return builder.link(self.jit, self.names[-1])


@functools.cache
def _linker() -> _Linker:
    return _Linker(llvm.create_lljit_compiler(target_machine(this_host(), level=0)))


def llvm_text(image: Image, arch: Arch) -> str:
    """LLVM text of an image's code and of its vector operations, for this host."""
    kind = ImageKind(entry_splits(image), reach_of(image))
    module = _module_text(ir_text.parse(image.code), kind, arch, this_host())
    text = program_text([module])
    return "\n".join([text.straight, text.loops, *text.kernels])


def entry_splits(image: Image) -> tuple[bool, ...]:
    """By entry: whether its arguments are parts of one wavelet's 32 bits, as a data task's are."""
    by_wavelet = {task.entry for task in image.tasks if task.kind is not TaskKind.LOCAL}
    return tuple(number in by_wavelet for number in range(len(image.entries)))


def compile_images(
    images: Sequence[Image],
    arch: Arch,
    *,
    modules: Sequence[Module] = (),
    depth: Depth = Depth.PLAIN,
    counts: bool = False,
    statements: Sequence[int] = (),
) -> NativeCode:
    """Compile and load the code of a program's images.

    Args:
        images: in the order of their numbers.
        arch: whose time is counted.
        modules: of the images' code, where they are at hand.
        depth: how closely code is looked at.
        counts: whether it counts in the PEs' counters.
        statements: of all places, where code can be stopped before each statement
            (:mod:`openwafer.sdk.ir.stepped`).
    """
    host = this_host()
    kinds = [ImageKind(entry_splits(image), reach_of(image), depth, counts) for image in images]
    kind = str(kinds) + (f" {statements}" if statements else "")
    effort = Effort.LIGHT
    texts = arch, str(effort.value), kind, *(image.code for image in images)
    key = cache.key_of(source_digest("arch", "program", "ir", "codegen"), *host.names, *texts)
    found = _stored(key)
    if found is None:
        parsed = modules or [ir_text.parse(image.code) for image in images]
        found = _made(parsed, kinds, arch, effort, host, statements)
        listed = [" ".join(found.keys), *(f"{way.run} {way.links}" for way in found.ways)]
        cache.keep(key, cache.FRAMES, found.frames)
        cache.keep(key, cache.LIST, "\n".join(listed).encode())
    return _load(found, host)


def compile_modules(
    modules: Sequence[Module],
    splits_wavelet: Sequence[Sequence[bool]],
    arch: Arch,
    *,
    effort: Effort = Effort.LIGHT,
    host: Host | None = None,
    counts: bool = False,
) -> NativeCode:
    """Compile and load verified modules; see :func:`compile_images`.

    Args:
        modules: in the order of their numbers.
        splits_wavelet: of each module, by entry: whether its arguments are parts of one wavelet.
        arch: whose time is counted.
        effort: spent on code without loops; code with loops takes more.
        host: a processor whose code this one runs; this one itself when absent.
        counts: whether code counts in the PEs' counters.
    """
    host = host or this_host()
    kinds = [ImageKind(tuple(splits), counts=counts) for splits in splits_wavelet]
    return _load(_made(modules, kinds, arch, effort, host), host)


@dataclass(frozen=True)
class _Objects:
    """Object files of a program.

    Attributes:
        codes: their content.
        keys: their names in the cache.
        ways: into each image.
        frames: JSON of a :class:`FrameTable`.
    """

    codes: tuple[bytes, ...]
    keys: tuple[str, ...]
    ways: tuple[Way, ...]
    frames: bytes


def _stored(key: str) -> _Objects | None:
    """What was compiled before, without a look at any code."""
    listed, frames = cache.read(key, cache.LIST), cache.read(key, cache.FRAMES)
    if listed is None or frames is None:
        return None
    first, *lines = listed.decode().split("\n")
    keys = tuple(first.split())
    codes = tuple(code for name in keys if (code := cache.read(name, cache.OBJECT)) is not None)
    ways = tuple(Way(*line.split(" ")) for line in lines)
    return _Objects(codes, keys, ways, frames) if len(codes) == len(keys) else None


def _made(
    modules: Sequence[Module],
    kinds: Sequence[ImageKind],
    arch: Arch,
    effort: Effort,
    host: Host,
    statements: Sequence[int] = (),
) -> _Objects:
    both = zip(modules, kinds, strict=True)
    texts = [_module_text(module, kind, arch, host, statements) for module, kind in both]
    text = program_text(texts)
    recipes = _recipes(text, effort, host)
    codes, keys = tuple(map(object_code, recipes)), tuple(recipe.key for recipe in recipes)
    return _Objects(codes, keys, text.ways, json_files.encode(_frame_table(texts)))


def _frame_table(texts: Sequence[ModuleText]) -> FrameTable:
    numbers: dict[FrameInfo, int] = {}
    images = (
        tuple(numbers.setdefault(frame, len(numbers)) for frame in text.frames) for text in texts
    )
    return FrameTable(images=tuple(images), frames=tuple(numbers))


def _recipes(text: ProgramText, effort: Effort, host: Host) -> list[Recipe]:
    loops = max(effort, Effort.LOOPS) if effort else effort
    kernels = (Recipe(kernel, host, Effort.FULL) for kernel in text.kernels)
    return [Recipe(text.straight, host, effort), Recipe(text.loops, host, loops), *kernels]


def _load(program: _Objects, host: Host) -> NativeCode:
    symbols = dict.fromkeys(name for way in program.ways for name in (way.run, way.links) if name)
    images = _linker().load(program.codes, symbols)
    ways = [(images[way.run], images[way.links] if way.links else 0) for way in program.ways]
    element_recipe = Recipe(element_text(has_f16=host.has_f16), host, Effort.FULL)
    element = _linker().load([object_code(element_recipe)], ["element"])
    code = compile_text(_dispatch_text(ways), host, Effort.NONE)
    run = _linker().load([code], ["run"])
    addresses = run["run"], element["element"]
    return NativeCode(*addresses, program.frames, (images, element, run))


def _module_text(
    module: Module, kind: ImageKind, arch: Arch, host: Host, statements: Sequence[int] = ()
) -> ModuleText:
    generation = GENERATIONS[arch]
    return module_text(module, kind, generation, has_f16=host.has_f16, statements=statements)


def _dispatch_text(ways: Sequence[tuple[int, int]]) -> str:
    """``run``: the way to the image of a number, which must be one of the program's.

    `ways` are addresses: of the function that runs the image's entries, and of its links.
    """
    table = ", ".join(f"[2 x i64] [i64 {run}, i64 {links}]" for run, links in ways)
    kind = f"[{len(ways)} x [2 x i64]]"
    return f"""\
@table = internal constant {kind} [{table}]
define i32 @run(i32 %image, ptr %mailbox, ptr %memory, i32 %entry, i32 %is_resume) nounwind {{
  %index = zext i32 %image to i64
  %run_place = getelementptr {kind}, ptr @table, i64 0, i64 %index, i64 0
  %run_address = load i64, ptr %run_place
  %target = inttoptr i64 %run_address to ptr
  %links_place = getelementptr {kind}, ptr @table, i64 0, i64 %index, i64 1
  %links_address = load i64, ptr %links_place
  %links = inttoptr i64 %links_address to ptr
  %outcome = call i32 %target(ptr %mailbox, ptr %memory, ptr %links, i32 %entry, i32 %is_resume)
  ret i32 %outcome
}}
"""
