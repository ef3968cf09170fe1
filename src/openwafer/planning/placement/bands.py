"""The floor plan: bands of layers side by side, one band behind the other like a snake.

Layers stay in their order. A band runs from one side of the fabric to the other, the next one back,
so that neighbours in the pipeline are neighbours on the wafer. For a given time of the slowest
layer each layer has a least width in a band of each height; the fewest rows for all layers follow
by dynamic programming over the places where bands begin, and the least time by bisection. Among
floor plans of this form none is faster, up to `PRECISION`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.planning.placement.layer_load import (
    Demand,
    Rectangle,
    slowest_cycles,
    wire_length,
)

PRECISION: Final = 1e-4
"""Of the bisection, relative."""

SLOWER: Final = 1.01
"""Times the least time that a floor plan may take for shorter wires."""

FAR: Final = 10**9
"""Cores that no fabric has."""

Counts: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class _Layers:
    """Layers in a fabric of `columns` by `rows`, one number of each layer in each array."""

    cycles: Numbers
    sum_share: Numbers
    least_cores: Counts
    output_bytes: Numbers
    columns: int
    rows: int

    def widths(self, most_cycles: float) -> Counts:
        """Least width of each layer in bands of 1 to `rows` rows, (layers, rows)."""
        heights = np.arange(1, self.rows + 1)
        work, share = self.cycles[:, None], self.sum_share[:, None]
        room = most_cycles * heights / np.maximum(work, most_cycles * heights / FAR)
        upright = np.where(room > share, np.ceil(1 / np.maximum(room - share, 1 / FAR)), FAR)
        lying = np.maximum(heights, np.ceil((1 + share * heights) / room))
        widths = np.where(upright <= heights, upright, lying)
        widths = np.maximum(widths, -(-self.least_cores[:, None] // heights))
        least: Counts = np.clip(widths, 1, FAR).astype(np.int64)
        return least

    def cores(self, most_cycles: float) -> int:
        """Fewest for all layers, each in a rectangle of its own; more than there are for none."""
        widths = self.widths(most_cycles)
        areas = np.where(widths <= self.columns, widths * np.arange(1, self.rows + 1), FAR)
        return int(areas.min(axis=1).sum())

    def least_cycles(self, fits: Callable[[float], bool]) -> tuple[float, float] | None:
        """Of the slowest layer, so few that they do not fit, and hardly more that do."""
        on_one_core = float((self.cycles * (1 + self.sum_share)).max())
        most = on_one_core * (1 + PRECISION) or 1.0
        if not fits(most):
            return None
        bound = float(self.cycles.sum()) / (self.columns * self.rows)
        if bound == 0:
            return bound, most
        low, high = bound, 1.25 * bound
        while not fits(high):
            low, high = high, min(2 * high, most)
        while high > (1 + PRECISION) * low:
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return low, high

    def band_rows(self, widths: Counts) -> Counts:
        """Fewest rows of a band with layers i to j - 1 at [i, j]; `FAR` where none are enough."""
        number = len(widths)
        ends = np.concatenate((np.zeros((1, self.rows), np.int64), widths.cumsum(axis=0)))
        least = np.full((number, number + 1), FAR)
        for first in range(number):
            narrow = ends[first + 1 :] - ends[first] > self.columns
            needed = narrow.sum(axis=1) + 1
            least[first, first + 1 :] = np.where(needed > self.rows, FAR, needed)
        return least


def _fewest_rows(band_rows: Counts) -> tuple[int, list[int]]:
    """Rows for all layers, and where the bands begin and end."""
    number = len(band_rows)
    rows = np.full(number + 1, FAR)
    rows[0] = 0
    behind = np.zeros(number + 1, np.int64)
    for end in range(1, number + 1):
        through = rows[:end] + band_rows[:end, end]
        behind[end] = through.argmin()
        rows[end] = min(through.min(), FAR)
    cuts = [number]
    while cuts[-1]:
        cuts.append(int(behind[cuts[-1]]))
    return int(rows[-1]), cuts[::-1]


def place_in_bands(
    demands: Sequence[Demand], columns: int, rows: int, core_bytes: float
) -> tuple[Rectangle, ...] | None:
    """The fastest floor plan in bands along rows or columns, or one hardly slower of less wire.

    None where the memory of the cores is too small for every floor plan of this form.
    """
    along = _along(demands, columns, rows, core_bytes)
    across = [
        tuple(Rectangle(r.y, r.x, r.rows, r.columns) for r in found)
        for found in _along(demands, rows, columns, core_bytes)
    ]
    found = [*along, *across]
    if not found:
        return None
    times = [slowest_cycles(demands, each) for each in found]
    fast = [each for each, time in zip(found, times, strict=True) if time <= SLOWER * min(times)]
    return min(fast, key=lambda each: wire_length(demands, each))


def least_cycles(
    demands: Sequence[Demand], columns: int, rows: int, core_bytes: float
) -> float | None:
    """Of the slowest layer, that no rectangles go below, wherever they lie, up to `PRECISION`.

    Each layer takes the fewest cores of the rectangles that are as fast and have its room, and all
    of them together at most the cores of the fabric. None where the memory is too small for all.
    """
    layers = _layers(demands, columns, rows, core_bytes)
    found = layers.least_cycles(lambda cycles: layers.cores(cycles) <= columns * rows)
    return None if found is None else found[0]


def _layers(demands: Sequence[Demand], columns: int, rows: int, core_bytes: float) -> _Layers:
    return _Layers(
        np.array([each.core_cycles for each in demands]),
        np.array([each.sum_share for each in demands]),
        np.array([each.least_cores(core_bytes) for each in demands], np.int64),
        np.array([each.output_bytes for each in demands]),
        columns,
        rows,
    )


def _along(
    demands: Sequence[Demand], columns: int, rows: int, core_bytes: float
) -> list[tuple[Rectangle, ...]]:
    """The fastest floor plan in bands along rows, and the one of least wire that is nearly so."""
    layers = _layers(demands, columns, rows, core_bytes)
    found = layers.least_cycles(
        lambda cycles: _fewest_rows(layers.band_rows(layers.widths(cycles)))[0] <= rows
    )
    if found is None:
        return []
    _, least = found
    widths = layers.widths(least)
    band_rows = layers.band_rows(widths)
    fastest = _rectangles(widths, band_rows, _fewest_rows(band_rows)[1], columns)
    widths = layers.widths(max(SLOWER * slowest_cycles(demands, fastest), least))
    band_rows = layers.band_rows(widths)
    shortest = _rectangles(widths, band_rows, _shortest(layers, widths, band_rows), columns)
    return [fastest, shortest]


def _shortest(layers: _Layers, widths: Counts, band_rows: Counts) -> list[int]:
    """Where bands begin and end so that wires are short, in as many rows as there are.

    Dynamic programming over ends of bands and rows used. Within a band wires go from middle to
    middle; from band to band they are counted by the bands' heights alone.
    """
    number, rows = len(widths), layers.rows
    wire = np.full((number + 1, rows + 1), np.inf)
    wire[0] = 0
    behind = np.zeros((number + 1, rows + 1), np.int64)
    sent = np.concatenate(([0.0], layers.output_bytes[:-1], [0.0]))
    for first in range(number):
        for end in range(first + 1, number + 1):
            height = int(band_rows[first, end])
            if height > rows:
                continue
            own = widths[first:end, height - 1]
            inside = layers.output_bytes[first : end - 1] @ (own[:-1] + own[1:]) / 2
            outside = (sent[first] + sent[end]) * height / 2
            through = wire[first, : rows + 1 - height] + inside + outside
            is_less = through < wire[end, height:]
            wire[end, height:][is_less] = through[is_less]
            behind[end, height:][is_less] = first
    cuts, left = [number], rows
    while cuts[-1]:
        first = int(behind[cuts[-1], left])
        left -= int(band_rows[first, cuts[-1]])
        cuts.append(first)
    return cuts[::-1]


def _rectangles(
    widths: Counts, band_rows: Counts, cuts: Sequence[int], columns: int
) -> tuple[Rectangle, ...]:
    placed = []
    y = 0
    for band, (first, end) in enumerate(pairwise(cuts)):
        height = int(band_rows[first, end])
        x = 0
        for width in map(int, widths[first:end, height - 1]):
            at = x if band % 2 == 0 else columns - x - width
            placed.append(Rectangle(at, y, width, height))
            x += width
        y += height
    return tuple(placed)
