"""The simplest floor plan, which the optimised one is compared with."""

import math
from collections.abc import Sequence
from typing import Final

from openwafer.planning.placement.layer_load import Demand, Rectangle

NUM_HALVINGS: Final = 40


def pack_rows(
    demands: Sequence[Demand], columns: int, rows: int, core_bytes: float
) -> tuple[Rectangle, ...] | None:
    """Squares of cores in proportion to work, or as memory needs, in rows from left to right.

    The next row begins where a square does not fit in its row, below the highest of that row. The
    squares are as large as fit; None where not even the memory fits.
    """
    total = sum(demand.core_cycles for demand in demands) or 1.0

    def packed(cores: float) -> tuple[Rectangle, ...] | None:
        areas = [
            max(demand.least_cores(core_bytes), cores * demand.core_cycles / total)
            for demand in demands
        ]
        return _in_rows([_square(area, columns) for area in areas], columns, rows)

    low, high = 0.0, float(columns * rows)
    best = packed(high) or packed(low)
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        found = packed(middle)
        low, high = (middle, high) if found else (low, middle)
        best = found or best
    return best


def _square(cores: float, columns: int) -> tuple[int, int]:
    width = min(math.ceil(math.sqrt(cores)), columns)
    return width, math.ceil(cores / width)


def _in_rows(
    sizes: Sequence[tuple[int, int]], columns: int, rows: int
) -> tuple[Rectangle, ...] | None:
    placed = []
    x = y = highest = 0
    for width, height in sizes:
        if x + width > columns:
            x, y, highest = 0, y + highest, 0
        placed.append(Rectangle(x, y, width, height))
        x, highest = x + width, max(highest, height)
        if y + highest > rows:
            return None
    return tuple(placed)
