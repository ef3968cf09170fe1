"""What products of tiles on one PE take: their padding, their memory, their cycles."""

from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import vector_cycles
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.kernels.precision import Precision
from openwafer.sdk.kernels.running import DESCRIPTOR_CYCLES, is_written_out, loop_cycles

PRODUCT_OPERATIONS: Final = {
    Precision.F32: "fmacs",
    Precision.F16: "fmach",
    Precision.F16_F32: "fmachs",
}
"""That scale elements and add them to sums."""
_STEP: Final = 16
"""Columns of A for whose factors ``<kernels/product/pe>`` waits at once."""
_NUM_REGISTERS: Final = 3
"""That it loads for each column of B."""
_COLUMN_WEIGHT: Final = 14
"""Of a column of B, in instructions as the compiler counts them, beside its factors."""
_FACTOR_WEIGHT: Final = 3
"""Of a factor."""
_STEP_WEIGHT: Final = _FACTOR_WEIGHT * _STEP + 3
"""Of so many factors."""
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
        """Cycles: of its instructions and operations, and of the waits between groups of these."""
        generation = GENERATIONS[arch]
        timing, latency = generation.timing, generation.timing.load_latency
        scaling = VECTOR_OPS[PRODUCT_OPERATIONS[self.precision]]
        operation = vector_cycles(scaling, self.rows, generation)
        steps, rest = divmod(self.inner, _STEP)
        # Registers and the pointer to factors are loaded, these from it, and where it is kept
        # waits for results. A loop's counter moves on while a load is waited for.
        is_loop = not is_written_out(self._weight, self.columns)
        of_column = _NUM_REGISTERS + self.inner * operation
        if steps:
            are_turns = not is_written_out(_STEP_WEIGHT, steps)
            of_step = latency + _STEP + timing.drain_cycles + latency + 1 - are_turns
            of_column += steps * of_step + are_turns * loop_cycles(steps, arch)
        if rest:
            # Without steps the pointer comes while registers are loaded.
            pointer = latency if steps else 1
            of_column += pointer + max(rest, latency) + timing.drain_cycles
        # Where sums lie is loaded, moved on and kept, as the pointer is.
        of_column += latency + 2 + (1 if rest else 0) - is_loop
        others = 0 if self.precision is Precision.F32 else 2
        around = is_loop * loop_cycles(self.columns, arch)
        return 2 * DESCRIPTOR_CYCLES + 1 + others + around + self.columns * of_column

    @property
    def _weight(self) -> float:
        """Instructions of a turn of the loop over columns, in which a loop is one too many."""
        return inf if self.inner >= _STEP else _COLUMN_WEIGHT + _FACTOR_WEIGHT * self.inner

    def peak_cycles(self, arch: Arch) -> float:
        """Cycles of its multiply-adds alone at the most that the datapath does."""
        return self.num_products / VECTOR_OPS[PRODUCT_OPERATIONS[self.precision]].rates[arch]


def zeros_cycles(num_sums: int, precision: Precision, arch: Arch) -> int:
    """Beats in which sums are set to zero."""
    operation = "fmovh" if precision is Precision.F16 else "fmovs"
    return vector_cycles(VECTOR_OPS[operation], num_sums, GENERATIONS[arch])


def tile_multiples(precision: Precision) -> tuple[int, int]:
    """What rows and columns of A's tiles are multiples of."""
    return (2, 1) if precision is Precision.F32 else (4, 2)


def row_length(num_elements: int, precision: Precision) -> int:
    """Elements of rows whose reads take no turns with those of sums behind a front; one is no row.

    Args:
        num_elements: that it has at least.
        precision: of elements and sums.
    """
    return 1 if num_elements == 1 else tile_length(num_elements, 1, tile_multiples(precision)[0])


def tile_length(length: int, num_parts: int, multiple: int) -> int:
    """Elements of each of equal parts that have room for `length`, a multiple of `multiple`."""
    return multiple * ceil(ceil(length / num_parts) / multiple)


def tiles_of(matrix: NDArray[Any], parts: tuple[int, int], tile: tuple[int, int]) -> NDArray[Any]:
    """Tiles of a matrix, padded by zeros, each by columns: (parts of rows, of columns, elements).

    Args:
        matrix: (rows, columns).
        parts: of its rows and of its columns.
        tile: rows and columns of each.
    """
    more = [n * of_tile - have for n, of_tile, have in zip(parts, tile, matrix.shape, strict=True)]
    padded = np.pad(matrix, [(0, n) for n in more])
    by_columns = padded.reshape(parts[0], tile[0], parts[1], tile[1]).transpose(0, 2, 3, 1)
    return by_columns.reshape(*parts, -1)


def matrix_of(tiles: NDArray[Any], tile: tuple[int, int], shape: tuple[int, int]) -> NDArray[Any]:
    """The matrix of such a shape that has these tiles, without what is padded."""
    (first, second), (rows, columns) = tiles.shape[:2], tile
    by_rows = tiles.reshape(first, second, columns, rows).transpose(0, 3, 1, 2)
    return by_rows.reshape(first * rows, second * columns)[: shape[0], : shape[1]].copy()
