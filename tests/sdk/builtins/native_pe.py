"""Programs of one PE, compiled to native code and run without a fabric."""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import MEMORY_WORDS, Arch
from openwafer.sdk.codegen.native import compile_images
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.image import Image
from openwafer.sdk.program.mailbox import Outcome

BOTH: Final = tuple(Arch)
_LAYOUT: Final = """
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl");
  @export_name("main", fn()void);
}
"""
_RUN: Final = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int32,
)


@dataclass(frozen=True)
class Memory:
    """A PE's memory behind a run."""

    image: Image
    words: NDArray[np.uint16]

    def read(self, name: str, dtype: Any) -> NDArray[Any]:
        """Content of a global, shape as declared."""
        symbol = next(s for s in self.image.symbols if s.name == name)
        words = self.words[symbol.address : symbol.address + symbol.num_words]
        return words.copy().view(np.uint8)[: symbol.num_bytes].view(dtype)


def run(source: str, arch: Arch, fp16_format: str = "f16") -> Memory:
    """Run the function `main` of a program to its end."""
    with TemporaryDirectory() as folder:
        layout = Path(folder, "layout.csl")
        layout.write_text(_LAYOUT, encoding="utf-8")
        text = f"{source}\ncomptime {{ @export_symbol(main); }}\n"
        Path(folder, "pe.csl").write_text(text, encoding="utf-8")
        options = CompileOptions(arch=arch, fp16_format=fp16_format)
        (image,) = build_program(layout, options).images
    code = compile_images([image], arch)
    words = np.zeros(MEMORY_WORDS, np.uint16)
    data = np.frombuffer(image.data, np.uint16)
    words[: data.size] = data
    box = np.zeros(mailbox.MAILBOX_WORDS, np.int64)
    box[mailbox.RANDOM] = mailbox.RANDOM_SEED
    ((_, entry),) = image.exported_functions
    outcome = _RUN(code.run_address)(0, box.ctypes.data, words.ctypes.data, entry, 0)
    assert outcome == Outcome.FINISHED, Outcome(outcome)
    return Memory(image, words)


def literals(bits: NDArray[Any]) -> str:
    """An array's bits as elements of an array of unsigned integers."""
    return ", ".join(str(int(word)) for word in bits.ravel())
