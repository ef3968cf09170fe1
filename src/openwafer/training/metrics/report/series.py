"""Series of numbers made ready for drawing."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float64]

_MOST_POINTS = 1200


def finite_points(points: Iterable[tuple[float, float]]) -> tuple[Series, Series]:
    """The x and y of all points whose y is a finite number."""
    table = np.array(list(points), dtype=np.float64).reshape(-1, 2)
    table = table[np.isfinite(table[:, 1])]
    return table[:, 0], table[:, 1]


def moving_mean(values: Series, window: int) -> Series:
    """The mean of the `window` values around each one, of fewer at both ends."""
    kernel = np.ones(window)
    counts = np.convolve(np.ones_like(values), kernel, mode="same")
    return np.asarray(np.convolve(values, kernel, mode="same") / counts, dtype=np.float64)


def thin(x: Series, y: Series) -> tuple[Series, Series]:
    """At most 1200 points, the lowest and the highest of each bucket, so that no peak is lost."""
    if len(x) <= _MOST_POINTS:
        return x, y
    buckets = np.array_split(np.arange(len(x)), _MOST_POINTS // 2)
    ends = [(bucket[y[bucket].argmin()], bucket[y[bucket].argmax()]) for bucket in buckets]
    kept = np.unique(np.array(ends))
    return x[kept], y[kept]
