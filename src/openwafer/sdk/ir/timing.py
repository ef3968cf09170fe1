"""Cycles of vector operations in memory.

Figures of the machine come from the generation and the table of operations; docs/design/timing.md
has their sources.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from openwafer.sdk.arch.generation import Arch, Generation
from openwafer.sdk.arch.vector_ops import VectorOp
from openwafer.sdk.ir.numbers import FLOATS

FLOAT_LATENCY: Final = 2
"""From a float operation to one that needs its result."""
BANKS_THAT_CONFLICT: Final = 4
"""Words whose addresses are equal modulo this lie in banks that share a read port."""


@dataclass(frozen=True)
class VectorShape:
    """What the time of a vector operation depends on besides its length.

    Attributes:
        strides: distances of the elements of its operands in memory, in elements.
        has_conflict: two sources in memory share a read port (:func:`shares_port`).
        accumulates: each result is an operand of the next element.
        has_scalar: a source is a scalar.
    """

    strides: tuple[int, ...] = ()
    has_conflict: bool = False
    accumulates: bool = False
    has_scalar: bool = False


def cycles_an_element(
    op: VectorOp, generation: Generation, *, accumulates: bool = False
) -> Fraction:
    """Cycles of an element whose neighbours lie beside it; a sum waits for each result."""
    pace = Fraction(1, op.rates[generation.arch])
    waits = accumulates and op.destination in FLOATS
    return max(pace, Fraction(FLOAT_LATENCY)) if waits else pace


def stride_width(strides: Iterable[int], width: int, arch: Arch) -> Fraction:
    """Elements a cycle of an operation on `width` neighbours a cycle, with elements apart.

    WSE-2 follows the documented table of strides modulo 8. Of WSE-3 it was measured that elements
    that lie between are read in vain, until each cycle brings one.
    """
    return min(Fraction(width), *(_width_of_stride(stride, width, arch) for stride in strides))


def _width_of_stride(stride: int, width: int, arch: Arch) -> Fraction:
    if arch is Arch.WSE3:
        return max(Fraction(1), Fraction(width, max(1, abs(stride))))
    if stride in (0, 1):
        return Fraction(width)
    return Fraction(min(width, STRIDE_WIDTHS.get(stride % 8, width)))


STRIDE_WIDTHS: Final = {0: 1, 1: 2, 4: 2, 7: 2}
"""WSE-2: elements a cycle by the stride modulo 8; the others do not limit an operation."""


def vector_cycles(
    op: VectorOp, num_elements: int, generation: Generation, shape: VectorShape = VectorShape()
) -> int:
    """Cycles of an operation on descriptors of memory."""
    pace = cycles_an_element(op, generation, accumulates=shape.accumulates)
    if pace < 1:
        width = stride_width(shape.strides or (1,), int(1 / pace), generation.arch)
        pace = max(pace, 1 / width)
    cycles = int(-(-num_elements * pace // 1))
    start = op.start(generation.arch, has_scalar=shape.has_scalar)
    return start + cycles * (2 if shape.has_conflict else 1)


def shares_port(first: int, second: int) -> bool:
    """Whether reads that begin at two word addresses have to take turns."""
    return (first - second) % BANKS_THAT_CONFLICT == 0
