"""Cycles of a triangular system: instructions, operations and words of its PEs, step by step.

In step k each row of PEs that is left has column k of L, which its PEs with L send; the PE with
row k of B scales it and sends it down, and all subtract products. The last column of PEs is walked,
all of its rows at once. Constants are instructions of ``triangular_pe.csl``.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.kernels.operations import Operation
from openwafer.sdk.kernels.running import (
    LOOK_CYCLES,
    ROWS_APART,
    first_word_cycles,
    is_written_out,
    loop_cycles,
    registers_cycles,
)

Cycles = NDArray[np.float64]

_FACTOR_BEGIN: Final = 27
"""Until the first PE with L comes to its first column."""
_LATE: Final = 3
"""That its clock starts later than others': two instructions, and the cycle by which the first
column of a program begins late."""
_FACTOR_NEXT: Final = 23
"""Until the next one does, behind the last column that it passes on."""
_FACTOR: Final = (39, 16)
"""Around a column that leaves, beside the loop's turn and one over the pivot, which the first has:
where it has row k, and where row k is above."""
_B_BEGIN: Final = 22
"""Until the first step of the first PE with B."""
_B_OTHERS: Final = 2
"""The same of others."""
_B_NEXT: Final = 19
"""Until one of these comes to its own rows."""
_TURN: Final = (4, 0)
"""Of a step with row k, beside the loop's turn, and of one without."""
_RECEIVED: Final = (6, 0)
"""Until a column is received."""
_OWN: Final = (21, 5)
"""Until a column is made of L on the PE itself, with and without row k."""
_SCALED: Final = (10, 9)
"""Until row k is scaled, of a column that was received or is its own."""
_SENT: Final = 5
_KEPT: Final = 8
"""Until row k is sent, and where the last PE finds that it is not."""
_ALONE: Final = 2
"""The same where there is one row of PEs."""
_COPIED: Final = 1
"""Until it is copied back."""
_NOTHING: Final = 10
_UPDATE: Final = (24, 4)
"""Where no rows are left, and else until the first product, with and without row k."""
_END: Final = 6
"""Of the test that ends the loop of steps."""
_PRODUCT: Final = 11
"""Around the product for a column of B."""
_PRODUCT_WEIGHT: Final = 10
"""The same as the compiler counts instructions."""


@dataclass(frozen=True)
class Walk:
    """A system on PEs.

    Attributes:
        order: rows and columns of L.
        rows: of PEs.
        columns: of PEs.
        factor_columns: of PEs that have L; 0 where the only column has both.
        tile: rows, columns of L, and columns of B on a PE.
        arch: the generation.
    """

    order: int
    rows: int
    columns: int
    factor_columns: int
    tile: tuple[int, int, int]
    arch: Arch

    def cycles(self) -> int:
        """From the first PE's start to the last one's end."""
        timing, (rows, _, width) = GENERATIONS[self.arch].timing, self.tile
        loaded, first = registers_cycles(self.arch), first_word_cycles(1, self.arch)
        leave = np.full(self.rows, float(_FACTOR_BEGIN + _LATE))
        ready = np.full(self.rows, float(_B_OTHERS + timing.hop_cycles * (self.columns - 1)))
        ready[0] += _B_BEGIN - _B_OTHERS
        for step in range(self.order):
            y, pivot = divmod(step, rows)
            length = np.full(self.rows - y, rows)
            length[0] -= pivot
            left = ready[y:]
            left[0] += _B_NEXT * (y > 0 and pivot == 0)
            left[0] += _TURN[0]
            if self.factor_columns:
                arrives = self._sent(step, leave[y:], length)
                left[0] = max(left[0] + _RECEIVED[0] + loaded, arrives[0]) + length[0]
            else:
                left[0] += _OWN[0] + timing.divide_cycles + self._operation("fnegs", length[0] - 1)
                left[0] += timing.drain_cycles
            left[0] += _SCALED[self.factor_columns == 0] + self._operation("fmuls", width)
            left[0] += _ALONE if self.rows == 1 else _SENT if y + 1 < self.rows else _KEPT
            if y + 1 < self.rows:
                comes = left[0] + first + timing.hop_cycles * np.arange(len(left) - 1)
                left[1:] = np.maximum(left[1:] + loaded, comes) + width
                if self.factor_columns:
                    left[1:] = np.maximum(left[1:] + loaded, arrives[1:]) + rows
                else:
                    left[1:] += _OWN[1] + self._operation("fnegs", rows)
                left[1:] += _UPDATE[1] + self._multiplied(rows, has_row=False)
                left[0] += loaded + width
            left[0] += _COPIED + self._operation("fmovs", width, (rows,))
            own = _UPDATE[0] + self._multiplied(int(length[0]) - 1, has_row=True)
            left[0] += own if length[0] > 1 else _NOTHING
            left += timing.loop_cycles
        return LOOK_CYCLES + round(float(ready.max())) + _END

    def _sent(self, step: int, leave: Cycles, length: NDArray[np.int64]) -> Cycles:
        """When column k is at the last column of PEs; who has it has left it at `leave` then."""
        timing, (x, column) = GENERATIONS[self.arch].timing, divmod(step, self.tile[1])
        if column == 0 and x > 0:
            # The last column has come to the next PE when it has left the one before.
            leave += first_word_cycles(1, self.arch) - registers_cycles(self.arch) + _FACTOR_NEXT
        leave += _FACTOR[1]
        leave[0] += _FACTOR[0] - _FACTOR[1] + timing.divide_cycles
        leave += self._operation("fnegs", self.tile[0])
        leave[0] += self._operation("fnegs", length[0] - 1) - self._operation("fnegs", self.tile[0])
        arrives = leave + first_word_cycles(self.columns - 1 - x, self.arch)
        leave += registers_cycles(self.arch) + length + timing.loop_cycles
        return np.asarray(arrives)

    def _multiplied(self, num_rows: int, *, has_row: bool) -> int:
        """Cycles of the products with some rows for all columns of B.

        Each element takes two where reads meet. Column k of L lies from its first element on where
        row k is in the tile, else behind it.
        """
        rows, _, width = self.tile
        met = sum((column * rows - (not has_row)) % ROWS_APART == 0 for column in range(width))
        around = 0 if is_written_out(_PRODUCT_WEIGHT, width) else loop_cycles(width, self.arch)
        of_column = _PRODUCT + registers_cycles(self.arch) + 1
        return around + width * of_column + (width + met) * num_rows

    def _operation(self, name: str, length: int, strides: tuple[int, ...] = ()) -> int:
        return Operation(name, 2, strides=strides).cycles(int(length), self.arch)
