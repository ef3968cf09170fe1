"""Counts in bins on rectangles of PEs, which are numpy's exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import HistogramPlan
from tests.examples import examples


def check_counts(plan: HistogramPlan, seed: int) -> None:
    """Count values in and beside the bins and on their edges, looking for mistakes."""
    rng = np.random.default_rng(seed)
    (low, high), edges = plan.limits, plan.edges
    width = high - low
    drawn = rng.uniform(low - width / 2, high + width / 2, plan.length).astype(np.float32)
    edge = rng.choice(edges, plan.length)
    beside = np.nextafter(edge, rng.choice([-np.inf, np.inf], plan.length).astype(np.float32))
    values = np.choose(rng.integers(0, 3, plan.length), [drawn, edge, beside])
    values = values.astype(plan.precision.given)
    want, _ = np.histogram(values.astype(np.float32), edges)
    assert np.array_equal(plan.run(values, check=True).values, want)


PLANS = (
    kernels.plan_histogram(50, 7, (-1.0, 2.0), (2, 2), arch="wse2"),
    kernels.plan_histogram(41, 12, (1e-3, 0.1), (1, 3)),
    kernels.plan_histogram(51, 8, (-1.0, 3.0), (1, 2), precision="f16"),
)


@examples(12, by_default=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_counts_are_numpys(plan: HistogramPlan, seed: int) -> None:
    check_counts(plan, seed)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_counts_on_any_rectangle_are_numpys(data: st.DataObject) -> None:
    low = data.draw(st.floats(-1e6, 1e6, width=32))
    plan = kernels.plan_histogram(
        data.draw(st.integers(1, 300)),
        data.draw(st.integers(1, 40)),
        (low, low + data.draw(st.floats(1, 1e6))),
        (data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
    )
    check_counts(plan, data.draw(st.integers(0, 2**32 - 1)))


@pytest.mark.parametrize("plan", PLANS)
def test_values_in_bins_take_what_their_plan_says(plan: HistogramPlan) -> None:
    values = np.random.default_rng(1).uniform(*plan.limits, plan.length)
    cycles = plan.run(values.astype(plan.precision.given)).cycles
    assert abs(cycles - plan.cycles) <= 0.1 * plan.cycles


@pytest.mark.parametrize(
    ("length", "num_bins", "limits", "words"),
    [
        (0, 1, (0, 1), "a vector of 0 elements"),
        (2**24 + 1, 1, (0, 1), "a vector of 16,777,217 elements"),
        (5, 0, (0, 1), "0 bins"),
        (5, 3, (1, 0), "3 bins from 1 to 0 have no width as float32"),
        (5, 3, (1, 1 + 1e-7), "have no width"),
        (5, 3, (0, np.nan), "3 bins from 0 to nan"),
        (5, 3, (-3e38, 3e38), "have no width"),
        (5, 3, (0, 1e-45), "have no width"),
        (30_000, 3, (0, 1), "7500 values of f32 and 3 bins takes"),
    ],
)
def test_bins_that_cannot_be_are_refused(
    length: int, num_bins: int, limits: tuple[float, float], words: str
) -> None:
    with pytest.raises(OpenwaferError, match=words):
        kernels.plan_histogram(length, num_bins, limits, (2, 2))


def test_the_type_of_values_is_their_precision() -> None:
    values = np.array([0.5, 1.5, 1.5], np.float16)
    assert kernels.histogram(values, 2, (0, 2), (1, 1)).values.tolist() == [1, 2]
    with pytest.raises(OpenwaferError, match="values that are moved have none"):
        kernels.plan_histogram(3, 2, (0, 2), (1, 1), precision="f16-f32")


def test_values_that_are_no_numbers_are_not_counted() -> None:
    with pytest.raises(OpenwaferError, match=r"values of values are no numbers .* at 1"):
        kernels.histogram(np.array([1, np.nan], np.float32), 2, (0, 1), (1, 1))
