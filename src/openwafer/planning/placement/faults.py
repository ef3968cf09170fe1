"""Checks a floor plan against its promises, by other code than made it."""

from collections.abc import Iterator, Sequence

import numpy as np

from openwafer.planning.placement.floor_plan import PlacedLayer
from openwafer.planning.placement.layer_load import Demand


def find_faults(
    placed: Sequence[PlacedLayer],
    demands: Sequence[Demand],
    replicas: int,
    size: tuple[int, int],
    core_bytes: float,
) -> tuple[str, ...]:
    """What is wrong with a floor plan on a fabric of `size`, columns and rows; nothing if valid.

    Cores are counted one by one: none may be in two rectangles or outside the fabric. Each layer
    of each replica stands once, on cores that together have room for it.
    """
    return (
        *_misplaced(placed, demands, replicas),
        *_overlaps(placed, size),
        *_overfull(placed, demands, core_bytes),
    )


def _misplaced(
    placed: Sequence[PlacedLayer], demands: Sequence[Demand], replicas: int
) -> Iterator[str]:
    found = sorted((each.replica, each.layer) for each in placed)
    expected = [(replica, layer) for replica in range(replicas) for layer in range(len(demands))]
    if found != expected:
        yield f"layers {found} are placed, not {expected}"


def _overlaps(placed: Sequence[PlacedLayer], size: tuple[int, int]) -> Iterator[str]:
    columns, rows = size
    taken = np.zeros((rows, columns), np.int32)
    for each in placed:
        own = each.rectangle
        is_inside = 0 <= own.x < own.x + own.columns <= columns
        if not (is_inside and 0 <= own.y < own.y + own.rows <= rows):
            yield f"{own} of layer {each.layer} is not inside {columns} x {rows} cores"
            continue
        taken[own.y : own.y + own.rows, own.x : own.x + own.columns] += 1
    if (taken > 1).any():
        y, x = (int(index[0]) for index in (taken > 1).nonzero())
        yield f"the core ({x}, {y}) is in {taken[y, x]} rectangles"


def _overfull(
    placed: Sequence[PlacedLayer], demands: Sequence[Demand], core_bytes: float
) -> Iterator[str]:
    for each in placed:
        held = demands[each.layer].held_bytes / (each.rectangle.columns * each.rectangle.rows)
        if held > core_bytes:
            yield f"layer {each.layer} takes {held:.6g} B of each core, which has {core_bytes:g} B"
