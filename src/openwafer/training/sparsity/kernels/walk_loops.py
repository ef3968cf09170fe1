"""The loops that write the walks of an index, compiled.

All take a pattern, the sizes of a walk (rows, rows of a panel, bits of a block's width, panels,
blocks), its segments (starts of blocks, rows, starts), and what is placed in them (columns, order).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from openwafer.training.sparsity.compiled import compiled

Numbers = NDArray[np.int32]
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
