"""Differences from a baseline are paired by seed, and told from zero by Student's t."""

import math

import pytest

from openwafer.training.sweep import Outcome
from openwafer.training.sweep.sweep import difference_of, standard_errors

BASELINE = Outcome({}, (3.0, 3.2, 3.4))


def variant(*losses: float) -> Outcome:
    return Outcome({"a": "1"}, losses)


def test_the_mean_and_its_error_are_those_of_the_pairs() -> None:
    """Differences of -0.1, -0.2 and 0 have the mean -0.1 and the deviation 0.1."""
    found = difference_of(BASELINE, variant(2.9, 3.0, 3.4))
    assert found is not None
    assert found.mean == pytest.approx(-0.1)
    assert found.standard_error == pytest.approx(0.1 / math.sqrt(3))
    assert found.margin == pytest.approx(4.302653 * 0.1 / math.sqrt(3))
    assert found.is_told_apart is False


def test_noise_that_seeds_have_in_common_hides_nothing() -> None:
    """Losses that scatter by 0.2 are told apart by 0.1: it is the same for each seed."""
    found = difference_of(BASELINE, variant(2.9, 3.09, 3.31))
    assert found is not None
    assert found.standard_error == pytest.approx(0.01 / math.sqrt(3))
    assert found.is_told_apart is True


def test_losses_that_are_the_same_are_not_told_apart() -> None:
    found = difference_of(BASELINE, variant(*BASELINE.losses))
    assert found is not None
    assert (found.mean, found.margin, found.is_told_apart) == (0, 0, False)


def test_one_seed_does_not_tell_its_noise() -> None:
    found = difference_of(Outcome({}, (3.0,)), variant(2.5))
    assert found is not None
    assert (found.mean, found.standard_error, found.margin) == (-0.5, None, None)
    assert found.is_told_apart is None


def test_a_run_that_diverged_leaves_no_difference() -> None:
    assert difference_of(BASELINE, variant(2.9, math.inf, 3.3)) is None
    assert difference_of(variant(3.0, 3.0, math.inf), variant(2.9, 3.0, 3.3)) is None


@pytest.mark.parametrize(("seeds", "quantile"), [(2, 12.7062), (3, 4.30265), (11, 2.22814)])
def test_few_seeds_take_more_errors_as_tables_of_t_have_them(seeds: int, quantile: float) -> None:
    assert standard_errors(seeds) == pytest.approx(quantile, rel=1e-5)
