"""The order in which the products walk a pattern: derived from it, rebuilt whenever it changes.

The compiled loops take a pattern, the sizes of a walk (rows, rows of a panel, bits of a block's
width, panels, blocks), its segments (starts of blocks, rows, starts), and what is placed in them
(columns, order).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openwafer.diagnostics import error
from openwafer.training.sparsity.pattern import Pattern, compiled

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


def _both_sizes(shape: tuple[int, int], num_kept: int) -> list[list[int]]:
    """What stands at the beginning of each walk's words."""
    return [
        [*way, max(1, min(way[0], PANEL_ROWS)), block_columns(way, num_kept), num_kept]
        for way in (shape, (shape[1], shape[0]))
    ]


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
        words = np.empty(most_words(pattern.shape, pattern.num_kept), np.int32)
        write_walks(pattern, words)
        return cls(pattern.shape, pattern.num_kept, torch.from_numpy(words))


def write_walks(pattern: Pattern, words: Numbers, *, has_transposed: bool = True) -> list[Walk]:
    """Write the walks of an index into words given, at least :func:`most_words`; views of them."""
    sizes, exchanged = _both_sizes(pattern.shape, pattern.num_kept)
    rest = _write(write_walk, pattern, sizes, words)
    walks = [Walk.of_words(words)[0]]
    if has_transposed:
        _write(write_transposed_walk, pattern, exchanged, rest)
        walks.append(Walk.of_words(rest)[0])
    return walks


def walks_of(words: Tensor) -> tuple[Walk, Walk]:
    """The two walks of an index, as views of its words."""
    weight, rest = Walk.of_words(words.numpy())
    transposed, _ = Walk.of_words(rest)
    return weight, transposed


def most_words(shape: tuple[int, int], num_kept: int) -> int:
    """Words that an index of a pattern with at most so many kept positions has at most."""
    return sum(NUM_SIZES + sum(_lengths(sizes)) for sizes in _both_sizes(shape, num_kept))


def block_columns(shape: tuple[int, int], num_kept: int) -> int:
    """Columns of a block: as few as fit the first cache, more where segments would be short."""
    rows, columns = shape
    width = NARROWEST_BLOCK
    while width < WIDEST_BLOCK and num_kept * width < FEW_A_SEGMENT * rows * columns:
        width *= 2
    return width


def _write(
    write: Callable[..., int], pattern: Pattern, sizes: Sequence[int], words: Numbers
) -> Numbers:
    """Write a walk of a pattern, and return the words behind it."""
    words[:NUM_SIZES] = sizes
    walk, rest = Walk.of_words(words)
    words[: words.size - rest.size][-1:] = 0  # half of it is nothing's, for an odd number
    width_bits = walk.block_columns.bit_length() - 1
    numbers = (walk.shape[0], walk.panel_rows, width_bits, walk.num_panels, walk.num_blocks)
    segments, placed = (walk.block_starts, walk.rows, walk.starts), (walk.columns, walk.order)
    num_segments = write(pattern.row_starts, pattern.columns, numbers, segments, placed)
    walk.rows[num_segments:] = walk.starts[num_segments + 1 :] = 0
    return rest


Segments = tuple[Numbers, Numbers, Numbers]
Placed = tuple[NDArray[np.uint16], Numbers]
Sizes = tuple[int, int, int, int, int]


@compiled
def write_walk(
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
    sizes: Sizes,
    segments: Segments,
    placed: Placed,
) -> int:
    """Write the walk of a pattern, panel after panel; returns its number of segments."""
    _, panel_rows, width_bits, panels, blocks = sizes
    segment, place = 0, 0
    for panel in range(panels):
        starts = row_starts[panel * panel_rows : (panel + 1) * panel_rows + 1]
        counts = np.empty((blocks, starts.size - 1), np.int32)
        _count_runs(starts, columns, width_bits, counts)
        places = np.empty_like(counts)
        for block in range(blocks):
            segments[0][panel * blocks + block] = segment
            at = segment, place, 1 << width_bits
            segment, place = _number(counts[block], places[block], block == 0, at, segments)
        _place_runs(starts, columns, width_bits, (counts, places), placed)
    segments[0][-1] = segment
    segments[2][segment] = place
    return segment


