"""How a step's wall time is split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.training.metrics.step_trace import Kind, StepTrace, TraceSpan, Track, compute_share

_tick = st.integers(0, 30)
_spans = st.lists(st.tuples(st.sampled_from(Track), _tick, _tick), max_size=15)


def step_of(*spans: tuple[Track, float, float], window: tuple[float, float]) -> StepTrace:
    made = [TraceSpan(track, Kind.FORWARD, "a", 0, (start, end)) for track, start, end in spans]
    return StepTrace(0, window, tuple(made), ())


def test_overlapping_compute_counts_once() -> None:
    step = step_of((Track.COMPUTE, 0, 6), (Track.COMPUTE, 4, 8), window=(0, 10))
    assert compute_share(step).share == 0.8


def test_transfers_behind_compute_are_not_exposed() -> None:
    step = step_of((Track.COMPUTE, 0, 10), (Track.FETCH, 2, 5), window=(0, 10))
    assert not any(compute_share(step).exposed_seconds.values())


def test_an_idle_moment_counts_for_the_nearest_busy_track() -> None:
    step = step_of(
        (Track.DISK_READ, 0, 5), (Track.FETCH, 3, 6), (Track.COMPUTE, 6, 9), window=(0, 10)
    )
    split = compute_share(step)
    assert split.exposed_seconds[Track.FETCH] == 3
    assert split.exposed_seconds[Track.DISK_READ] == 3


def test_time_in_which_nothing_was_traced_is_told_apart() -> None:
    step = step_of((Track.COMPUTE, 0, 9), window=(0, 10))
    assert compute_share(step).unexplained_seconds == 1


def test_work_outside_the_window_does_not_count() -> None:
    step = step_of((Track.COMPUTE, -5, 2), (Track.COMPUTE, 8, 20), window=(0, 10))
    assert compute_share(step).compute_seconds == 4


@given(_spans)
def test_the_parts_add_up_to_the_step(spans: list[tuple[Track, int, int]]) -> None:
    split = compute_share(step_of(*spans, window=(5, 25)))
    parts = [split.compute_seconds, *split.exposed_seconds.values(), split.unexplained_seconds]
    assert sum(parts) == pytest.approx(20)


@given(_spans)
def test_each_moment_has_the_cause_a_walk_over_the_ticks_finds(
    spans: list[tuple[Track, int, int]],
) -> None:
    split = compute_share(step_of(*spans, window=(0, 30)))
    found = dict.fromkeys(Track, 0)
    for tick in range(30):
        busy = {track for track, start, end in spans if start <= tick < end}
        first = next((track for track in Track if track in busy), None)
        found |= {first: found[first] + 1} if first else {}
    assert {Track.COMPUTE: split.compute_seconds, **split.exposed_seconds} == pytest.approx(found)
