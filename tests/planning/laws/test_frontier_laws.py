"""The best size by compute, from runs of equal compute and from training curves."""

import math
from dataclasses import replace

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.planning.laws import (
    Figure,
    Fitted,
    FrontierLaw,
    Resampling,
    fit_envelope,
    fit_isoflop,
)
from tests.planning.laws.made_points import (
    HOFFMANN,
    SIZE_EXPONENT,
    curves,
    equal_computes,
    holds,
)

FEW = Resampling(num_replicas=20)


def exponent(fitted: Fitted[FrontierLaw]) -> Figure:
    [found] = [figure for figure in fitted.constants() if figure.name == "size_exponent"]
    return found


def test_parabolas_without_noise_find_exponent_and_least_losses() -> None:
    fitted = fit_isoflop(equal_computes(noise=0), FEW)
    assert fitted.law.size_exponent == pytest.approx(SIZE_EXPONENT, rel=0.01)
    assert fitted.law.loss_at(1e20) == pytest.approx(HOFFMANN.loss_at(1e20), rel=0.001)


def test_curves_without_noise_find_exponent_and_least_losses() -> None:
    fitted = fit_envelope(curves(noise=0), FEW)
    assert fitted.law.size_exponent == pytest.approx(SIZE_EXPONENT, rel=0.01)
    # Between two sizes a factor of 1.8 apart lies one that is a little better.
    assert fitted.law.loss_at(1e20) == pytest.approx(HOFFMANN.loss_at(1e20), rel=0.003)


def test_intervals_from_parabolas_hold_the_exponent_in_most_of_five_noises() -> None:
    found = [fit_isoflop(equal_computes(seed=s), Resampling(s, 20)) for s in range(5)]
    assert sum(holds(exponent(fitted), SIZE_EXPONENT) for fitted in found) >= 4


@pytest.mark.slow
def test_intervals_from_curves_hold_the_exponent_in_most_of_five_noises() -> None:
    found = [fit_envelope(curves(seed=s), Resampling(s, 40)) for s in range(5)]
    assert sum(holds(exponent(fitted), SIZE_EXPONENT) for fitted in found) >= 3


def test_tokens_take_what_parameters_leave() -> None:
    law = fit_isoflop(equal_computes(), FEW).law
    spent = law.allocation(1e20)
    assert 6 * spent.parameters * spent.tokens == pytest.approx(1e20)
    assert law.constants()["tokens_exponent"] == pytest.approx(1 - law.size_exponent)


def test_a_compute_whose_best_size_lies_beyond_its_runs_is_left_out_and_told() -> None:
    points = equal_computes(noise=0)
    low = min(point.flops for point in points)
    best = HOFFMANN.allocation(low).parameters
    kept = [p for p in points if not (p.flops < 2 * low and (p.parameters or 0) > 0.9 * best)]
    fitted = fit_isoflop(kept, FEW)
    [remark] = fitted.remarks
    assert remark.message.startswith("the 3 runs of 1e+18 FLOPs")
    assert len(fitted.points) == 5


def test_three_computes_are_too_few_for_best_sizes() -> None:
    with pytest.raises(OpenwaferError, match="frontier-few]: 3 computes of 3 sizes or more"):
        fit_isoflop(equal_computes()[:21], FEW)


def test_curves_of_three_sizes_are_too_few() -> None:
    with pytest.raises(OpenwaferError, match=r"frontier-few]: \d computes at which the best"):
        fit_envelope(curves()[:3], FEW)


def test_points_without_curves_have_no_envelope() -> None:
    points = [replace(point, curve=()) for point in curves()]
    with pytest.raises(OpenwaferError, match="points-curves]: none of 9 points has a curve"):
        fit_envelope(points, FEW)


def test_the_best_of_a_compute_is_named_by_it() -> None:
    fitted = fit_isoflop(equal_computes(), FEW)
    assert fitted.points[0].name == "best at 1e+18 FLOPs"
    assert math.isclose(fitted.points[-1].flops, 1e21, rel_tol=1e-9)
