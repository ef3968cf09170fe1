"""Loss by parameters and tokens: published constants found again, and what is refused."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import huber

from openwafer.diagnostics import OpenwaferError
from openwafer.planning.laws import Resampling, SizeTokensLaw, TrainedPoint, fit_size_law
from tests.planning.laws.made_points import HOFFMANN, KAPLAN, grid_points, holds

LAWS = pytest.mark.parametrize("law", [HOFFMANN, KAPLAN], ids=["hoffmann", "kaplan"])
FEW = Resampling(num_replicas=20)


@LAWS
def test_points_without_noise_give_the_constants_of_their_law(law: SizeTokensLaw) -> None:
    fitted = fit_size_law(grid_points(law, noise=0), law.kind, FEW)
    assert fitted.law.constants() == pytest.approx(law.constants(), rel=1e-4)


@pytest.mark.slow
def test_the_stated_intervals_hold_the_published_constants_in_most_of_six_noises() -> None:
    counts: Counter[str] = Counter()
    for seed in range(6):
        fitted = fit_size_law(
            grid_points(HOFFMANN, seed=seed), HOFFMANN.kind, Resampling(seed, num_replicas=60)
        )
        counts.update(f.name for f in fitted.constants() if holds(f, HOFFMANN.constants()[f.name]))
    assert min(counts[name] for name in HOFFMANN.constants()) >= 4


def test_no_search_finds_a_lower_sum_of_huber_losses() -> None:
    points = grid_points(HOFFMANN, noise=0.02)
    law = fit_size_law(points, HOFFMANN.kind, Resampling(num_replicas=0)).law

    def total(logs: NDArray[np.float64]) -> float:
        values = dict(zip("EAaBb", np.exp(logs), strict=True))
        own = replace(law, values=values)
        errors = np.log([own.expected(point) / point.loss for point in points])
        return float(huber(1e-3, errors).sum())

    found = np.log([law.constants()[name] for name in "EAaBb"])
    searched = minimize(total, found, method="Nelder-Mead", options={"maxfev": 2000})
    assert searched.fun >= total(found) * (1 - 1e-6)


@pytest.mark.slow
@LAWS
def test_95_percent_intervals_hold_the_truth_in_9_of_10_noises(law: SizeTokensLaw) -> None:
    counts: Counter[str] = Counter()
    for seed in range(60):
        fitted = fit_size_law(grid_points(law, seed=seed), law.kind, Resampling(seed))
        counts.update(f.name for f in fitted.constants() if holds(f, law.constants()[f.name]))
    assert min(counts[name] for name in law.constants()) >= 0.85 * 60


@LAWS
def test_an_allocation_has_the_least_loss_of_its_compute(law: SizeTokensLaw) -> None:
    spent = law.allocation(1e21)
    around = spent.parameters * np.geomspace(0.2, 5, 400)
    assert 6 * spent.parameters * spent.tokens == pytest.approx(1e21)
    assert law.loss_at(1e21) <= min(law.loss_for(n, 1e21 / 6 / n) for n in around)


def test_the_published_law_spends_gophers_compute_as_its_authors_say() -> None:
    """Hoffmann et al. 2022, table 3, approach 3: 40.0 billion parameters for 5.76e23 FLOPs."""
    assert HOFFMANN.allocation(5.76e23).parameters == pytest.approx(40e9, rel=0.2)


def test_one_run_far_off_hardly_moves_the_law() -> None:
    points = grid_points(HOFFMANN, noise=0.001)
    points[7] = replace(points[7], loss=1.3 * points[7].loss)
    fitted = fit_size_law(points, HOFFMANN.kind, FEW)
    assert fitted.law.loss_at(1e21) == pytest.approx(HOFFMANN.loss_at(1e21), rel=0.005)


def refusal(points: list[TrainedPoint]) -> str:
    with pytest.raises(OpenwaferError, match="help: ") as caught:
        fit_size_law(points, HOFFMANN.kind, FEW)
    return str(caught.value)


def test_tokens_in_proportion_to_sizes_are_refused() -> None:
    points = [
        TrainedPoint(HOFFMANN.loss_for(n, 20 * n), 120 * n * n, n, 20 * n)
        for n in np.geomspace(1e7, 1e9, 8)
    ]
    text = refusal(points)
    assert "points-one-way]: 8 points of 8 sizes, whose tokens differ by a factor of 1.00" in text


def test_points_of_two_sizes_are_refused() -> None:
    assert "12 points" not in (text := refusal(grid_points(HOFFMANN)[:8]))
    assert "8 points of 2 sizes" in text


def test_a_point_without_tokens_is_named() -> None:
    points = grid_points(HOFFMANN)
    text = refusal([*points[1:], replace(points[0], tokens=None, name="odd")])
    assert "points-sizes]: odd has no tokens, and the law is one of sizes and tokens" in text


def test_five_points_are_too_few_for_five_constants() -> None:
    assert "points-few]: 5 points for a law of 5 constants" in refusal(grid_points(HOFFMANN)[:5])


def test_losses_that_do_not_fall_with_tokens_leave_a_law_that_still_tells_losses() -> None:
    points = [replace(point, loss=3 + point.loss / 1e4) for point in grid_points(HOFFMANN)]
    fitted = fit_size_law(points, HOFFMANN.kind, FEW)
    assert all(2.9 < law.loss_at(1e20) < 3.1 for law in (fitted.law, *fitted.replicas))
