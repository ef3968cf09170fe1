"""Vectors sorted on rectangles of PEs, which are numpy's exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import SortPlan
from tests.examples import examples


def check_order(plan: SortPlan, seed: int, few: bool) -> None:
    """Sort many different numbers or few, with both zeros, looking for mistakes."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice([-1.5, -0.0, 0.0, 3.0], plan.length) if few else rng.normal(size=plan.length)
    values = drawn.astype(plan.precision.given)
    found = plan.run(values, check=True).values
    assert np.array_equal(found, np.sort(values))
    assert np.signbit(found).sum() == np.signbit(values).sum()


PLANS = (
    kernels.plan_sort(40, (2, 3), arch="wse2"),
    kernels.plan_sort(37, (3, 1), precision="f16"),
)


@examples(12, by_default=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1), st.booleans())
def test_values_come_in_numpys_order(plan: SortPlan, seed: int, few: bool) -> None:
    check_order(plan, seed, few)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_values_on_any_rectangle_come_in_numpys_order(data: st.DataObject) -> None:
    plan = kernels.plan_sort(
        data.draw(st.integers(1, 200)),
        (data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
        precision=data.draw(st.sampled_from(("f32", "f16"))),
    )
    check_order(plan, data.draw(st.integers(0, 2**32 - 1)), data.draw(st.booleans()))


@pytest.mark.parametrize("plan", PLANS)
def test_values_in_no_order_take_what_their_plan_says(plan: SortPlan) -> None:
    values = np.random.default_rng(1).normal(size=plan.length).astype(plan.precision.given)
    assert abs(plan.run(values).cycles - plan.cycles) <= 0.1 * plan.cycles


@pytest.mark.parametrize(
    ("length", "words"),
    [(0, "a vector of 0 elements"), (20_000, "three parts of 5000 elements of f32 takes")],
)
def test_what_cannot_be_sorted_is_refused(length: int, words: str) -> None:
    with pytest.raises(OpenwaferError, match=words):
        kernels.plan_sort(length, (2, 2))


def test_values_without_an_order_are_refused() -> None:
    with pytest.raises(OpenwaferError, match="1 of the 2 values of values are no numbers"):
        kernels.sort(np.array([1, np.nan], np.float16), (1, 1))
