"""Cycles of a factorization: each PE's instructions, operations and words, step by step.

Of the PEs that are left in a step, those of the first row have row k and those of the first column
have column k; each of the others does what the one before does, a hop later. So two rows and two
columns are walked, and arrays here are (2, 2): of the PE that has both, of one with row k, of one
with column k, and of one with none. Constants are instructions of ``factorization_pe.csl``.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import drain_cycles
from openwafer.sdk.ir.prices import constant_product_cycles
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

_SETUP: Final = 13
"""Which steps a PE has, beside two products with its coordinates."""
_BEGIN: Final = np.array([[52, 27], [26, 1]])
"""From there to the first step."""
_END: Final = 6
"""Of the test that ends a loop of steps."""
_BOTH: Final = (50, 29)
"""To the first step with row k and column k, of PEs that had none, or one of them, before."""
_OTHER: Final = (13, 11)
"""Where such a PE that had one finds that it sends the other one already: on the edge, or not."""
_MOVED_ROW: Final = 28
_MOVED_COLUMN: Final = 27
"""To the first step with row k or column k, of PEs that had none."""
_TURN: Final = np.array([[6, 2], [2, 0]])
"""Of a step's loop, beside its turn."""
_ROW: Final = np.array([[18, 5], [11, 0]])
"""Until row k is copied or received."""
_SENT_ROW: Final = np.array([6, 3])
_KEPT: Final = 6
"""Until row k or column k is sent, and where the last PE finds that it is not."""
_LEFT: Final = 4
"""Until a PE knows that rows are left, of those before column k."""
_COLUMN: Final = np.array([27, 12])
"""Until column k is scaled, beside its factor."""
_ROOT: Final = np.array([19, 27])
"""One over the pivot's root; a PE with column k alone has nothing else to do meanwhile."""
_SCALED: Final = np.array([7, 2])
"""Around what is scaled until it is copied back."""
_SENT_COLUMN: Final = np.array([6, 3])
_RECEIVED: Final = np.array([14, 0])
"""Until a PE receives column k."""
_NOTHING: Final = 7
"""Where no rows are left, or no columns."""
_UPDATE: Final = np.array([[20, 13], [13, 4]])
"""Until the first product."""
_SYMMETRIC: Final = np.array([[13, 11], [11, 5]])
"""More of a symmetric matrix, whose row k is scaled."""
_PRODUCT: Final = 11
"""Around the product for a column of the tile."""
_PRODUCT_WEIGHT: Final = 11
"""The same as the compiler counts instructions."""


