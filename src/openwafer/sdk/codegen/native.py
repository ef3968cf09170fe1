"""Native code of the images of a program, loaded into this process."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from llvmlite import binding as llvm

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.codegen.modules import RUN, ModuleText, element_text, module_text
from openwafer.sdk.codegen.objects import Host, compile_text, object_code, target_machine, this_host
from openwafer.sdk.ir import text as ir_text
from openwafer.sdk.ir.function import Module
from openwafer.sdk.program.image import Image, TaskKind


@dataclass(frozen=True)
class NativeCode:
    """Two native functions by address, as :mod:`openwafer.sdk.program.mailbox` describes them.

    The addresses are valid as long as this object lives.
    """

    run_address: int
    element_address: int
    _libraries: tuple[llvm.ResourceTracker, ...] = field(repr=False)


@dataclass(frozen=True)
class _Linker:
    """Loads libraries under names of their own."""

    jit: llvm.LLJIT
    names: list[str] = field(default_factory=list)

    def load(self, objects: Sequence[bytes], symbol: str) -> llvm.ResourceTracker:
        self.names.append(f"library{len(self.names)}")
        builder = llvm.JITLibraryBuilder()
        for code in objects:
            builder.add_object_img(code)
        builder.add_current_process().export_symbol(symbol)
        return builder.link(self.jit, self.names[-1])


@cache
def _linker() -> _Linker:
    return _Linker(llvm.create_lljit_compiler(target_machine(this_host(), optimization=2)))


def llvm_text(image: Image, arch: Arch) -> str:
    """LLVM text of an image's code and of its vector operations, for this host."""
    text = _module_text(ir_text.parse(image.code), entry_splits(image), arch, this_host())
    return "\n".join([text.code, *text.kernels])


def entry_splits(image: Image) -> tuple[bool, ...]:
    """By entry: whether its arguments are parts of one wavelet's 32 bits, as a data task's are."""
    by_wavelet = {task.entry for task in image.tasks if task.kind is not TaskKind.LOCAL}
    return tuple(number in by_wavelet for number in range(len(image.entries)))


def compile_images(images: Sequence[Image], arch: Arch, *, optimization: int = 1) -> NativeCode:
    """Compile and load the code of a program's images.

    Args:
        images: in the order of their numbers.
        arch: whose time is counted.
        optimization: of scalar code; see :func:`~openwafer.sdk.codegen.objects.object_code`.
    """
    modules = [ir_text.parse(image.code) for image in images]
    return compile_modules(
        modules, [entry_splits(image) for image in images], arch, optimization=optimization
    )


def compile_modules(
    modules: Sequence[Module],
    splits_wavelet: Sequence[Sequence[bool]],
    arch: Arch,
    *,
    optimization: int = 1,
    host: Host | None = None,
) -> NativeCode:
    """Compile and load verified modules; see :func:`compile_images`.

    Args:
        modules: in the order of their numbers.
        splits_wavelet: of each module, by entry: whether its arguments are parts of one wavelet.
        arch: whose time is counted.
        optimization: of scalar code; see :func:`~openwafer.sdk.codegen.objects.object_code`.
        host: a processor whose code this one runs; this one itself when absent.
    """
    host = host or this_host()
    loaded: dict[ModuleText, llvm.ResourceTracker] = {}
    addresses = []
    for module, splits in zip(modules, splits_wavelet, strict=True):
        text = _module_text(module, splits, arch, host)
        if text not in loaded:
            code = object_code(text.code, host, optimization=optimization)
            kernels = (object_code(kernel, host, optimization=2) for kernel in text.kernels)
            loaded[text] = _linker().load([code, *kernels], RUN)
        addresses.append(loaded[text][RUN])
    code = object_code(element_text(has_f16=host.has_f16), host, optimization=2)
    element = _linker().load([code], "element")
    code = compile_text(_dispatch_text(addresses), host, optimization=0)
    run = _linker().load([code], "run")
    libraries = (*loaded.values(), element, run)
    return NativeCode(run["run"], element["element"], libraries)


def _module_text(module: Module, splits: Sequence[bool], arch: Arch, host: Host) -> ModuleText:
    return module_text(module, splits, GENERATIONS[arch], has_f16=host.has_f16)


def _dispatch_text(addresses: Sequence[int]) -> str:
    """``run``: the way to the image of a number, which must be one of the program's."""
    table = ", ".join(f"i64 {address}" for address in addresses)
    return f"""\
@table = internal constant [{len(addresses)} x i64] [{table}]
define i32 @run(i32 %image, ptr %mailbox, ptr %memory, i32 %entry, i32 %is_resume) nounwind {{
  %index = zext i32 %image to i64
  %place = getelementptr [{len(addresses)} x i64], ptr @table, i64 0, i64 %index
  %address = load i64, ptr %place
  %target = inttoptr i64 %address to ptr
  %outcome = call i32 %target(ptr %mailbox, ptr %memory, i32 %entry, i32 %is_resume)
  ret i32 %outcome
}}
"""
