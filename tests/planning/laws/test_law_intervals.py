"""Intervals of fitted laws: about their own estimate, and as often about the truth as they say."""

import numpy as np
import pytest

from openwafer.planning.laws import (
    ComputeLaw,
    Figure,
    Fitted,
    Law,
    Resampling,
    TrainedPoint,
    fit_compute_law,
    fit_size_law,
)
from tests.planning.laws.made_points import HOFFMANN, grid_points, holds
from tests.planning.laws.pile_models import POINTS

TRUTH = ComputeLaw(1e20, 0.12, 0.8, "made")
FLOPS = np.geomspace(1e15, 1e19, 16)
NOISES = {"even": np.full(16, 0.005), "short runs noisier": 0.03 * (FLOPS / FLOPS[0]) ** -0.35}
NAMES = pytest.mark.parametrize("name", NOISES)


def noisy(name: str, seed: int) -> list[TrainedPoint]:
    drawn = np.random.default_rng(seed).normal(size=len(FLOPS)) * NOISES[name]
    losses = TRUTH.losses_at(FLOPS) * np.exp(drawn)
    return [TrainedPoint(float(x), float(f)) for x, f in zip(losses, FLOPS, strict=True)]


def at(fitted: Fitted[Law], point: TrainedPoint) -> Figure:
    return fitted.figure("loss", "", "", lambda law: law.expected(point))


def coverage(name: str, repeats: int) -> list[float]:
    """Shares of intervals that hold the true loss at the points' ends and in their middle."""
    asked = [TrainedPoint(TRUTH.loss_at(f), f) for f in (1e15, 1e17, 1e19)]
    found = []
    for seed in range(repeats):
        fitted = fit_compute_law(noisy(name, seed), Resampling(seed, 100))
        found.append([holds(at(fitted, point), point.loss) for point in asked])
    return [float(share) for share in np.mean(found, axis=0)]


def test_the_loss_of_every_point_lies_within_its_own_interval() -> None:
    """Also where most residuals are small ones above the law, and few are large ones below."""
    points = [
        TrainedPoint(p.loss * (0.9 if n % 6 == 0 else 1.001), p.flops, p.parameters, p.tokens)
        for n, p in enumerate(grid_points(HOFFMANN, noise=0.0005))
    ]
    fitted = fit_size_law(points, HOFFMANN.kind, Resampling(num_replicas=60))
    assert all(holds(at(fitted, point), fitted.law.expected(point)) for point in points)


def test_the_published_models_lie_about_their_law() -> None:
    fitted = fit_compute_law(POINTS)
    assert all(holds(at(fitted, point), fitted.law.expected(point)) for point in POINTS)


@NAMES
def test_most_intervals_of_a_few_noises_hold_the_truth(name: str) -> None:
    assert min(coverage(name, 12)) >= 9 / 12


@pytest.mark.slow
@NAMES
def test_95_percent_intervals_hold_the_truth_as_often_as_they_say(name: str) -> None:
    assert all(0.90 <= share <= 0.98 for share in coverage(name, 200))
