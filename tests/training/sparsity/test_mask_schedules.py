"""Schedules against their formulas, and update steps against counting."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.sparsity.masks.schedules import (
    AtSteps,
    Constant,
    Cosine,
    Cycling,
    EverySteps,
    Exponential,
    Linear,
    Polynomial,
    Power,
    Rounds,
    Schedule,
    Target,
    require_capacity,
)
from openwafer.training.sparsity.masks.structures import Blocks, NOfM, num_kept


@pytest.mark.parametrize(
    ("schedule", "step", "num_updates", "value"),
    [
        (Constant(0.9), 70, 7, 0.9),
        (Linear(0.1, 0.002), 100, 1, 0.3),
        (Exponential(0.0, -0.01, 0.9), 100, 1, 0.9 - 0.9 / math.e),
        (Exponential(0.2, -0.5), 0, 0, 0.2),
        (Power(0.8, 0.5), 3, 1, 0.1),
        (Cosine(0.3, 100), 50, 1, 0.15),
        (Cosine(0.3, 100), 100, 1, 0.0),
        (Cosine(0.3, 100, 0.1), 200, 1, 0.3),
        (Cycling((0.9, 0.5, 0.0)), 8, 0, 0.9),
        (Cycling((0.9, 0.5, 0.0)), 8, 4, 0.5),
        (Polynomial(0.9, 110, start=10), 10, 1, 0.0),
        (Polynomial(0.9, 110, start=10), 60, 1, 0.9 * 7 / 8),
        (Polynomial(0.9, 110, start=10), 500, 1, 0.9),
        (Rounds(0.9, 0.2), 500, 3, 0.488),
        (Rounds(0.9, 0.2), 500, 30, 0.9),
    ],
)
def test_a_schedule_has_the_value_of_its_formula(
    schedule: Schedule, step: int, num_updates: int, value: float
) -> None:
    assert schedule(step, num_updates) == pytest.approx(value, abs=1e-12)


@given(st.integers(1, 9), st.integers(0, 20), st.integers(1, 60) | st.none(), st.integers(0, 60))
def test_updates_are_where_counting_finds_them(
    freq: int, start: int, length: int | None, last: int
) -> None:
    stop = None if length is None else (start or freq) + length
    updates = EverySteps(freq, start, stop)
    counted = [
        step
        for step in range(1, last + 1)
        if step >= start and (step - start) % freq == 0 and (stop is None or step < stop)
    ]
    assert list(updates.until(last)) == counted
    assert [step for step in range(last + 1) if updates.is_update(step)] == counted
    assert updates.num_until(last) == len(counted)


def test_listed_updates_leave_step_0_to_the_initial_mask() -> None:
    updates = AtSteps((0, 4, 9))
    assert list(updates.until(8)) == [4]
    assert [updates.is_update(step) for step in (0, 4, 5, 9)] == [False, True, False, True]
    assert updates.num_until(9) == 2


def test_cycling_goes_on_at_updates_alone() -> None:
    target = Target(Cycling((0.75, 0.5, 0.0)), EverySteps(10))
    assert [target.sparsity_at(step) for step in (0, 10, 20, 30)] == [0.75, 0.5, 0.0, 0.75]
    assert target.changes((4, 5), 30) == ((0, 5), (10, 10), (20, 20), (30, 5))


def test_changes_are_the_updates_that_change_the_number() -> None:
    target = Target(Polynomial(0.9, 30), EverySteps(10))
    assert target.changes((10, 100), 60) == ((0, 1000), (10, 366), (20, 133), (30, 100))


def test_capacity_is_the_most_that_is_ever_kept() -> None:
    target = Target(Cosine(0.8, 30, 0.2), EverySteps(10))
    assert target.capacity((10, 10), 60) == 80
    assert target.capacity((10, 10), 20) == 65
    assert target.capacity((10, 10), 5) == 20


def test_structures_round_by_their_units() -> None:
    assert Target(Constant(0.9), structure=Blocks(4, 4)).num_kept(0, (8, 100)) == 5 * 16
    assert Target(Constant(2 / 3), structure=NOfM(1, 3)).num_kept(0, (5, 9)) == 15


@given(st.integers(0, 999), st.integers(1, 10**7))
def test_counts_are_those_of_the_decimal(thousandths: int, number: int) -> None:
    assert num_kept(thousandths / 1000, number) == (1000 - thousandths) * number // 1000


@pytest.mark.parametrize(
    ("schedule", "found"),
    [
        (Linear(0.5, 0.01), r"found 1 at step 50 of Linear\(init=0.5, slope=0.01"),
        (Linear(0.5, -0.02), "found -0.1 at step 30"),
        (Exponential(0.5, -10.0), "found 1 at step 10"),
    ],
)
def test_a_schedule_that_leaves_the_range_is_refused(schedule: Schedule, found: str) -> None:
    with pytest.raises(OpenwaferError, match=r"expected a sparsity in \[0, 1\), " + found):
        Target(schedule, EverySteps(10)).changes((10, 10), 100)


def test_a_schedule_beyond_the_room_of_the_store_is_refused() -> None:
    target = Target(Cycling((0.75, 0.9, 0.5)), EverySteps(10))
    require_capacity(target, "fc.weight", (10, 10), 15, 25)
    wrong = "fc.weight keeps 50 weights from step 20 on, and 25 have room"
    with pytest.raises(OpenwaferError, match=wrong):
        require_capacity(target, "fc.weight", (10, 10), 25, 25)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EverySteps(0), "freq: expected at least 1, found 0"),
        (lambda: EverySteps(10, start=-1), "start: expected at least 0, found -1"),
        (lambda: EverySteps(10, stop=10), "stop: expected above 10, the first update, found 10"),
        (lambda: AtSteps((5, 3)), r"steps: expected rising numbers from 0, found \[5, 3\]"),
        (lambda: Exponential(0.1, 0.5), "gamma: expected at most 0, found 0.5"),
        (lambda: Power(0.1, 1.5), "beta: expected from 0 to 1, found 1.5"),
        (lambda: Cosine(0.3, 0), "half_period: expected at least 1, found 0"),
        (lambda: Cycling(()), r"values: expected one number or more, found \[\]"),
        (lambda: Polynomial(0.9, 5, start=5), "end: expected above start 5, found 5"),
        (lambda: Polynomial(0.9, 5, power=-1), "power: expected above 0, found -1"),
        (lambda: Constant(math.nan), "value: expected a finite number, found nan"),
    ],
)
def test_impossible_schedules_are_refused(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(InvalidFieldError, match=message):
        build()
