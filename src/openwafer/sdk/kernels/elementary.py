"""Cycles of a PE's numbers that vector operations go over: exponentials, inverses, and any others.

Each figure is of the instructions of ``<kernels/elementary>``, by their lines: those between
operations, loads and what they wait for, and turns of loops.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import (
    ONE_TURN,
    VectorShape,
    beat_words,
    drain_cycles,
    read_turns,
    vector_cycles,
)
from openwafer.sdk.arch.vector_ops import VECTOR_OPS

MEETS: Final = 2 * ONE_TURN
"""Of reads of two arrays that begin at equal words of rows, or of whole rows updated in place."""
AGAIN: Final = 6
"""Of reads of neighbours, and of one number again and again, which every other read meets."""
LEAST_POWER: Final = 2.0**-125
"""More than exponentials that ``<kernels/elementary>`` takes of -87."""
CHUNK: Final = 64
"""Numbers that programs take at once."""
_POWER_CYCLES: Final = 119
"""Of the instructions between the operations of exponentials of a chunk."""
_INVERSE_CYCLES: Final = 59
"""The same of inverses."""


class Operation(NamedTuple):
    """A vector operation on arrays in a PE's memory.

    Attributes:
        name: of it.
        num_registers: descriptors of its operands.
        turns: quarters of a cycle that reads of a beat take.
        strides: of operands whose elements lie apart.
        accumulates: its elements are added to a number.
    """

    name: str
    num_registers: int = 3
    turns: int = ONE_TURN
    strides: tuple[int, ...] = ()
    accumulates: bool = False

    def cycles(self, num_elements: int, arch: Arch) -> int:
        """From its issue to that of the next one, which does not wait for its results."""
        shape = VectorShape(
            self.strides, self.turns, self.accumulates, num_registers=self.num_registers
        )
        return vector_cycles(VECTOR_OPS[self.name], num_elements, GENERATIONS[arch], shape)


def of_one(*names: str) -> tuple[Operation, ...]:
    """Operations on one array, whose other operands are numbers in instructions."""
    return tuple(Operation(name, num_registers=2) for name in names)


def of_two(*names: str) -> tuple[Operation, ...]:
    """Operations on two arrays whose reads do not meet."""
    return tuple(Operation(name) for name in names)


def that_meet(*names: str) -> tuple[Operation, ...]:
    """Operations on two arrays whose reads meet."""
    return tuple(Operation(name, turns=MEETS) for name in names)


def of_again(*names: str) -> tuple[Operation, ...]:
    """Operations on an array and on one number in memory again and again."""
    return tuple(Operation(name, turns=AGAIN) for name in names)


def in_place(*names: str, arch: Arch) -> tuple[Operation, ...]:
    """Operations on two arrays, of which the first one takes the results, whole rows if it can."""
    generation = GENERATIONS[arch]
    row_words = generation.timing.row_words
    return tuple(
        Operation(name, turns=read_turns(0, 2, 2, 2, row_words, beat_words(op, generation)))
        for name, op in ((name, VECTOR_OPS[name]) for name in names)
    )


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


def chunks(num_elements: int) -> Iterator[int]:
    """How many numbers each turn of a loop over them takes."""
    for at in range(0, num_elements, CHUNK):
        yield min(CHUNK, num_elements - at)


def chain_cycles(operations: tuple[Operation, ...], num_elements: int, arch: Arch) -> int:
    """Of operations one behind the other."""
    return sum(one.cycles(num_elements, arch) for one in operations)


def loop_cycles(num_turns: int, arch: Arch) -> int:
    """Of a loop beside what its turns do: its counter, each turn, and the branch out of it."""
    timing = GENERATIONS[arch].timing
    return 1 + num_turns * timing.loop_cycles + timing.branch_cycles[1]


def exponential_cycles(num_elements: int, arch: Arch) -> int:
    """Of exponentials of so many numbers.

    For each chunk a sum is read that a number which is none would be in, and a pointer before the
    power of two is added: both wait for the operation before.
    """
    timing, taken = GENERATIONS[arch].timing, 0
    operations = (_ADDED, *_POWER)
    for length in chunks(num_elements):
        taken += _POWER_CYCLES + chain_cycles(operations, length, arch)
        taken += 2 * timing.drain_cycles + timing.load_latency
    return taken + loop_cycles(len(list(chunks(num_elements))), arch)


def inverse_cycles(num_elements: int, arch: Arch) -> int:
    """Of inverses of so many numbers.

    For each chunk pointers are read behind zeros are written, and before the last operation.
    """
    timing, taken = GENERATIONS[arch].timing, 0
    waits = timing.drain_cycles
    waits += drain_cycles(timing.drain_cycles, timing.load_latency, reads_memory=False)
    for length in chunks(num_elements):
        taken += _INVERSE_CYCLES + waits + chain_cycles(_INVERSE, length, arch)
    return taken + loop_cycles(len(list(chunks(num_elements))), arch)
