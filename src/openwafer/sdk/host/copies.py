"""Copies between a tensor of the host and the memory of a region of PEs, all of them at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import Diagnostic, Severity, error
from openwafer.dtypes import DTYPES
from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.host import tensors
from openwafer.sdk.host.region import Region
from openwafer.sdk.host.symbols import HostSymbols, check_in_memory, is_pointer
from openwafer.sdk.host.tensors import DataType
from openwafer.sdk.program.image import Symbol
from openwafer.sdk.program.program import HostName

if TYPE_CHECKING:
    from openwafer.sdk.fabric import Simulator


@dataclass(frozen=True)
class RegionMemory:
    """The memory that a variable of the device names on each PE of a region.

    Attributes:
        pes: their numbers, in the tensor's order.
        addresses: first word on each of them.
        num_words: on each of them.
        firsts: places in `pes` of the first PE of each image.
    """

    pes: NDArray[np.int64]
    addresses: NDArray[np.int64]
    num_words: int
    firsts: NDArray[np.int64]


def region_memory(
    symbols: HostSymbols, simulator: "Simulator", variable: HostName, region: Region, num_words: int
) -> RegionMemory:
    """Find a variable's words, behind its pointer where it is one.

    Raises OpenwaferError where a PE has no such variable, or where it leaves the PE's memory.
    """
    program = symbols.program
    rows = np.arange(region.y, region.y + region.height, region.step_y)
    columns = np.arange(region.x, region.x + region.width, region.step_x)
    pes = (columns * program.height + rows[:, np.newaxis]).ravel()
    images = program.images_by_number[pes]
    addresses = np.zeros(pes.size, np.int64)
    firsts = np.sort(np.unique(images, return_index=True)[1])
    for first in firsts:
        x, y = program.place_of(int(pes[first]))
        symbol = symbols.exported(variable, x, y)
        own = images == images[first]
        addresses[own] = symbol.address
        if is_pointer(variable, symbol):
            pointers = np.full(int(own.sum()), symbol.address)
            addresses[own] = simulator.read_all(pes[own], pointers, 1)[:, 0] // WORD_BYTES
    for outside in np.flatnonzero((addresses == 0) | (addresses + num_words > MEMORY_WORDS))[:1]:
        x, y = program.place_of(int(pes[outside]))
        check_in_memory(f"{variable.name} on PE ({x}, {y})", int(addresses[outside]), num_words)
    return RegionMemory(pes, addresses, num_words, firsts)


def _rooms(
    symbols: HostSymbols, memory: RegionMemory
) -> Iterator[tuple[tuple[int, int], Symbol | None, int]]:
    """For each image: its first PE, the symbol that a copy begins in, and words to its end."""
    for first in memory.firsts:
        x, y = symbols.program.place_of(int(memory.pes[first]))
        address = int(memory.addresses[first])
        symbol = symbols.symbol_at(x, y, address)
        yield (x, y), symbol, symbol.address + symbol.num_words - address if symbol else 0


def common_length(
    symbols: HostSymbols, memory: RegionMemory, variable: HostName, data_type: DataType
) -> int:
    """Elements from a variable's address to its end, which are as many on every PE.

    Raises OpenwaferError where they are not.
    """
    lengths: dict[int, tuple[int, int]] = {}
    for place, _, room in _rooms(symbols, memory):
        lengths.setdefault(room // data_type.num_words, place)
    length, *others = lengths
    if others or not length:
        places = ", ".join(f"{count} on PE {place}" for count, place in lengths.items())
        raise error(
            "host-lengths-differ",
            f"'{variable.name}' has not one number of elements on these PEs: {places}",
            help="copy from and to PEs whose code has it in the same length",
        )
    return length


def overrun_of_copy(
    symbols: HostSymbols, memory: RegionMemory, variable: HostName, data_type: DataType
) -> Diagnostic | None:
    """A warning where a copy goes over the end of the variable that it begins in."""
    for (x, y), symbol, room in _rooms(symbols, memory):
        if symbol is not None and room < memory.num_words:
            taken, held = memory.num_words // data_type.num_words, room // data_type.num_words
            bits = 16 * data_type.num_words
            return Diagnostic(
                Severity.WARNING,
                "host-overrun",
                f"a copy of '{variable.name}' takes {taken} elements of {bits} bits on PE ({x}, "
                f"{y}), where '{symbol.name}' holds {held}",
                help="make the elements per PE, and the size of an element, those of the variable",
            )
    return None


def width_of_copy(variable: HostName, data_type: DataType) -> Diagnostic | None:
    """A warning where a copy moves elements of another width than the exported type has."""
    element = variable.type.removeprefix("[*]").removeprefix("*").strip()
    bits = DTYPES[element].num_bits if element in DTYPES else 0
    own = 16 * data_type.num_words
    if bits not in (16, 32) or bits == own:
        return None
    return Diagnostic(
        Severity.WARNING,
        "host-width",
        f"a copy of '{variable.name}' moves elements of {own} bits, and its type {variable.type}"
        f" has elements of {bits}",
        help=f"give the copy the data type MEMCPY_{bits}BIT",
    )


def halves_of_source(src: NDArray[Any], words: NDArray[np.uint32]) -> Diagnostic | None:
    """A warning where 16-bit elements are the low halves of floats, or of longer integers.

    `words` are those of `src` that the copy takes.
    """
    head = "a copy of 16-bit elements takes the low halves of src"
    if src.dtype.kind == "f":
        message = f"{head}, which has elements of {src.dtype}"
        remedy = "give 16-bit floats: input_array_to_u32(src.astype(np.float16), None, 1)"
        return Diagnostic(Severity.WARNING, "host-halves", message, help=remedy)
    signed = words.view(np.int32)
    for number in words[(words > 0xFFFF) & ((signed < -0x8000) | (signed >= 0))][:1]:
        message = f"{head}, which holds {number.astype(np.uint32).view(src.dtype)}"
        remedy = "keep to numbers of 16 bits, or make the variable, and the copy, of 32"
        return Diagnostic(Severity.WARNING, "host-halves", message, help=remedy)
    return None


_FLOATS: Final = frozenset(("f16", "bf16", "cb16", "f32"))


def kind_of_copy(variable: HostName, array: NDArray[Any], name: str) -> Diagnostic | None:
    """A warning where integers go to floats, or the other way; unsigned ones stand for any bits.

    `name` is that of the host's array: ``src`` or ``dest``.
    """
    element = variable.type.removeprefix("[*]").removeprefix("*").removeprefix("const ").strip()
    is_float = element in _FLOATS
    if element not in DTYPES or element.startswith("u") or array.dtype.kind not in "if":
        return None
    if is_float is (array.dtype.kind == "f"):
        return None
    verb = "takes the bits of" if name == "src" else "puts its bits into"
    remedy = f"show that bits are meant: {name}.view(np.uint32)"
    if name == "src":
        remedy = f"convert the values: src.astype(np.float32), or {remedy}"
    else:
        wanted = "np.float32" if is_float else "np.int32"
        remedy = f"make dest with elements of {wanted}, or {remedy}"
    return Diagnostic(
        Severity.WARNING,
        "host-kind",
        f"a copy of '{variable.name}', of type {variable.type}, {verb} {name}, which has elements"
        f" of {array.dtype}",
        help=remedy,
    )


def longer_source(variable: HostName, src: NDArray[Any], num_elements: int) -> Diagnostic | None:
    """A note where a copy takes the first elements of a longer array alone."""
    if src.size <= num_elements:
        return None
    return Diagnostic(
        Severity.NOTE,
        "host-longer",
        f"a copy to '{variable.name}' takes the first {num_elements} of the {src.size} elements "
        "of src",
        help="make width * height * elements of one PE the size of src, or give a part of it",
    )


def short_copy(
    symbols: HostSymbols, memory: RegionMemory, variable: HostName, data_type: DataType
) -> Diagnostic | None:
    """A note where a copy from a variable's begin leaves a part of it out."""
    for (x, y), symbol, room in _rooms(symbols, memory):
        if symbol is None or room != symbol.num_words or memory.num_words >= room:
            continue
        taken = memory.num_words // data_type.num_words
        held = room // data_type.num_words
        return Diagnostic(
            Severity.NOTE,
            "check-copy",
            f"copies of '{variable.name}' take {taken} of its {held} elements of "
            f"{16 * data_type.num_words} bits on PE ({x}, {y}), and none takes all",
            help="make the elements per PE those of the variable",
        )
    return None


def unwritten(
    simulator: "Simulator", memory: RegionMemory, variable: HostName
) -> Diagnostic | None:
    """A warning where a copy reads what nothing has written on any of its PEs, as checks know."""
    if not simulator.is_unwritten(memory.pes, memory.addresses, memory.num_words):
        return None
    return Diagnostic(
        Severity.WARNING,
        "host-unwritten",
        f"a copy of '{variable.name}' reads what nothing has written, on any PE of the region",
        help="launch what computes it before, and look whether it writes there",
    )


def write(
    simulator: "Simulator", memory: RegionMemory, src: NDArray[np.uint32], data_type: DataType
) -> None:
    """Write a tensor of shape (h, w, l), in no time."""
    words = tensors.to_memory(src.reshape(memory.pes.size, -1), data_type)
    simulator.write_all(memory.pes, memory.addresses, words)


def read(
    simulator: "Simulator", memory: RegionMemory, region: Region, data_type: DataType
) -> NDArray[np.uint32]:
    """Read a tensor of shape (h, w, l), in no time."""
    words = simulator.read_all(memory.pes, memory.addresses, memory.num_words)
    return tensors.from_memory(words, data_type).reshape(region.shape)
