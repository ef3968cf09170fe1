"""Where runs stand beside their law on the way."""

import pytest

from openwafer.planning.laws import CurvePoint, Fitted, TrainedPoint, course_of
from tests.planning.laws.made_points import HOFFMANN


def run(tokens: float, excess: float) -> TrainedPoint:
    """A run that is above its law by `excess` at half of its tokens, and on it in the end."""
    size = 1e8
    half = CurvePoint(tokens / 2, HOFFMANN.loss_for(size, tokens / 2) * excess)
    return TrainedPoint(
        HOFFMANN.loss_for(size, tokens), 6 * size * tokens, size, tokens, curve=(half,)
    )


def test_ratios_on_the_way_are_those_to_the_law_of_tokens_so_far() -> None:
    runs = (run(1e9, 1.2), run(4e9, 1.1), run(2e10, 1.3))
    course = {point.share: point for point in course_of(Fitted(HOFFMANN, (), runs))}
    assert (course[0.5].low, course[0.5].high) == pytest.approx((1.1, 1.3))
    assert (course[1.0].low, course[1.0].high) == pytest.approx((1.0, 1.0))
    assert min(course) == 0.5


def test_two_runs_on_the_way_say_nothing_there() -> None:
    runs = (run(1e9, 1.2), run(4e9, 1.1))
    assert course_of(Fitted(HOFFMANN, (), runs)) == ()


def test_points_without_curves_tell_of_their_ends_alone() -> None:
    points = tuple(TrainedPoint(r.loss, r.flops, r.parameters, r.tokens) for r in [run(1e9, 1)] * 3)
    assert [point.share for point in course_of(Fitted(HOFFMANN, (), points))] == [1.0]