@dataclass(frozen=True)
class Walk:
    """A factorization on PEs.

    Attributes:
        order: rows and columns of the matrix.
        size: rows and columns of PEs.
        tile: rows and columns of the matrix on a PE.
        arch: the generation.
        is_symmetric: whether the factors are L and its transpose.
    """

    order: int
    size: tuple[int, int]
    tile: tuple[int, int]
    arch: Arch
    is_symmetric: bool

    def cycles(self) -> int:
        """From the first PE's start to the last one's end."""
        hop, last = GENERATIONS[self.arch].timing.hop_cycles, 0.0
        products = sum(constant_product_cycles(1, n) for n in self.tile)
        ready = _SETUP + products + _BEGIN + hop * np.array([0, 1])
        for step in range(self.order):
            (y, row), (x, column) = divmod(step, self.tile[0]), divmod(step, self.tile[1])
            if step:
                ready = self._moved(ready, (y, x), (row == 0, column == 0))
            left = (self.size[0] - y, self.size[1] - x)
            num_rows = np.array([self.tile[0] - row - (not self.is_symmetric), self.tile[0]])
            num_columns = np.array([self.tile[1] - column, self.tile[1]])
            ready = ready + GENERATIONS[self.arch].timing.loop_cycles + _TURN
            ready = self._with_row(ready, num_columns, left[0])
            if num_rows[0] > 0:
                ready = self._with_column(ready, num_rows, left[1])
                ready = ready + self._multiplied(num_rows, num_columns)
            else:
                rest = self._with_column(ready[1:], num_rows[1:], left[1])
                rest = rest + self._multiplied(num_rows[1:], num_columns)
                ready = np.stack([ready[0] + _NOTHING, rest[0]])
            # Those behind the second row and column are hops later.
            later = hop * np.array([0, left[0] - 2])[:, None] + hop * np.array([0, left[1] - 2])
            last = max(last, float((ready + later)[: min(left[0], 2), : min(left[1], 2)].max()))
        return LOOK_CYCLES + round(last) + _END

    def _moved(self, ready: Cycles, to: tuple[int, int], moves: tuple[bool, bool]) -> Cycles:
        """Behind the last step of a row of PEs, of a column, or of both, to a row and a column."""
        hop, (down, along) = GENERATIONS[self.arch].timing.hop_cycles, moves
        ready, before = ready.copy(), float(ready[int(down), int(along)])
        if down:
            ready = np.stack([ready[1], ready[1] + hop])
            ready[0, 1] += _MOVED_ROW
        if along:
            ready = np.stack([ready[:, 1], ready[:, 1] + hop], axis=1)
            ready[1, 0] += _MOVED_COLUMN
        if down != along:
            ready[0, 0] = before + _BOTH[1] + _OTHER[to[int(down)] > 0]
        elif down:
            ready[0, 0] = before + _BOTH[0]
        return ready

    def _with_row(self, ready: Cycles, lengths: NDArray[np.int64], num_left: int) -> Cycles:
        """Row k is copied and goes down: numbers of it on PEs of both columns."""
        ready = ready + _ROW
        ready[0, 0] += constant_product_cycles(1, self.tile[0])
        copied = [self._operation("fmovs", n, 2, (self.tile[0],)) for n in lengths.tolist()]
        ready[0] += copied
        if num_left > 1:
            ready[0] += _SENT_ROW
            ready[1] = self._received(ready[0], ready[1], lengths)
            ready[0] += registers_cycles(self.arch) + lengths
        elif self.size[0] > 1:
            ready[0] += _KEPT
        return ready

    def _with_column(self, ready: Cycles, num_rows: NDArray[np.int64], num_left: int) -> Cycles:
        """Column k is scaled and goes east: numbers of it on PEs of the last rows."""
        rows, ready = slice(2 - len(num_rows), None), ready.copy()
        divided = GENERATIONS[self.arch].timing.divide_cycles + 1
        factor = _ROOT[rows] + 1 if self.is_symmetric else divided
        ready[:, 0] += self._pivot_waits[rows] + _COLUMN[rows] + factor
        ready[:, 0] += [self._operation("fmuls", n, 2) for n in num_rows.tolist()]
        lengths = num_rows + self.is_symmetric
        ready[:, 1] += _RECEIVED[rows]
        if num_left > 1:
            ready[:, 0] += _SENT_COLUMN[rows] + [self.is_symmetric, 0][rows]
            ready[:, 1] = self._received(ready[:, 0], ready[:, 1], lengths)
            ready[:, 0] += registers_cycles(self.arch) + lengths
        elif self.size[1] > 1:
            ready[:, 0] += _KEPT
        copied = [self._operation("fnegs", n, 2) for n in num_rows.tolist()]
        ready[:, 0] += _SCALED[rows] + copied
        return ready

    def _multiplied(self, num_rows: NDArray[np.int64], num_columns: NDArray[np.int64]) -> Cycles:
        """Cycles of the products of a step on PEs of the last rows."""
        rows = slice(2 - len(num_rows), None)
        counts = num_columns - [1, 0]
        taken = _UPDATE[rows].astype(np.float64)
        taken[:, 0] += constant_product_cycles(1, self.tile[0])
        if self.is_symmetric:
            taken[:, 1] += self._pivot_waits[1]
            taken += _SYMMETRIC[rows] + [self._operation("fmuls", n, 2) for n in counts.tolist()]
        # The loop of all columns is written out where they are few.
        loops = [True, not is_written_out(_PRODUCT_WEIGHT, int(counts[1]))]
        around = [does * loop_cycles(n, self.arch) for does, n in zip(loops, counts, strict=True)]
        turns = counts + [_num_meeting(self.tile, count) for count in counts.tolist()]
        of_column = _PRODUCT + registers_cycles(self.arch) + 1
        taken += counts * of_column + around + turns * num_rows[:, None]
        taken[:, 0] = taken[:, 0] if counts[0] else _NOTHING
        return taken

    def _received(self, sender: Cycles, ready: Cycles, lengths: NDArray[np.int64]) -> Cycles:
        """When PEs have what others send that are a hop before them."""
        sent = sender + first_word_cycles(1, self.arch)
        return np.asarray(np.maximum(ready + registers_cycles(self.arch), sent) + lengths)

    @property
    def _pivot_waits(self) -> NDArray[np.int64]:
        """Until a number of a row that was copied, or of what was received, can be loaded."""
        timing = GENERATIONS[self.arch].timing
        received = drain_cycles(timing.drain_cycles, timing.load_latency, reads_memory=False)
        return np.array([max(0, timing.drain_cycles - _LEFT), received])

    def _operation(
        self, name: str, length: int, num_registers: int, strides: tuple[int, ...] = ()
    ) -> int:
        return Operation(name, num_registers, strides=strides).cycles(length, self.arch)


@lru_cache(maxsize=4096)
def _num_meeting(tile: tuple[int, int], last: int) -> int:
    """How many of the last columns of a tile are read in turns with column k of L."""
    rows, columns = tile
    # Both arrays begin at a row of memory; elements of the second are one further.
    apart = np.arange(columns - last, columns) * rows - 1
    return int((apart % ROWS_APART == 0).sum())
