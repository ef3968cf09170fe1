"""Batch sizes that follow a noise scale, against the published trade of steps for examples."""

from itertools import pairwise

import pytest

from openwafer.training.noise_scale.estimators import (
    GrowthLimits,
    NoiseCourse,
    grown_sizes,
    huge_steps,
    missing_samples,
    samples_of,
)

RISING = NoiseCourse(range(0, 8000, 8), [10 * 1.003**step for step in range(1000)])
LIMITS = GrowthLimits(smallest=8, largest=None, least_steps=20, samples=8000)


@pytest.mark.parametrize("noise", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("size", [4, 64])
def test_steps_and_samples_to_one_loss_keep_the_published_trade(noise: float, size: int) -> None:
    """Eq. 2.11 of arXiv 1812.06162, S_min and E_min by a huge batch and by single samples."""
    course = NoiseCourse([0], [noise])
    least_steps, steps = huge_steps([(size, 100)], course), 100
    least_samples = least_steps * noise
    trade = (steps / least_steps - 1) * (steps * size / least_samples - 1)
    assert trade == pytest.approx(1)


def test_samples_that_are_missing_bring_a_larger_batch_as_far() -> None:
    course, small = NoiseCourse([0], [50.0]), [(8, 1000)]
    missing = missing_samples([(32, 250)], small, course)
    whole = [(32, 250), (1, 0), (32, round(missing / 32))]
    assert huge_steps(whole, course) == pytest.approx(huge_steps(small, course), rel=0.01)
    # E is in proportion to 1 + B / b.
    assert missing / 8000 == pytest.approx((1 + 32 / 50) / (1 + 8 / 50) - 1)


def test_sizes_double_where_the_noise_scale_does_and_never_fall() -> None:
    spans = grown_sizes(RISING, LIMITS)
    assert [size for size, _ in spans] == [8, 16, 32, 64]
    starts = [samples_of(spans[:number]) for number in range(1, len(spans))]
    for start, (before, after) in zip(starts, pairwise(spans), strict=True):
        assert RISING.between(start, start + 20 * before[0]) >= after[0] > before[0]


def test_a_size_holds_for_the_least_steps_and_the_samples_are_all_used() -> None:
    spans = grown_sizes(RISING, LIMITS)
    assert min(steps for _, steps in spans) >= LIMITS.least_steps
    assert 0 <= LIMITS.samples - samples_of(spans) < spans[-1][0]


def test_a_fall_of_the_noise_scale_keeps_the_size() -> None:
    falling = NoiseCourse(range(0, 8000, 8), [20.0] * 100 + [3.0] * 900)
    assert grown_sizes(falling, LIMITS) == [(16, 500)]


def test_no_size_is_above_the_largest() -> None:
    spans = grown_sizes(RISING, GrowthLimits(8, 40, 20, 8000))
    assert max(size for size, _ in spans) == 32


def test_a_noise_scale_that_was_not_measured_somewhere_is_that_before() -> None:
    course = NoiseCourse([10, 40], [5.0, 7.0])
    assert [course.at(position) for position in (0, 10, 39, 40, 99)] == [5, 5, 5, 7, 7]
    assert [course.between(*ends) for ends in ((0, 5), (20, 30), (5, 50))] == [5, 5, 6]
