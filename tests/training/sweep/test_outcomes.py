"""The best setting of a sweep, and which others the noise does not tell from it."""

import math

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.sweep import Axis, Grid, Outcome, SweptRun
from openwafer.training.sweep.sweep import best_of, noise_of, outcomes_of


def outcome(value: str, *losses: float) -> Outcome:
    return Outcome({"rate": value}, losses)


def test_noise_is_pooled_over_settings() -> None:
    """Deviations of 0.1 and 0.3 over two seeds each: the root of the mean of 0.01 and 0.09."""
    root = math.sqrt(2)
    found = noise_of([outcome("1", 3, 3 + 0.1 * root), outcome("2", 4, 4 + 0.3 * root)])
    assert found == pytest.approx(math.sqrt(0.05))


def test_settings_within_two_errors_of_the_best_are_told() -> None:
    """A noise of 0.1 and four seeds: means differ by an error of 0.0707."""
    spread = (-0.1, 0.1, -0.1, 0.1)
    noise = math.sqrt(0.04 / 3)
    apart = 2 * noise * math.sqrt(2 / 4)
    near, far = apart - 0.001, apart + 0.001
    outcomes = [outcome(str(at), *(at + each for each in spread)) for at in (0.0, near, far)]
    assert best_of(outcomes) == (outcomes[0], (outcomes[1],))


def test_one_seed_tells_no_noise() -> None:
    outcomes = [outcome("1", 3.0), outcome("2", 2.9)]
    assert noise_of(outcomes) is None
    assert best_of(outcomes) == (outcomes[1], ())


def test_one_diverged_run_makes_a_setting_infinitely_bad() -> None:
    outcomes = [outcome("1", 1.0, math.inf), outcome("2", 5.0, 5.0)]
    best, _ = best_of(outcomes)
    assert best.setting == {"rate": "2"}
    assert (outcomes[0].mean, outcomes[0].num_diverged) == (math.inf, 1)


def test_a_sweep_that_diverged_everywhere_has_no_best() -> None:
    with pytest.raises(OpenwaferError, match=r"sweep-diverged.*of 2 settings each has a run"):
        best_of([outcome("1", math.inf), outcome("2", 1.0, math.inf)])


def test_outcomes_gather_the_seeds_of_each_setting() -> None:
    runs = [
        SweptRun("", {"rate": value}, seed, None if value == "9" else float(value) + seed, 5, 1.0)
        for seed in (1, 0)
        for value in ("9", "3")
    ]
    grid = Grid((Axis("rate", ("3", "9")),), (0, 1))
    found = outcomes_of(grid, runs)
    assert [each.losses for each in found] == [(3.0, 4.0), (math.inf, math.inf)]
