"""Prefix sums on rectangles of PEs, against sums in float64 up to their bound."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import Precision, ScanPlan
from tests.examples import examples


def check_scan(plan: ScanPlan, seed: int) -> int:
    """Sum up values that cancel now and then, looking for mistakes, and give the cycles."""
    rng = np.random.default_rng(seed)
    size = plan.length
    values = (rng.normal(size=size) * 2.0 ** rng.integers(-6, 6, size)).astype(plan.precision.given)
    result = plan.run(values, check=True)
    whole = values.astype(np.float64)
    exact = np.cumsum(whole) - (0 if plan.is_inclusive else whole)
    assert result.values.dtype == plan.precision.sums
    assert (np.abs(result.values - exact) <= plan.error_bound(values)).all()
    return result.cycles


PLANS = (
    kernels.plan_scan(70, (2, 3), arch="wse2"),
    kernels.plan_scan(31, (1, 3), precision="f16-f32", is_inclusive=False),
    kernels.plan_scan(22, (3, 1), precision="f16"),
)


@examples(12, by_default=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_prefix_sums_are_within_their_bound(plan: ScanPlan, seed: int) -> None:
    check_scan(plan, seed)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_prefix_sums_on_any_rectangle_are_within_their_bound(data: st.DataObject) -> None:
    plan = kernels.plan_scan(
        data.draw(st.integers(1, 500)),
        (data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))),
        is_inclusive=data.draw(st.booleans()),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
        precision=data.draw(st.sampled_from(Precision)),
    )
    check_scan(plan, data.draw(st.integers(0, 2**32 - 1)))


@pytest.mark.parametrize("plan", [*PLANS, kernels.plan_scan(16, (1, 16))])
def test_prefix_sums_take_what_their_plan_says(plan: ScanPlan) -> None:
    assert abs(check_scan(plan, 1) - plan.cycles) <= 0.1 * plan.cycles


def test_more_columns_of_a_scan_begin_later_and_add_one_number_a_cycle() -> None:
    few, many = (kernels.plan_scan(columns, (1, columns)) for columns in (3, 12))
    assert check_scan(many, 1) - check_scan(few, 1) == many.cycles - few.cycles


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize(("length", "size"), [(300, (1, 8)), (1600, (5, 8)), (8000, (2, 2))])
def test_prefix_sums_of_all_lengths_take_what_their_plan_says(
    arch: str, precision: Precision, length: int, size: tuple[int, int]
) -> None:
    plan = kernels.plan_scan(length, size, arch=arch, precision=precision)
    assert abs(check_scan(plan, 1) - plan.cycles) <= 0.1 * plan.cycles


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_prefix_sums_of_a_wide_row_take_what_their_plan_says(arch: str) -> None:
    plan = kernels.plan_scan(192, (1, 48), arch=arch)
    assert abs(check_scan(plan, 1) - plan.cycles) <= 0.1 * plan.cycles


def test_whole_numbers_are_summed_without_an_error() -> None:
    values = np.arange(70, dtype=np.float32)
    assert np.array_equal(kernels.scan(values, (2, 3), arch="wse2").values, np.cumsum(values))


@pytest.mark.parametrize(
    ("length", "options", "words"),
    [
        (0, {}, "a vector of 0 elements"),
        (50_000, {}, r"12\d{3} elements of f32 takes"),
        (5, {"precision": "f64"}, "precision is 'f64'"),
    ],
)
def test_what_cannot_be_summed_up_is_refused(
    length: int, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OpenwaferError, match=words):
        kernels.plan_scan(length, (2, 2), **options)


def test_a_matrix_has_no_prefix_sums() -> None:
    with pytest.raises(OpenwaferError, match=r"of the shape \(2, 2\); 1 dims \(elements\)"):
        kernels.scan(np.ones((2, 2), np.float32), (1, 1))
