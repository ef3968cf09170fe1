"""Interval arithmetic, held against sets of whole ticks."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from openwafer.training.metrics.step_trace import (
    Interval,
    Intervals,
    clip,
    subtract,
    total_seconds,
    union,
)

_ticks = st.integers(0, 40)
_intervals = st.lists(st.tuples(_ticks, _ticks), max_size=12)


def ticks(intervals: Iterable[Interval]) -> set[int]:
    return {tick for start, end in intervals for tick in range(int(start), int(end))}


def is_disjoint(intervals: Intervals) -> bool:
    edges = [edge for interval in intervals for edge in interval]
    return edges == sorted(set(edges))


@given(_intervals)
def test_a_union_covers_the_same_time(intervals: list[Interval]) -> None:
    assert ticks(union(intervals)) == ticks(intervals)


@given(_intervals)
def test_a_union_is_sorted_and_no_two_of_it_touch(intervals: list[Interval]) -> None:
    assert is_disjoint(union(intervals))


@given(_intervals)
def test_the_length_of_a_union_counts_overlaps_once(intervals: list[Interval]) -> None:
    assert total_seconds(union(intervals)) == len(ticks(intervals))


@given(_intervals, _intervals)
def test_a_difference_is_the_time_of_one_without_the_other(
    kept: list[Interval], removed: list[Interval]
) -> None:
    assert ticks(subtract(union(kept), union(removed))) == ticks(kept) - ticks(removed)


@given(_intervals, _intervals)
def test_a_difference_is_disjoint(kept: list[Interval], removed: list[Interval]) -> None:
    assert is_disjoint(subtract(union(kept), union(removed)))


@given(_intervals, _ticks, _ticks)
def test_clipping_keeps_what_lies_in_the_window(
    intervals: list[Interval], start: int, end: int
) -> None:
    assert ticks(clip(intervals, (start, end))) == ticks(intervals) & set(range(start, end))


def test_a_bridge_fills_gaps_up_to_its_length() -> None:
    gaps = union([(0, 1), (1.5, 2), (3, 4)], bridge_seconds=0.5)
    assert gaps == ((0, 2), (3, 4))
