"""The order in which the products walk a pattern: derived from it, rebuilt whenever it changes."""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openwafer.diagnostics import error
from openwafer.training.sparsity.compiled import compiled
from openwafer.training.sparsity.pattern import Pattern

PANEL_ROWS: Final = 1024
"""Rows whose tiles of sums stay in the second cache."""
FEW_A_SEGMENT: Final = 9
"""A segment with fewer kept positions spends its time on its sums, which it reads and writes."""
NARROWEST_BLOCK: Final = 128
"""Columns whose tiles fill the first cache."""
WIDEST_BLOCK: Final = 1024
AHEAD: Final = 6
"""Segments between asking memory for a row's tile and its use."""
NUM_SIZES: Final = 6
MOST_KEPT: Final = (1 << 31) - 1

Numbers = NDArray[np.int32]


@dataclass(frozen=True)
class Walk:
    """A matrix of kept positions in panels of rows, these in blocks of columns, these in segments.

    A segment is what a block has of one row. The segments of a block stand in descending order of
    their length, so that the processor foresees where each one ends; those without a kept position
    are left out, except in the first block of a panel, where the sums of all rows begin.

    Attributes:
        shape: rows and columns.
        panel_rows: rows of a panel; the last one may have fewer.
        block_columns: columns of a block, likewise.
        block_starts: `int32 [panels * blocks + 1]`: first segment of each block.
        rows: `int32 [segments + AHEAD]`: row of each segment in its panel, and some that none has.
        starts: `int32 [segments + 1]`: first place of each segment in `columns`.
        order: `int32 [num_kept]`: place of each kept position in the order of the pattern.
        columns: `uint16 [num_kept]`: column in its block.
    """

    shape: tuple[int, int]
    panel_rows: int
    block_columns: int
    block_starts: Numbers
    rows: Numbers
    starts: Numbers
    order: Numbers
    columns: NDArray[np.uint16]

    @property
    def num_panels(self) -> int:
        """Panels of the matrix."""
        return -(-self.shape[0] // self.panel_rows)

    @property
    def num_blocks(self) -> int:
        """Blocks of a panel, of which there is one even without columns."""
        return max(1, -(-self.shape[1] // self.block_columns))

    def words(self) -> Numbers:
        """The walk as one list of numbers: sizes, then the arrays in the order of above."""
        sizes = (*self.shape, self.panel_rows, self.block_columns, self.starts.size - 1)
        columns = np.zeros(self.columns.size + self.columns.size % 2, np.uint16)
        columns[: self.columns.size] = self.columns
        arrays = (self.block_starts, self.rows, self.starts, self.order, columns.view(np.int32))
        return np.concatenate([np.array([*sizes, self.columns.size], np.int32), *arrays])

    @classmethod
    def of_words(cls, words: Numbers) -> tuple["Walk", Numbers]:
        """The walk at the beginning of a list of numbers, and the numbers behind it."""
        rows, columns, panel_rows, width, segments, num_kept = words[:NUM_SIZES].tolist()
        num_blocks = -(-rows // panel_rows) * max(1, -(-columns // width))
        lengths = (num_blocks + 1, segments + AHEAD, segments + 1, num_kept, -(-num_kept // 2))
        ends = [*accumulate(lengths, initial=NUM_SIZES)]
        blocks, numbers, starts, order, walked = [words[a:b] for a, b in pairwise(ends)]
        arrays = blocks, numbers, starts, order, walked.view(np.uint16)[:num_kept]
        return cls((rows, columns), panel_rows, width, *arrays), words[ends[-1] :]


@dataclass(frozen=True)
class Index:
    """What the products of one weight need beside its values, in one tensor that can be moved.

    Attributes:
        shape: rows and columns of the weight.
        num_kept: its kept positions.
        words: `int32 [num_words]`: the walk of the weight, for what it does to its input and for
            its own gradient; then that of the weight with rows and columns exchanged, for the
            gradient of the input.
    """

    shape: tuple[int, int]
    num_kept: int
    words: Tensor

    @classmethod
    def of(cls, pattern: Pattern) -> "Index":
        """The index of a pattern; takes some milliseconds for a million positions."""
        rows, columns = pattern.shape
        if pattern.num_kept > MOST_KEPT:
            raise error(
                "sparse-index",
                f"a weight of {rows} x {columns} keeps {pattern.num_kept} positions, where products"
                f" count {MOST_KEPT}",
                help="cut the weight into several",
            )
        given = np.arange(pattern.num_kept, dtype=np.int32)
        weight = _walk(pattern.shape, pattern.row_starts, pattern.columns, given)
        starts = np.zeros(columns + 1, np.int64)
        found, order = np.empty((2, pattern.num_kept), np.int32)
        _exchange(pattern.row_starts, pattern.columns, starts, found, order)
        transposed = _walk((columns, rows), starts, found, order)
        words = np.concatenate([weight.words(), transposed.words()])
        return cls(pattern.shape, pattern.num_kept, torch.from_numpy(words))


def walks_of(words: Tensor) -> tuple[Walk, Walk]:
    """The two walks of an index, as views of its words."""
    weight, rest = Walk.of_words(words.numpy())
    transposed, _ = Walk.of_words(rest)
    return weight, transposed


def block_columns(shape: tuple[int, int], num_kept: int) -> int:
    """Columns of a block: as few as fit the first cache, more where segments would be short."""
    rows, columns = shape
    width = NARROWEST_BLOCK
    while width < WIDEST_BLOCK and num_kept * width < FEW_A_SEGMENT * rows * columns:
        width *= 2
    return width


def _walk(
    shape: tuple[int, int],
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
    order: NDArray[np.int32],
) -> Walk:
    width = block_columns(shape, order.size)
    panel_rows = max(1, min(shape[0], PANEL_ROWS))
    panels, blocks = -(-shape[0] // panel_rows), max(1, -(-shape[1] // width))
    block_starts = np.zeros(panels * blocks + 1, np.int32)
    rows, starts = np.zeros((2, blocks * shape[0] + 1 + AHEAD), np.int32)
    walked = np.empty(order.size, np.uint16)
    walked_order = np.empty(order.size, np.int32)
    pattern, walk = (row_starts, columns, order), (block_starts, rows, starts)
    _cut(pattern, (panel_rows, width, panels, blocks), walk, (walked, walked_order))
    used = int(block_starts[-1])
    rows, starts = rows[: used + AHEAD].copy(), starts[: used + 1].copy()
    return Walk(shape, panel_rows, width, block_starts, rows, starts, walked_order, walked)


@compiled
def _exchange(
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
    starts: NDArray[np.int64],
    found: NDArray[np.int32],
    order: NDArray[np.int32],
) -> None:
    """Rows of each column, and the places where the pattern has them."""
    for column in columns:
        starts[np.int64(column) + 1] += 1
    for column in range(starts.size - 1):
        starts[column + 1] += starts[column]
    place_of = starts[:-1].copy()
    for row in range(row_starts.size - 1):
        for place in range(row_starts[row], row_starts[row + 1]):
            following = place_of[columns[place]]
            place_of[columns[place]] = following + 1
            found[following] = row
            order[following] = place


@compiled
def _cut(
    pattern: tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int32]],
    sizes: tuple[int, int, int, int],
    walk: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]],
    placed: tuple[NDArray[np.uint16], NDArray[np.int32]],
) -> None:
    """Fill a walk; `placed` is its columns and order."""
    row_starts, columns, order = pattern
    panel_rows, width, panels, blocks = sizes
    block_starts, rows, starts = walk
    walked, walked_order = placed
    place, segment = np.int64(0), np.int64(0)
    for panel in range(panels):
        first = panel * panel_rows
        height = min(panel_rows, row_starts.size - 1 - first)
        counts = np.zeros((blocks, height), np.int32)
        for row in range(height):
            for at in range(row_starts[first + row], row_starts[first + row + 1]):
                counts[np.int64(columns[at]) // width, row] += 1
        for block in range(blocks):
            block_starts[panel * blocks + block] = segment
            end = segment + _sort(counts[block], width, rows[segment:])
            if block == 0:
                end = segment + height
            for number in range(segment, end):
                starts[number] = place
                count = counts[block, rows[number]]
                counts[block, rows[number]] = place
                place += count
            segment = end
        for row in range(height):
            for at in range(row_starts[first + row], row_starts[first + row + 1]):
                of = np.int64(columns[at]) // width
                following = counts[of, row]
                counts[of, row] = following + 1
                walked[following] = np.int64(columns[at]) - of * width
                walked_order[following] = order[at]
    block_starts[-1] = segment
    starts[segment] = place


@compiled
def _sort(counts: NDArray[np.int32], most: int, rows: NDArray[np.int32]) -> int:
    """Rows in descending order of their counts; returns how many have one at all."""
    place_of = np.zeros(most + 2, np.int64)
    for count in counts:
        place_of[most - count + 1] += 1
    for count in range(most + 1):
        place_of[count + 1] += place_of[count]
    with_any: int = place_of[most]
    for row in range(counts.size):
        following = place_of[most - counts[row]]
        place_of[most - counts[row]] = following + 1
        rows[following] = row
    return with_any
