"""What a run left behind, as a file, so that two runs of a program can be compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.atomic_file import replacing
from openwafer.diagnostics import error
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.program.environment import FINAL_STATE_VARIABLE, next_path
from openwafer.sdk.program.image import Symbol
from openwafer.sdk.program.program import Program

FORMAT: Final = "openwafer-final-state"
VERSION: Final = 2

_COUNTS: Final = ("cycles", "wavelets", "landings", "elements", "tasks", "switch_changes")


@dataclass(frozen=True)
class FinalState:
    """Data of all PEs and what the fabric counted.

    Attributes:
        words: uint16, shape (rows, columns, n): each PE's data; zero from its stack on, whose
            content is no part of a program's meaning.
        counts: cycles, wavelets sent, their landings at routers, elements of vector operations,
            tasks started, changes of switches.
        prints: what PEs wrote, in the order of PEs and then of time.
        image_of: shape (rows, columns): image of each PE.
        symbols: image, address, length in words, type of the elements and name of each variable,
            with tabs between.
    """

    words: NDArray[np.uint16]
    counts: Mapping[str, int]
    prints: tuple[str, ...]
    image_of: NDArray[np.int32]
    symbols: tuple[str, ...]


def final_state(program: Program, simulator: Simulator) -> FinalState:
    """Take the state of a simulation."""
    num_words = max(image.stack_base for image in program.images)
    words = np.zeros((program.height, program.width, num_words), np.uint16)
    for (y, x), number in np.ndenumerate(program.image_of):
        size = program.images[number].stack_base
        words[y, x, :size] = simulator.read(x, y, 0, size)
    counts = simulator.statistics()
    prints = sorted(simulator.prints(), key=lambda event: (event.y, event.x))
    return FinalState(
        words,
        {name: getattr(counts, name) for name in _COUNTS},
        tuple(f"PE ({event.x}, {event.y}): {event.text}" for event in prints),
        program.image_of,
        tuple(
            f"{number}\t{symbol.address}\t{symbol.num_words}\t{symbol.element_type}\t{symbol.name}"
            for number, image in enumerate(program.images)
            for symbol in image.symbols
        ),
    )


def write_if_asked(program: Program, simulator: Simulator) -> None:
    """Write the state where the environment names a folder for it."""
    path = next_path(FINAL_STATE_VARIABLE, ".npz")
    if path is not None:
        write(final_state(program, simulator), path)


def write(state: FinalState, path: Path) -> None:
    """Write a state atomically. Raises OSError where the disk refuses."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            format=np.str_(FORMAT),
            version=np.int64(VERSION),
            words=state.words,
            counts=np.array([state.counts[name] for name in _COUNTS], np.int64),
            prints=np.array(state.prints, np.str_),
            image_of=state.image_of,
            symbols=np.array(state.symbols, np.str_),
        )


def read(path: Path) -> FinalState:
    """Read a file of `write`. Raises OpenwaferError when it is none of this version."""
    with np.load(path, allow_pickle=False) as arrays:
        found = str(arrays["format"]), int(arrays["version"])
        if found != (FORMAT, VERSION):
            raise error(
                "final-state-version",
                f"{path} has format {found[0]!r} version {found[1]}; "
                f"this program reads {FORMAT!r} version {VERSION}",
            )
        return FinalState(
            arrays["words"],
            dict(zip(_COUNTS, arrays["counts"].tolist(), strict=True)),
            tuple(map(str, arrays["prints"])),
            arrays["image_of"],
            tuple(map(str, arrays["symbols"])),
        )


def difference(first: FinalState, second: FinalState) -> str:
    """The first thing in which two states of a program differ, with both values; "" for none."""
    if first.words.shape != second.words.shape:
        return f"PEs and words are {first.words.shape} and {second.words.shape}"
    places = np.argwhere(first.words != second.words)
    for y, x, address in places.tolist():
        symbol = _symbol(first, int(first.image_of[y, x]), address)
        if symbol is not None and all(
            _is_nan(s.words[y, x], symbol, address) for s in (first, second)
        ):
            continue
        where = f"word {address}"
        if symbol is not None:
            where = f"word {address - symbol.address} of {symbol.name!r}"
        pair = int(first.words[y, x, address]), int(second.words[y, x, address])
        return (
            f"{where} of PE ({x}, {y}) is {pair[0]:#06x} and {pair[1]:#06x},"
            f" one of {len(places)} words that differ"
        )
    for name in _COUNTS:
        if first.counts[name] != second.counts[name]:
            return f"{name} are {first.counts[name]} and {second.counts[name]}"
    return "" if first.prints == second.prints else f"prints {first.prints} and {second.prints}"


def _symbol(state: FinalState, image: int, address: int) -> Symbol | None:
    """The variable that a word belongs to."""
    for line in state.symbols:
        number, start, size, kind, name = line.split("\t", 4)
        if int(number) == image and 0 <= address - int(start) < int(size):
            return Symbol(name, int(start), int(size), kind)
    return None


def _is_nan(words: NDArray[np.uint16], symbol: Symbol, address: int) -> bool:
    """Whether a word is part of a NaN, whose sign and payload nothing defines."""
    if symbol.element_type == "f16":
        return bool(np.isnan(words[address : address + 1].view(np.float16)[0]))
    if symbol.element_type != "f32":
        return False
    start = address - (address - symbol.address) % 2
    return bool(np.isnan(words[start : start + 2].copy().view(np.float32)[0]))
