"""Loss by compute: the published law, and ours fitted to published and to made points."""

import math
from dataclasses import replace

import numpy as np
import pytest

from openwafer.planning.laws import (
    CEREBRAS_GPT,
    KAPLAN_COMPUTE,
    ComputeLaw,
    Origin,
    Resampling,
    TrainedPoint,
    expected_loss,
    fit_compute_law,
)
from tests.planning.laws.pile_models import LOSSES, POINTS, law_of_pile


def test_the_published_law_gives_the_seven_published_losses_within_1_percent() -> None:
    published = [CEREBRAS_GPT.loss_at(flops) for flops in LOSSES]
    assert published == pytest.approx(list(LOSSES.values()), rel=0.01)


def test_kaplans_law_gives_one_nat_at_its_scale_of_compute() -> None:
    assert KAPLAN_COMPUTE.loss_at(3.1e8 * 8.64e19) == pytest.approx(1)


def test_our_fit_of_the_seven_points_finds_the_published_exponent_within_5_percent() -> None:
    assert law_of_pile().law.exponent == pytest.approx(CEREBRAS_GPT.exponent, rel=0.05)


def test_the_published_constants_lie_within_our_intervals() -> None:
    for figure in law_of_pile().constants():
        assert figure.low is not None
        assert figure.high is not None
        assert figure.low <= CEREBRAS_GPT.constants()[figure.name] <= figure.high


def test_points_of_a_law_without_noise_give_its_constants() -> None:
    flops = np.geomspace(1e15, 1e18, 6)
    law = ComputeLaw(1e20, 0.2, 1.5, "made")
    fitted = fit_compute_law([TrainedPoint(law.loss_at(f), f) for f in flops])
    assert fitted.law.constants() == pytest.approx(law.constants(), rel=1e-3)


def test_the_interval_widens_away_from_the_points() -> None:
    figures = [expected_loss(law_of_pile(), flops) for flops in (1e20, 1e23, 1e25)]
    widths = [(figure.high or math.nan) - (figure.low or math.nan) for figure in figures]
    assert widths == sorted(widths)


def test_the_same_seed_gives_the_same_intervals_and_another_other_ones() -> None:
    one, same, other = (
        fit_compute_law(POINTS, Resampling(seed, 20)).constants() for seed in (0, 0, 1)
    )
    assert one == same != other


def test_what_follows_from_a_fit_says_so() -> None:
    assert {figure.origin for figure in law_of_pile().constants()} == {Origin.INFERRED}
    assert {point.origin for point in law_of_pile().points} == {Origin.PUBLISHED}


def test_points_without_noise_have_no_scatter() -> None:
    made = [replace(p, loss=CEREBRAS_GPT.loss_at(p.flops)) for p in POINTS]
    assert fit_compute_law(made).scatter < 1e-6 < law_of_pile().scatter < 0.01
