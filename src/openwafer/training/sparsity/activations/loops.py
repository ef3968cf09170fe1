"""The compiled loops over activations: how many are not zero, which ones, and back again."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from openwafer.training.sparsity.compiled import compiled

Floats = NDArray[np.float32]
Starts = NDArray[np.int64]


@compiled
def count(rows: Floats, counts: Starts) -> None:
    """Set `counts [rows]` to how many of each row are not zero."""
    for row in range(rows.shape[0]):
        found = np.int32(0)
        for column in range(rows.shape[1]):
            found += np.int32(rows[row, column] != 0)
        counts[row] = found


@compiled
def take(rows: Floats, columns: NDArray[Any], values: Floats) -> None:
    """Copy what is not zero, row after row; both lists have a place more than there is to copy."""
    place = 0
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            number = rows[row, column]
            # Written in any case: a branch that follows random zeros costs ten times as much.
            columns[place] = column
            values[place] = number
            place += number != 0


@compiled
def spread(starts: Starts, columns: NDArray[Any], values: Floats, rows: Floats) -> None:
    """Set rows to values at their columns, and to zero elsewhere."""
    for row in range(rows.shape[0]):
        rows[row, :] = 0
        for place in range(starts[row], starts[row + 1]):
            rows[row, columns[place]] = values[place]
