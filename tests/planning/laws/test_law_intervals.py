"""Intervals of fitted laws: about their own estimate, and as often about the truth as they say."""

from collections.abc import Callable
from dataclasses import replace

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
from tests.planning.laws.pile_models import POINTS, law_of_pile
from tests.tables import case

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


def coverage(name: str, repeats: int, num_replicas: int = 100) -> list[float]:
    """Shares of intervals that hold the true loss at the points' ends and in their middle."""
    asked = [TrainedPoint(TRUTH.loss_at(f), f) for f in (1e15, 1e17, 1e19)]
    found = []
    for seed in range(repeats):
        fitted = fit_compute_law(noisy(name, seed), Resampling(seed, num_replicas))
        found.append([holds(at(fitted, point), point.loss) for point in asked])
    return [float(share) for share in np.mean(found, axis=0)]


def coverage_of_sizes(spread: Callable[[TrainedPoint], float], repeats: int) -> list[float]:
    """The same for the law of sizes and tokens, at its smallest, middle and largest point."""
    true = grid_points(HOFFMANN, noise=0)
    found = []
    for seed in range(repeats):
        drawn = np.random.default_rng(seed).normal(size=len(true))
        points = [
            replace(p, loss=p.loss * float(np.exp(spread(p) * off)))
            for p, off in zip(true, drawn, strict=True)
        ]
        fitted = fit_size_law(points, HOFFMANN.kind, Resampling(seed))
        found.append([holds(at(fitted, p), p.loss) for p in (true[0], true[12], true[-1])])
    return [float(share) for share in np.mean(found, axis=0)]


def few_tokens(point: TrainedPoint) -> float:
    """2% of noise at two tokens a parameter, 0.2% at two hundred."""
    assert point.tokens is not None
    assert point.parameters is not None
    return float(0.02 * (point.tokens / point.parameters / 2) ** -0.5)


def test_the_loss_of_every_point_lies_within_its_own_interval() -> None:
    """Also where most residuals are small ones above the law, and few are large ones below."""
    points = [
        TrainedPoint(p.loss * (0.9 if n % 6 == 0 else 1.001), p.flops, p.parameters, p.tokens)
        for n, p in enumerate(grid_points(HOFFMANN, noise=0.0005))
    ]
    fitted = fit_size_law(points, HOFFMANN.kind, Resampling(num_replicas=60))
    assert all(holds(at(fitted, point), fitted.law.expected(point)) for point in points)


def test_the_published_models_lie_about_their_law() -> None:
    fitted = law_of_pile()
    assert all(holds(at(fitted, point), fitted.law.expected(point)) for point in POINTS)


@pytest.mark.parametrize("name", [case(name, by_default=name != "even") for name in NOISES])
def test_most_intervals_of_a_few_noises_hold_the_truth(name: str) -> None:
    assert min(coverage(name, 12, 40)) >= 9 / 12


@pytest.mark.slow
@NAMES
def test_95_percent_intervals_hold_the_truth_as_often_as_they_say(name: str) -> None:
    assert all(0.90 <= share <= 0.98 for share in coverage(name, 200))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [lambda _: 0.005, few_tokens], ids=["even", "few tokens"])
def test_so_do_those_of_laws_of_sizes_and_tokens(spread: Callable[[TrainedPoint], float]) -> None:
    assert all(0.90 <= share <= 0.98 for share in coverage_of_sizes(spread, 200))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [case(seed, by_default=seed == 53) for seed in (5, 53)])
def test_what_four_points_leave_open_is_still_a_number(seed: int) -> None:
    """One degree of freedom: noise may be dealt that is as large as the losses."""
    flops = np.geomspace(1e15, 1e19, 4)
    drawn = np.random.default_rng(seed).normal(scale=0.03, size=4)
    losses = TRUTH.losses_at(flops) * np.exp(drawn)
    points = [TrainedPoint(float(x), float(f)) for x, f in zip(losses, flops, strict=True)]
    fitted = fit_compute_law(points, Resampling(seed))
    for figure in (*fitted.constants(), *(at(fitted, point) for point in points)):
        assert 0 <= (figure.low or 0) <= (figure.high or 0) < np.inf
