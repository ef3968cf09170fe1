"""What products of tiles on one PE take: their padding, their memory, their cycles."""

from dataclasses import dataclass
from math import ceil
from typing import Final

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import vector_cycles
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.kernels.precision import Precision

_OPERATION: Final = {Precision.F32: "fmacs", Precision.F16: "fmach", Precision.F16_F32: "fmachs"}
_STEP: Final = 16
"""Columns of A for whose factors ``<kernels/product/pe>`` waits at once."""
FRONT_BYTES: Final = 4
"""In front of sums, so that their reads do not take turns with those of A."""


@dataclass(frozen=True)
class Product:
    """C += A B on one PE, by ``<kernels/product/pe>``.

    Attributes:
        rows: of A and C.
        inner: columns of A, rows of B.
        columns: of B and C.
        precision: of A and B, and of C.
    """

    rows: int
    inner: int
    columns: int
    precision: Precision

    @property
    def num_products(self) -> int:
        """Multiply-adds."""
        return self.rows * self.inner * self.columns

    def cycles(self, arch: Arch) -> int:
        """Cycles: of its operations, a load for each of them, and the pauses between groups."""
        generation = GENERATIONS[arch]
        timing = generation.timing
        operation = vector_cycles(VECTOR_OPS[_OPERATION[self.precision]], self.rows, generation)
        # Loads wait for the results before them, and the first operation for the last load.
        pause = timing.drain_cycles + timing.load_latency + timing.loop_cycles
        of_column = self.inner * (operation + 1) + ceil(self.inner / _STEP) * pause
        return self.columns * (of_column + timing.loop_cycles + timing.load_latency)

    def peak_cycles(self, arch: Arch) -> float:
        """Cycles of its multiply-adds alone at the most that the datapath does."""
        return self.num_products / VECTOR_OPS[_OPERATION[self.precision]].rates[arch]


def tile_multiples(precision: Precision) -> tuple[int, int]:
    """What rows and columns of A's tiles are multiples of."""
    return (2, 1) if precision is Precision.F32 else (4, 2)


def tile_length(length: int, num_parts: int, multiple: int) -> int:
    """Elements of each of equal parts that have room for `length`, a multiple of `multiple`."""
    return multiple * ceil(ceil(length / num_parts) / multiple)