@compiled
def _count_runs(
    starts: NDArray[np.int64], columns: NDArray[Any], width_bits: int, counts: NDArray[np.int32]
) -> None:
    for row in range(counts.shape[1]):
        place, end = starts[row], starts[row + 1]
        for block in range(counts.shape[0]):
            begin, bound = place, (block + 1) << width_bits
            while place < end and np.int64(columns[place]) < bound:
                place += 1
            counts[block, row] = place - begin


@compiled
def _place_runs(
    starts: NDArray[np.int64],
    columns: NDArray[Any],
    width_bits: int,
    runs: tuple[Numbers, Numbers],
    placed: Placed,
) -> None:
    counts, places = runs
    walked, order = placed
    for row in range(counts.shape[1]):
        place = starts[row]
        for block in range(counts.shape[0]):
            target = places[block, row]
            for number in range(counts[block, row]):
                walked[target + number] = np.int64(columns[place]) & ((1 << width_bits) - 1)
                order[target + number] = place
                place += 1


@compiled
def write_transposed_walk(
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
    sizes: Sizes,
    segments: Segments,
    placed: Placed,
) -> int:
    """Write the walk of a pattern whose rows and columns are exchanged; returns its segments.

    What is a panel of that walk are columns here, and a block of it some rows, taken at a time.
    """
    num_columns, panel_columns, height_bits, panels, blocks = sizes
    segment, place = 0, 0
    passed = row_starts[:-1].copy()
    for panel in range(panels):
        bounds = panel * panel_columns, min((panel + 1) * panel_columns, num_columns)
        for block in range(blocks):
            rows = block << height_bits, min((block + 1) << height_bits, row_starts.size - 1)
            counts = np.zeros(bounds[1] - bounds[0], np.int32)
            _count_columns(row_starts, columns, passed, (bounds, rows), counts)
            places = np.empty_like(counts)
            segments[0][panel * blocks + block] = segment
            at = segment, place, 1 << height_bits
            segment, place = _number(counts, places, block == 0, at, segments)
            _place_columns(row_starts, columns, passed, (bounds, rows, places), placed)
    segments[0][-1] = segment
    segments[2][segment] = place
    return segment


@compiled
def _count_columns(
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
    passed: NDArray[np.int64],
    area: tuple[tuple[int, int], tuple[int, int]],
    counts: Numbers,
) -> None:
    """Count the columns of an area; each of its rows has passed those before it."""
    (first, end), rows = area
    for row in range(rows[0], rows[1]):
        for place in range(passed[row], row_starts[row + 1]):
            column = np.int64(columns[place])
            if column >= end:
                break
            counts[column - first] += 1


@compiled
def _place_columns(
    row_starts: NDArray[np.int64],
    columns: NDArray[Any],
    passed: NDArray[np.int64],
    area: tuple[tuple[int, int], tuple[int, int], Numbers],
    placed: Placed,
) -> None:
    (first, end), rows, places = area
    walked, order = placed
    for row in range(rows[0], rows[1]):
        place = passed[row]
        while place < row_starts[row + 1] and np.int64(columns[place]) < end:
            column = np.int64(columns[place]) - first
            target = places[column]
            places[column] = target + 1
            walked[target] = row - rows[0]
            order[target] = place
            place += 1
        passed[row] = place


@compiled
def _number(
    counts: Numbers,
    places: Numbers,
    has_all: bool,
    at: tuple[int, int, int],
    segments: Segments,
) -> tuple[int, int]:
    """Number the segments of a block, the longest first, and say where those of each row begin.

    `at` is the number of the first segment, its first place, and the most positions of one.
    """
    segment, place, most = at
    _, rows, starts = segments
    followers = np.zeros(most + 2, np.int64)
    for count in counts:
        followers[most - count + 1] += 1
    for count in range(most + 1):
        followers[count + 1] += followers[count]
    end = segment + (counts.size if has_all else followers[most])
    for row in range(counts.size):
        number = followers[most - counts[row]]
        followers[most - counts[row]] = number + 1
        rows[segment + number] = row
    for number in range(segment, end):
        starts[number] = place
        places[rows[number]] = place
        place += counts[rows[number]]
    return end, place
