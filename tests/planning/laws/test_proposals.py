"""What a budget would reach, and what is refused or warned of."""

from dataclasses import replace

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.planning.laws import (
    KAPLAN_BATCH,
    Figure,
    Origin,
    Resampling,
    fit_compute_law,
    propose,
    sizes_outside,
)
from openwafer.planning.laws.expectation import require_near
from tests.planning.laws.pile_models import POINTS, law_of_pile


def proposal(flops: float, batch_tokens: float | None = None) -> dict[str, Figure]:
    return {figure.name: figure for figure in propose(law_of_pile(), flops, batch_tokens)}


def test_a_proposal_spends_the_budget_with_twenty_tokens_a_parameter() -> None:
    told = proposal(1e21)
    assert 6 * told["parameters"].value * told["tokens"].value == pytest.approx(1e21)
    assert told["tokens"].value == pytest.approx(20 * told["parameters"].value)


def test_the_batch_is_the_critical_one_at_the_loss_that_is_reached() -> None:
    told = proposal(1e21)
    assert told["batch"].value == pytest.approx(2e8 / told["loss"].value ** (1 / 0.21))
    assert told["batch"].source == KAPLAN_BATCH.source


def test_a_batch_that_is_asked_for_is_taken() -> None:
    told = proposal(1e21, 2e6)
    assert (told["batch"].value, told["batch"].origin) == (2e6, Origin.GIVEN)
    assert told["steps"].value * 2e6 == pytest.approx(told["tokens"].value)


def test_a_budget_below_one_step_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"budget-below-step.*does not pay one step"):
        propose(law_of_pile(), 1e16, 1e9)


def test_a_compute_among_the_points_and_near_them_is_not_warned_of() -> None:
    assert require_near(law_of_pile(), 1e20) == require_near(law_of_pile(), 2e23) == ()


def test_a_compute_decades_outside_the_points_is_warned_of() -> None:
    [warning] = require_near(law_of_pile(), 2.3e24)
    assert warning.message.startswith("2.3e+24 FLOPs lie 2.0 decades outside the points")


@pytest.mark.parametrize(("flops", "decades"), [(2.6e12, "6.0"), (2.3e27, "5.0")])
def test_a_compute_far_outside_the_points_is_refused(flops: float, decades: str) -> None:
    with pytest.raises(OpenwaferError, match=f"law-far-outside.*lie {decades} decades outside"):
        require_near(law_of_pile(), flops)


@pytest.mark.parametrize("flops", [0.0, -1e18, float("nan"), float("inf")])
def test_what_is_no_compute_is_refused(flops: float) -> None:
    with pytest.raises(OpenwaferError, match="are asked for, not a finite number above 0"):
        require_near(law_of_pile(), flops)


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(OpenwaferError, match="a batch of 0 tokens is asked for"):
        propose(law_of_pile(), 1e21, 0.0)


def test_sizes_far_outside_those_of_the_points_are_warned_of_with_the_factor() -> None:
    points = [replace(point, parameters=1e9, tokens=2e10) for point in POINTS]
    fitted = fit_compute_law(points, Resampling(num_replicas=20))
    assert sizes_outside(fitted, 1.2e20) == ()
    [parameters, tokens] = sizes_outside(fitted, 4.8e22)
    assert parameters.message.startswith("2e+10 parameters for 4.8e+22 FLOPs lie a factor of 20")
    assert tokens.message.startswith("4e+11 tokens")
