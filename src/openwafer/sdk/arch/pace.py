"""How fast elements of a vector operation follow one another.

One rule for all who need it: the interpreter calls these functions, the simulator compiles them,
and native code gets tables that they made.
"""

from dataclasses import dataclass
from typing import Final

from openwafer.sdk.arch.generation import Generation
from openwafer.sdk.arch.vector_ops import VectorOp

_FLOATS: Final = ("f16", "f32")
STRIDES: Final = range(-8, 16)
"""Strides that stand for all others: those beyond them are as the one of 8 to 15 that is equal
modulo 8 (:func:`gap_table`)."""


@dataclass(frozen=True)
class VectorShape:
    """What the time of a vector operation depends on besides its length.

    Attributes:
        strides: distances of the elements of its operands in memory, in elements.
        has_conflict: two sources in memory share a read port (:func:`shares_port`).
        accumulates: each result is an operand of the next element.
        num_registers: descriptors that have to be loaded into registers.
        reads_memory: a source lies in memory.
    """

    strides: tuple[int, ...] = ()
    has_conflict: bool = False
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


def shares_port(first: int, second: int, port_banks: int) -> bool:
    """Whether reads that begin at two word addresses have to take turns."""
    return (first - second) % port_banks == 0


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


def vector_cycles(
    op: VectorOp, num_elements: int, generation: Generation, shape: VectorShape = VectorShape()
) -> int:
    """Cycles from an operation on descriptors of memory to the issue of the next instruction."""
    width, timing = op.rates[generation.arch], generation.timing
    gap = max((stride_gap(one, width, timing.stride_widths) for one in shape.strides), default=1)
    if waits_for_itself(op, accumulates=shape.accumulates):
        width, gap = 1, timing.float_latency
    cycles = paced_cycles(num_elements, gap, width)
    start = load_cycles(shape.num_registers, timing.load_latency)
    return start + cycles * (2 if shape.has_conflict else 1)
