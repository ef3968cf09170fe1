"""Cycles of exponentials and inverses of a PE's numbers.

Each figure is of the instructions of ``<kernels/elementary>``, by their lines: those between
operations, loads and what they wait for, and turns of loops.
"""

from typing import Final

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import drain_cycles
from openwafer.sdk.kernels.operations import (
    AGAIN,
    MEETS,
    Operation,
    chain_cycles,
    of_again,
    of_one,
    of_two,
)
from openwafer.sdk.kernels.running import loop_cycles

LEAST_POWER: Final = 2.0**-125
"""More than exponentials that ``<kernels/elementary>`` takes of -87."""
CHUNK: Final = 64
"""Numbers that programs take at once."""
_POWER_CYCLES: Final = 119
"""Of the instructions between the operations of exponentials of a chunk."""
_INVERSE_CYCLES: Final = 59
"""The same of inverses."""


_ADDED: Final = Operation("fadds", num_registers=1, accumulates=True)
_POWER: Final = (
    *(*of_one("fmaxs"), *of_again("fmacs"), *of_one("fsubs")),
    *(*of_two("fmacs", "fmacs"), *of_again("fmacs")),
    *5 * (*of_two("fmuls"), *of_one("fadds")),
    Operation("sll16", num_registers=2, strides=(2,)),
    Operation("add16", turns=MEETS, strides=(2,)),
)
_INVERSE: Final = (
    Operation("fmovs", num_registers=1),
    Operation("sub16", turns=AGAIN, strides=(2,)),
    *3 * (*of_two("fmuls"), *of_one("fsubs"), *of_two("fmuls")),
)


def chunks(num_elements: int) -> list[int]:
    """How many numbers each turn of a loop over them takes."""
    return [min(CHUNK, num_elements - at) for at in range(0, num_elements, CHUNK)]


def exponential_cycles(num_elements: int, arch: Arch) -> int:
    """Of exponentials of so many numbers.

    For each chunk a sum is read that a number which is none would be in, and a pointer before the
    power of two is added: both wait for the operation before.
    """
    timing, lengths = GENERATIONS[arch].timing, chunks(num_elements)
    taken = loop_cycles(len(lengths), arch)
    for length in lengths:
        taken += _POWER_CYCLES + chain_cycles((_ADDED, *_POWER), length, arch)
        taken += 2 * timing.drain_cycles + timing.load_latency
    return taken


def inverse_cycles(num_elements: int, arch: Arch) -> int:
    """Of inverses of so many numbers.

    For each chunk pointers are read behind zeros are written, and before the last operation.
    """
    timing, lengths = GENERATIONS[arch].timing, chunks(num_elements)
    taken = loop_cycles(len(lengths), arch)
    waits = timing.drain_cycles
    waits += drain_cycles(timing.drain_cycles, timing.load_latency, reads_memory=False)
    for length in lengths:
        taken += _INVERSE_CYCLES + waits + chain_cycles(_INVERSE, length, arch)
    return taken
