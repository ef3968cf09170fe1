"""Unions of half-open time intervals, as sorted disjoint pairs of seconds."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Interval = tuple[float, float]
Intervals = tuple[Interval, ...]


def union(intervals: Iterable[Interval], *, bridge_seconds: float = 0.0) -> Intervals:
    """The sorted disjoint intervals that cover the same time; empty ones vanish.

    Gaps of at most `bridge_seconds` are filled, which keeps a drawing of thousands of spans
    small without changing what the eye can see.
    """
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and start <= merged[-1][1] + bridge_seconds:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return tuple(merged)


def subtract(minuend: Intervals, subtrahend: Intervals) -> Intervals:
    """The time in `minuend` that is not in `subtrahend`; both sorted and disjoint."""
    starts = [start for start, _ in subtrahend]
    ends = [end for _, end in subtrahend]
    left: list[Interval] = []
    for start, end in minuend:
        holes = subtrahend[bisect_right(ends, start) : bisect_left(starts, end)]
        edges = [start, *(edge for hole in holes for edge in hole), end]
        left += zip(edges[::2], edges[1::2], strict=True)
    return tuple(interval for interval in left if interval[0] < interval[1])


def clip(intervals: Iterable[Interval], window: Interval) -> Intervals:
    """Each interval cut to `window`; those outside vanish, order is kept."""
    cut = ((max(start, window[0]), min(end, window[1])) for start, end in intervals)
    return tuple(interval for interval in cut if interval[0] < interval[1])


def total_seconds(intervals: Intervals) -> float:
    """Their summed length; the true covered time when they are disjoint."""
    return sum(end - start for start, end in intervals)
