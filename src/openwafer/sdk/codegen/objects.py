"""Object code of LLVM text for the processor at hand."""

import functools
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import llvmlite
from llvmlite import binding as llvm

from openwafer.sdk.codegen import cache

_LEVEL: Final = 2


class Effort(IntEnum):
    """What is spent on a module."""

    NONE = 0
    """It is taken as it is written."""
    LIGHT = 1
    """A few passes and quick selection: for code that runs straight through."""
    LOOPS = 2
    """The same passes, and registers kept over branches: scalar loops as fast as LLVM makes them,
    at two thirds of the time."""
    FULL = 3
    """All of LLVM's passes: for loops that gain from vector instructions."""


@dataclass(frozen=True)
class Host:
    """The processor that code is compiled for."""

    cpu: str
    features: str

    @property
    def has_f16(self) -> bool:
        """Whether it converts f16 by itself."""
        return "+f16c" in self.features.split(",")

    @property
    def names(self) -> tuple[str, str, str]:
        """What tells its code apart from that of others: compiler, processor, features."""
        return llvmlite.__version__, self.cpu, self.features


@functools.cache
def this_host() -> Host:
    """The processor that this process runs on."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return Host(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


@dataclass(frozen=True)
class Recipe:
    """What an object file is made of.

    Attributes:
        text: an LLVM module.
        host: the processor.
        effort: what is spent on it.
    """

    text: str
    host: Host
    effort: Effort

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return cache.key_of(*self.host.names, str(self.effort.value), self.text)


def object_code(recipe: Recipe) -> bytes:
    """Machine code, from the cache when it is there."""
    code = cache.read(recipe.key, cache.OBJECT)
    if code is None:
        code = compile_text(recipe.text, recipe.host, recipe.effort)
        cache.keep(recipe.key, cache.OBJECT, code)
    return code


def compile_text(text: str, host: Host, effort: Effort) -> bytes:
    """Machine code of an LLVM module, without the cache; the module is verified."""
    module = llvm.parse_assembly(text)
    module.verify()
    machine = target_machine(host, level=0 if effort < Effort.LOOPS else _LEVEL)
    options = llvm.create_pipeline_tuning_options(speed_level=_LEVEL)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    if effort is Effort.FULL:
        builder.getModulePassManager().run(module, builder)
    elif effort is not Effort.NONE:
        _light_passes().run(module, builder)
    return bytes(machine.emit_object(module))


def _light_passes() -> llvm.ModulePassManager:
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    for _ in range(2):
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_loop_rotate_pass()
    return passes


def target_machine(host: Host, *, level: int) -> llvm.TargetMachine:
    """LLVM's description of the processor; `level` is that of its code generator."""
    target = llvm.Target.from_triple(llvm.get_process_triple())
    # The loader may put code, constants and other objects further apart than 32 bits reach.
    return target.create_target_machine(
        cpu=host.cpu,
        features=host.features,
        opt=level,
        reloc="static",
        codemodel="large",
        jit=True,
    )
