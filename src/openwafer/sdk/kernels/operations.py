"""What vector operations of a PE take: each from its issue to that of the next one."""

from functools import lru_cache
from typing import Final, NamedTuple

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import ONE_TURN, VectorShape, beat_words, read_turns, vector_cycles
from openwafer.sdk.arch.vector_ops import VECTOR_OPS

MEETS: Final = 2 * ONE_TURN
"""Of reads of two arrays that begin at equal words of rows, or of whole rows updated in place."""
AGAIN: Final = 6
"""Of reads of neighbours, and of one number again and again, which every other read meets."""


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
        return _cycles(self, num_elements, arch)


# Plans that walk a program ask for the same few ones in each of thousands of steps.
@lru_cache(maxsize=4096)
def _cycles(operation: Operation, num_elements: int, arch: Arch) -> int:
    name, num_registers, turns, strides, accumulates = operation
    shape = VectorShape(strides, turns, accumulates, num_registers)
    return vector_cycles(VECTOR_OPS[name], num_elements, GENERATIONS[arch], shape)


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


def chain_cycles(operations: tuple[Operation, ...], num_elements: int, arch: Arch) -> int:
    """Of operations one behind the other."""
    return sum(one.cycles(num_elements, arch) for one in operations)


def end_cycles(arch: Arch) -> int:
    """From a task's last operation on memory, behind its elements, to the end of the task."""
    timing = GENERATIONS[arch].timing
    return max(timing.drain_cycles, timing.beat_cycles) + 1
