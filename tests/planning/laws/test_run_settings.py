"""Batch and learning rate of a proposal, from what runs have tried."""

import math
from dataclasses import replace

import pytest

from openwafer.planning.laws import (
    KAPLAN_BATCH,
    Figure,
    TrainedPoint,
    best_of_rates,
    critical_batch,
    fit_size_law,
    learning_rate,
    propose,
)
from tests.planning.laws.made_points import HOFFMANN, grid_points
from tests.planning.laws.pile_models import POINTS


def sweep(parameters: float, best: float) -> list[TrainedPoint]:
    """Runs of a size whose log loss is a parabola of log rate."""
    rates = [best / 3, best * 0.8, best * 2, best * 5]
    return [
        TrainedPoint(
            3 * math.exp(0.01 * math.log(rate / best) ** 2),
            1e9,
            parameters,
            1e6,
            name=f"{rate:.2g}",
            learning_rate=rate,
        )
        for rate in rates
    ]


def rate(points: list[TrainedPoint], parameters: float) -> Figure:
    found = learning_rate(points, parameters)
    assert found is not None
    return found


def test_the_best_rate_between_sizes_is_interpolated() -> None:
    points = [*sweep(1e6, 1e-2), *sweep(1e8, 1e-4)]
    found = rate(points, 1e7)
    assert found.value == pytest.approx(1e-3)
    assert found.source == "best of the rates that 2 sizes were trained at"


def test_a_rate_beyond_the_sizes_says_how_far() -> None:
    found = rate(sweep(1e6, 1e-2), 5e7)
    assert found.value == pytest.approx(1e-2)
    assert found.source.endswith("1 size was trained at; asked for a size 50 times beyond them")


def test_a_best_rate_at_the_end_of_those_tried_is_none() -> None:
    assert "no size tells its best one" in rate(sweep(1e6, 1e-2)[1:], 1e6).source


def test_runs_of_one_rate_give_it_and_say_so() -> None:
    points = [replace(point, learning_rate=3e-4) for point in POINTS]
    points = [replace(point, parameters=1e8 * n) for n, point in enumerate(points, 1)]
    assert rate(points, 1e9).source.startswith("that of all runs, none of which tried another")
    mup = [replace(point, parametrization="mup") for point in points]
    assert rate(mup, 1e12).value == 3e-4
    assert "under muP it is the base model's" in rate(mup, 1e12).source


def test_points_without_rates_give_none() -> None:
    assert learning_rate(POINTS, 1e9) is None


def test_of_runs_that_differ_in_the_rate_the_best_is_kept_and_the_others_noted() -> None:
    points = sweep(1e6, 1e-2)
    kept, notes = best_of_rates([*points, *POINTS])
    assert kept == [points[1], *POINTS]
    assert notes[0].message.startswith("0.0033 has learning rate 0.00333333 and loss 3.0")
    assert "0.008 with 0.008 has 3.0015, and is the one" in notes[0].message


def test_runs_of_one_size_and_other_tokens_are_no_sweep() -> None:
    points = [replace(p, tokens=1e6 * (n + 1)) for n, p in enumerate(sweep(1e6, 1e-2))]
    assert best_of_rates(points) == (points, ())


def test_noise_scales_of_runs_give_the_batch_back_that_they_follow() -> None:
    points = grid_points(HOFFMANN)
    noisy = [replace(p, noise_scale_tokens=KAPLAN_BATCH.tokens_at(p.loss)) for p in points]
    found = critical_batch(noisy)
    assert found.tokens_at(2.5) == pytest.approx(KAPLAN_BATCH.tokens_at(2.5))
    assert found.source == "gradient noise scales of 24 runs"


def test_noise_that_does_not_rise_as_the_loss_falls_is_not_taken() -> None:
    points = [replace(p, noise_scale_tokens=1e3) for p in grid_points(HOFFMANN)]
    falling = [replace(p, noise_scale_tokens=p.loss) for p in points]
    assert critical_batch(falling) == critical_batch(POINTS) == KAPLAN_BATCH


def test_a_proposal_has_parameters_and_tokens_of_the_least_loss_and_a_rate() -> None:
    points = [replace(point, learning_rate=3e-4) for point in grid_points(HOFFMANN, noise=0)]
    told = {f.name: f for f in propose(fit_size_law(points, HOFFMANN.kind), 1e20)}
    best = HOFFMANN.allocation(1e20)
    assert told["parameters"].value == pytest.approx(best.parameters, rel=1e-3)
    assert told["tokens"].value == pytest.approx(best.tokens, rel=1e-3)
    assert told["loss"].value == pytest.approx(HOFFMANN.loss_at(1e20), rel=1e-4)
    assert told["learning_rate"].value == 3e-4
