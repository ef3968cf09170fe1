"""Cuts into stages of even work, against all cuts there are."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.training.stream.stages.stage_plan import cut_evenly

ROWS = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=8)


def longest(seconds: Sequence[float], spans: Sequence[range]) -> float:
    return max(sum(seconds[call] for call in span) for span in spans)


def all_cuts(row: Sequence[tuple[float, bool]], num_stages: int) -> list[list[range]]:
    places = [number for number, (_, may_begin) in enumerate(row) if number and may_begin]
    return [
        [range(*both) for both in pairwise((0, *chosen, len(row)))]
        for chosen in combinations(places, num_stages - 1)
    ]


@given(ROWS, st.integers(1, 4))
def test_no_other_cut_has_a_shorter_longest_stage(
    row: list[tuple[int, bool]], num_stages: int
) -> None:
    seconds = [float(took) for took, _ in row]
    found = cut_evenly(seconds, [ok for _, ok in row], num_stages, lambda stage, span: True)
    tried = all_cuts([(float(took), ok) for took, ok in row], num_stages)
    if not tried:
        assert found is None
    else:
        assert found in tried
        assert longest(seconds, found) == min(longest(seconds, spans) for spans in tried)


@pytest.mark.parametrize(("room", "first"), [(4, range(3)), (2, range(2))])
def test_a_stage_has_no_more_calls_than_it_has_room_for(room: int, first: range) -> None:
    found = cut_evenly(
        [1.0, 1.0, 1.0, 3.0], [True] * 4, 2, lambda stage, span: stage > 0 or len(span) <= room
    )
    assert found is not None
    assert found[0] == first
