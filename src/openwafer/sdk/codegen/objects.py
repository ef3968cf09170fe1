"""Object code of LLVM text for the processor at hand."""

import functools
from dataclasses import dataclass
from typing import Final

import llvmlite
from llvmlite import binding as llvm

from openwafer.sdk.codegen import cache

_FULL: Final = 2
"""The lowest level that runs LLVM's own choice of passes."""


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
        optimization: 0 none, 1 light, 2 and 3 as LLVM counts.
    """

    text: str
    host: Host
    optimization: int

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return cache.key_of(*self.host.names, str(self.optimization), self.text)


def object_code(recipe: Recipe) -> bytes:
    """Machine code, from the cache when it is there."""
    code = cache.read(recipe.key, cache.OBJECT)
    if code is None:
        code = compile_text(recipe.text, recipe.host, optimization=recipe.optimization)
        cache.keep(recipe.key, cache.OBJECT, code)
    return code


def compile_text(text: str, host: Host, *, optimization: int) -> bytes:
    """Machine code of an LLVM module, without the cache; the module is verified."""
    module = llvm.parse_assembly(text)
    module.verify()
    machine = target_machine(host, optimization=0 if optimization < _FULL else optimization)
    options = llvm.create_pipeline_tuning_options(speed_level=optimization)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    if optimization >= _FULL:
        builder.getModulePassManager().run(module, builder)
    elif optimization:
        _light_passes().run(module, builder)
    return bytes(machine.emit_object(module))


def _light_passes() -> llvm.ModulePassManager:
    """Scalar code as fast as all of LLVM's passes make it, in a sixth of their time."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    for _ in range(2):
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_loop_rotate_pass()
    return passes


def target_machine(host: Host, *, optimization: int) -> llvm.TargetMachine:
    """LLVM's description of the processor."""
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=host.cpu,
        features=host.features,
        opt=optimization,
        reloc="pic",
        codemodel="small",
        jit=True,
    )
