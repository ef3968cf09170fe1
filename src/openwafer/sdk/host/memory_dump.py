"""The memory of all PEs at one time, as a file that a debugger reads later."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.atomic_file import replacing
from openwafer.config import PathLike, path_of
from openwafer.diagnostics import error
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.host.symbols import HostSymbols
from openwafer.sdk.program.program import Program

FORMAT: Final = "openwafer-memory-dump"
VERSION: Final = 1


@dataclass(frozen=True)
class MemoryDump:
    """Memory of the rectangle.

    Attributes:
        words: shape (rows, columns, n), from word 0 to the end of the largest image's data.
    """

    program: Program
    words: NDArray[np.uint16]

    def symbol(self, x: int, y: int, name: str) -> NDArray[np.uint16]:
        """Return the words of a symbol of PE (x, y) of the rectangle."""
        symbol = HostSymbols(self.program).symbol(name, x, y)
        return self.words[y, x, symbol.address : symbol.address + symbol.num_words]

    def content(self, x: int, y: int, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a symbol of PE (x, y) of the rectangle."""
        num_bytes = HostSymbols(self.program).symbol(name, x, y).num_bytes
        return self.symbol(x, y, name).copy().view(np.uint8)[:num_bytes]

    def write(self, path: PathLike) -> None:
        """Write the words atomically. Raises OSError where the disk refuses."""
        path = path_of(path, "path")
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file, format=np.str_(FORMAT), version=np.int64(VERSION), words=self.words
            )


def dump_memory(program: Program, simulator: Simulator) -> MemoryDump:
    """Copy the memory of all PEs."""
    num_words = max(image.stack_base for image in program.images)
    words = np.zeros((program.height, program.width, num_words), np.uint16)
    for y in range(program.height):
        for x in range(program.width):
            words[y, x] = simulator.read(x, y, 0, num_words)
    return MemoryDump(program, words)


def read_memory_dump(path: PathLike, program: Program) -> MemoryDump:
    """Read a file of `MemoryDump.write`.

    Raises OpenwaferError when it is none of this version, or of another rectangle.
    """
    path = path_of(path, "path")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = str(arrays["format"]), int(arrays["version"])
            words = arrays["words"]
    except (OSError, ValueError, KeyError) as cause:
        raise error("memory-dump-damaged", f"{path} is no memory dump: {cause}") from cause
    if found != (FORMAT, VERSION):
        raise error(
            "memory-dump-version",
            f"{path} has format {found[0]!r} version {found[1]}; "
            f"this program reads {FORMAT!r} version {VERSION}",
        )
    if words.shape[:2] != (program.height, program.width):
        raise error(
            "memory-dump-program",
            f"{path} is of {words.shape[1]} by {words.shape[0]} PEs, the program has "
            f"{program.width} by {program.height}",
        )
    return MemoryDump(program, words)
