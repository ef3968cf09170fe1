"""How fast elements of a vector operation follow one another.

One rule for all who need it: the interpreter calls these functions, the simulator compiles them,
and native code gets tables that they made.
"""

from dataclasses import dataclass
from typing import Final

from openwafer.sdk.arch.generation import Generation
from openwafer.sdk.arch.vector_ops import VectorOp, element_words

_FLOATS: Final = ("f16", "f32")
ONE_TURN: Final = 4
"""Quarters of a cycle in which memory serves the reads of a beat that do not meet."""
READ_PORTS: Final = 2
"""Parts of memory that rows belong to by turns, each of which answers one read a cycle."""
NUM_BANKS: Final = 8
"""The same for any access: a read or a write a cycle each."""
STRIDES: Final = range(-8, 16)
"""Strides that stand for all others: those beyond them are as the one of 8 to 15 that is equal
modulo 8 (:func:`gap_table`)."""


@dataclass(frozen=True)
class VectorShape:
    """What the time of a vector operation depends on besides its length.

    Attributes:
        strides: distances of the elements of its operands in memory, in elements.
        turns: quarters of a cycle that reads of a beat take (:func:`read_turns`).
        accumulates: each result is an operand of the next element.
        num_registers: descriptors that have to be loaded into registers.
        reads_memory: a source lies in memory.
    """

    strides: tuple[int, ...] = ()
    turns: int = ONE_TURN
    accumulates: bool = False
    num_registers: int = 0
    reads_memory: bool = True


def stride_gap(stride: int, width: int, stride_widths: int) -> int:
    """Cycles in which `width` elements pass that lie `stride` elements apart.

    Args:
        stride: distance in elements.
        width: elements a cycle for neighbours.
        stride_widths: of :class:`~openwafer.sdk.arch.timing.Timing`.
    """
    if stride_widths == 0:
        return max(1, min(width, abs(stride)))
    if stride == 0 or stride == 1:
        return 1
    return max(1, width // ((stride_widths >> (4 * (stride & 7))) & 15))


def paced_cycles(num_elements: int, gap: int, width: int) -> int:
    """Cycles of elements of which `width` pass in `gap` cycles."""
    return (num_elements * gap + width - 1) // width


def read_turns(
    first: int, first_step: int, second: int, second_step: int, row_words: int, updated: int
) -> int:
    """Quarters of a cycle that a beat's reads of two sources take.

    A read takes a row, and rows of equal parity take turns. Neighbours in memory share their rows:
    two such sources meet if they begin at the same word of rows of equal parity, and then always;
    and where each beat updates a whole row of the first one in place, since that takes it twice.
    Other elements take a row each. Where these are updated in place, a multiple of four rows apart,
    the write of an earlier one takes a turn as well, of a bank of its own if there is one of eight.

    Args:
        first: word address of the first source.
        first_step: words to its next element.
        second: word address of the second source.
        second_step: words to its next element.
        row_words: of :class:`~openwafer.sdk.arch.timing.Timing`.
        updated: words a beat of results that take the place of the first source; 0 if they do not.
    """
    if 0 < abs(first_step) <= 2 and 0 < abs(second_step) <= 2:
        do_meet = (first - second) % (READ_PORTS * row_words) == 0 or updated >= row_words
        return 2 * ONE_TURN if do_meet else ONE_TURN
    is_written = updated > 0 and first_step % (NUM_BANKS // 2 * row_words) == 0
    turns = 2 * ONE_TURN if is_written else ONE_TURN
    for index in range(ONE_TURN):
        row = (first + index * first_step) // row_words
        other = (second + index * second_step) // row_words
        turns += (row - other) % (NUM_BANKS if is_written else READ_PORTS) == 0
    return turns


def beat_words(op: VectorOp, generation: Generation) -> int:
    """Words of the first source that a beat of neighbours takes."""
    return op.rates[generation.arch] * element_words(op.sources[0])


def turned_cycles(cycles: int, turns: int) -> int:
    """Cycles of beats whose reads take so many quarters each."""
    return (cycles * turns + ONE_TURN - 1) // ONE_TURN


def waits_for_itself(op: VectorOp, *, accumulates: bool) -> bool:
    """Whether each element needs the float result of the one before."""
    return accumulates and op.destination in _FLOATS


def gap_table(width: int, generation: Generation) -> tuple[int, ...]:
    """:func:`stride_gap` of each of :data:`STRIDES`."""
    widths = generation.timing.stride_widths
    return tuple(stride_gap(stride, width, widths) for stride in STRIDES)


def load_cycles(num_registers: int, load_latency: int) -> int:
    """From the load of the first of some registers to the use of the last."""
    return num_registers + load_latency - 1 if num_registers else 0


def drain_cycles(drain: int, load_latency: int, reads_memory: bool) -> int:
    """From the end of an operation's issue until its results can be used.

    Args:
        drain: of :class:`~openwafer.sdk.arch.timing.Timing`.
        load_latency: of the same.
        reads_memory: a source lies in memory; without, what reads it is not waited for.
    """
    return drain if reads_memory else max(0, drain - load_latency)


@dataclass(frozen=True)
class VectorTime:
    """Cycles of a vector operation on memory.

    Attributes:
        start: its registers are loaded.
        beats: with a beat.
        pauses: between beats, because of strides or sums that wait for themselves.
        turns: between beats, because reads take turns.
    """

    start: int
    beats: int
    pauses: int
    turns: int

    @property
    def total(self) -> int:
        """From the operation to the issue of the next instruction."""
        return self.start + self.beats + self.pauses + self.turns


def vector_cycles(
    op: VectorOp, num_elements: int, generation: Generation, shape: VectorShape = VectorShape()
) -> int:
    """Cycles from an operation on descriptors of memory to the issue of the next instruction."""
    return vector_time(op, num_elements, generation, shape).total


def vector_time(
    op: VectorOp, num_elements: int, generation: Generation, shape: VectorShape = VectorShape()
) -> VectorTime:
    """How an operation on descriptors of memory takes its cycles."""
    width, timing = op.rates[generation.arch], generation.timing
    gap = max((stride_gap(one, width, timing.stride_widths) for one in shape.strides), default=1)
    if waits_for_itself(op, accumulates=shape.accumulates):
        width, gap = 1, timing.float_latency
    cycles = paced_cycles(num_elements, gap, width)
    beats = cycles if timing.stride_widths and width > 1 else -(-num_elements // width)
    return VectorTime(
        start=load_cycles(shape.num_registers, timing.load_latency),
        beats=beats,
        pauses=cycles - beats,
        turns=turned_cycles(cycles, shape.turns) - cycles,
    )
