"""Programs of one PE: compiled from CSL, looked at, and run by the reference interpreter."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import MEMORY_WORDS, WSE2, Arch
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.ir.interpreter import Interpreter
from openwafer.sdk.ir.text import parse
from openwafer.sdk.ir.verifier import verify
from openwafer.sdk.program import mailbox
from openwafer.sdk.program.image import Image
from openwafer.sdk.program.mailbox import Outcome

LAYOUT = 'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl"); EXPORTS }'
MAIN = '@export_name("main", fn()void);'
EXPORT_MAIN = "comptime { @export_symbol(main); }"


def compile_pe(folder: Path, source: str, arch: Arch = Arch.WSE3, exports: str = "") -> Image:
    """The image of a file; it passes the verifier."""
    (folder / "layout.csl").write_text(LAYOUT.replace("EXPORTS", exports))
    (folder / "pe.csl").write_text(source)
    (image,) = build_program(folder / "layout.csl", CompileOptions(arch=arch)).images
    verify(parse(image.code))
    return image


def refusal(folder: Path, source: str, arch: Arch = Arch.WSE3, exports: str = "") -> str:
    """The text of the errors that a file has."""
    with pytest.raises(OpenwaferError) as caught:
        compile_pe(folder, source, arch, exports)
    return str(caught.value)


def warnings_of(folder: Path, source: str, arch: Arch, exports: str) -> tuple[str, ...]:
    """The texts of the warnings about a file."""
    (folder / "layout.csl").write_text(LAYOUT.replace("EXPORTS", exports))
    (folder / "pe.csl").write_text(source)
    return build_program(folder / "layout.csl", CompileOptions(arch=arch)).warnings


class Pe:
    """One PE that runs the function `main`."""

    def __init__(
        self, folder: Path, source: str, arch: Arch = Arch.WSE3, exports: str = MAIN
    ) -> None:
        if exports == MAIN:
            source += EXPORT_MAIN
        self.image = compile_pe(folder, source, arch, exports)
        self.box = np.zeros(mailbox.MAILBOX_WORDS, np.int64)
        self.memory = np.zeros(MEMORY_WORDS, np.uint16)
        data = np.frombuffer(self.image.data, np.uint16)
        self.memory[: data.size] = data
        number_of_entries = len(self.image.entries)
        self._code = Interpreter(parse(self.image.code), (False,) * number_of_entries, WSE2)

    def start(self) -> Outcome:
        """Run `main` to its end or its first request."""
        ((_, entry),) = self.image.exported_functions
        return self._code.run(0, self.box, self.memory, entry, is_resume=False)

    def resume(self) -> Outcome:
        """Go on behind a request."""
        return self._code.run(0, self.box, self.memory, 0, is_resume=True)

    def read(self, name: str, dtype: str) -> NDArray[np.generic]:
        """A global's content."""
        symbol = next(s for s in self.image.symbols if s.name == name)
        words = self.memory[symbol.address : symbol.address + symbol.num_words]
        return words.copy().view(np.uint8)[: symbol.num_bytes].view(dtype)


def ran(folder: Path, source: str) -> Pe:
    """A PE whose `main` ran to its end."""
    pe = Pe(folder, source)
    assert pe.start() is Outcome.FINISHED
    return pe
