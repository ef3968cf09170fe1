"""Object code of LLVM text for the processor at hand, kept on disk.

Format of the files: docs/formats/openwafer-native-cache.md.
"""

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import llvmlite
from llvmlite import binding as llvm

from openwafer.atomic_file import write_bytes

_FORMAT: Final = "openwafer-native-cache"
# A change of `compile_text` needs another version, as old files would be taken for its work.
_VERSION: Final = 1
_DIGEST_BYTES: Final = 32
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


@cache
def this_host() -> Host:
    """The processor that this process runs on."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return Host(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def cache_folder() -> Path:
    """``OPENWAFER_CACHE``, or ``openwafer`` in the user's cache folder; ``native`` inside of it."""
    chosen = os.environ.get("OPENWAFER_CACHE")
    if chosen:
        return Path(chosen) / "native"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "openwafer" / "native"


def object_code(text: str, host: Host, *, optimization: int) -> bytes:
    """Machine code of an LLVM module, from the cache when it is there.

    Args:
        text: LLVM text.
        host: the processor.
        optimization: 0 none, 1 light, 2 and 3 as LLVM counts.
    """
    processor = llvmlite.__version__, host.cpu, host.features
    key = f"{_FORMAT} {_VERSION}", *processor, str(optimization), text
    name = hashlib.sha256("\0".join(key).encode()).hexdigest()
    path = cache_folder() / name[:2] / f"{name}.o"
    stored = path.read_bytes() if path.exists() else b""
    code = stored[_DIGEST_BYTES:]
    if stored and hashlib.sha256(code).digest() == stored[:_DIGEST_BYTES]:
        return code
    code = compile_text(text, host, optimization=optimization)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, hashlib.sha256(code).digest() + code)
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
