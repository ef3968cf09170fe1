"""The order in which the products walk a pattern: derived from it, rebuilt whenever it changes."""

from collections.abc import Sequence
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
NUM_SIZES: Final = 5
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
        rows: `int32 [most segments + AHEAD]`: row of each segment in its panel.
        starts: `int32 [most segments + 1]`: first place of each segment in `columns`.
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

    @classmethod
    def of_words(cls, words: Numbers) -> tuple["Walk", Numbers]:
        """The walk at the beginning of a list of numbers, as views, and the numbers behind it."""
        rows, columns, panel_rows, width, num_kept = sizes = words[:NUM_SIZES].tolist()
        ends = [*accumulate(_lengths(sizes), initial=NUM_SIZES)]
        blocks, numbers, starts, order, walked = [words[a:b] for a, b in pairwise(ends)]
        arrays = blocks, numbers, starts, order, walked.view(np.uint16)[:num_kept]
        return cls((rows, columns), panel_rows, width, *arrays), words[ends[-1] :]


def _sizes(shape: tuple[int, int], num_kept: int) -> list[int]:
    """What stands at the beginning of a walk's words."""
    panel_rows = max(1, min(shape[0], PANEL_ROWS))
    return [*shape, panel_rows, block_columns(shape, num_kept), num_kept]


def _lengths(sizes: Sequence[int]) -> list[int]:
    """Words of each array of a walk, with room for a segment of every row in every block."""
    rows, columns, panel_rows, width, num_kept = sizes
    blocks = max(1, -(-columns // width))
    most = blocks * rows
    num_starts = -(-rows // panel_rows) * blocks + 1
    return [num_starts, most + AHEAD, most + 1, num_kept, -(-num_kept // 2)]


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
        sizes = [_sizes(shape, pattern.num_kept) for shape in ((rows, columns), (columns, rows))]
        words = np.empty(sum(NUM_SIZES + sum(_lengths(each)) for each in sizes), np.int32)
        given = np.arange(pattern.num_kept, dtype=np.int32)
        rest = _walk((pattern.row_starts, pattern.columns, given), sizes[0], words)
        starts = np.zeros(columns + 1, np.int64)
        found, order = np.empty((2, pattern.num_kept), np.int32)
        _exchange(pattern.row_starts, pattern.columns, starts, found, order)
        _walk((starts, found, order), sizes[1], rest)
        return cls(pattern.shape, pattern.num_kept, torch.from_numpy(words))


def walks_of(words: Tensor) -> tuple[Walk, Walk]:
    """The two walks of an index, as views of its words."""
    weight, rest = Walk.of_words(words.numpy())
    transposed, _ = Walk.of_words(rest)
    return weight, transposed


def most_words(shape: tuple[int, int], num_kept: int) -> int:
    """Words that an index of a pattern with at most so many kept positions has at most."""
    return sum(_most_words(way, num_kept) for way in (shape, (shape[1], shape[0])))


def _most_words(shape: tuple[int, int], num_kept: int) -> int:
    panels = -(-shape[0] // max(1, min(shape[0], PANEL_ROWS)))
    blocks = max(1, -(-shape[1] // block_columns(shape, num_kept)))
    segments = blocks * shape[0]
    starts = (panels * blocks + 1) + (segments + AHEAD) + (segments + 1)
    return NUM_SIZES + starts + num_kept + -(-num_kept // 2)


def block_columns(shape: tuple[int, int], num_kept: int) -> int:
    """Columns of a block: as few as fit the first cache, more where segments would be short."""
    rows, columns = shape
    width = NARROWEST_BLOCK
    while width < WIDEST_BLOCK and num_kept * width < FEW_A_SEGMENT * rows * columns:
        width *= 2
    return width


def _walk(
    matrix: tuple[NDArray[np.int64], NDArray[Any], Numbers], sizes: Sequence[int], words: Numbers
) -> Numbers:
    """Write the walk of a matrix, and return the words behind it.

    A matrix is the starts of its rows, its columns, and the place of each in the pattern's order.
    """
    words[:NUM_SIZES] = sizes
    walk, rest = Walk.of_words(words)
    width_bits = walk.block_columns.bit_length() - 1
    numbers = (walk.panel_rows, width_bits, walk.num_panels, walk.num_blocks)
    _cut(matrix, numbers, (walk.block_starts, walk.rows, walk.starts), (walk.columns, walk.order))
    return rest


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
    panel_rows, width_bits, panels, blocks = sizes
    width = 1 << width_bits
    block_starts, rows, starts = walk
    walked, walked_order = placed
    place, segment = np.int64(0), np.int64(0)
    for panel in range(panels):
        first = panel * panel_rows
        height = min(panel_rows, row_starts.size - 1 - first)
        counts = np.zeros((blocks, height), np.int32)
        for row in range(height):
            for at in range(row_starts[first + row], row_starts[first + row + 1]):
                counts[np.int64(columns[at]) >> width_bits, row] += 1
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
                of = np.int64(columns[at]) >> width_bits
                following = counts[of, row]
                counts[of, row] = following + 1
                walked[following] = np.int64(columns[at]) & (width - 1)
                walked_order[following] = order[at]
    block_starts[-1] = segment
    starts[segment] = place
    rows[segment : segment + AHEAD] = 0


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
