"""Sums and broadcasts over rectangles of PEs, against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import CollectivePlan, Precision, Shape, Tree
from tests.examples import examples

TREES = st.builds(Tree, st.sampled_from(Shape), st.integers(1, 4))


@st.composite
def plans(draw: st.DrawFn, most: int) -> CollectivePlan:
    """A plan of a sum on a rectangle of at most so many PEs a side."""
    return kernels.plan_collective(
        draw(st.sampled_from(("reduce", "all-reduce"))),
        (draw(st.integers(1, most)), draw(st.integers(1, most))),
        draw(st.integers(1, 40)),
        arch=draw(st.sampled_from(("wse2", "wse3"))),
        precision=draw(st.sampled_from(Precision)),
        tree=draw(st.none() | TREES),
    )


def check_sum(plan: CollectivePlan, seed: int) -> None:
    """Run a sum of values that cancel now and then, looking for mistakes, and compare it."""
    rng = np.random.default_rng(seed)
    size = (plan.rows, plan.columns, plan.length)
    values = (rng.normal(size=size) * 2.0 ** rng.integers(-6, 6, size)).astype(plan.precision.given)
    result = plan.run(values, check=True)
    exact = values.astype(np.float64).sum((0, 1))
    assert result.values.dtype == plan.precision.sums
    assert (np.abs(result.values - exact) <= plan.error_bound(values)).all()
    assert (result.values == result.values.reshape(-1, plan.length)[0]).all()
    assert np.array_equal(plan.run(values).values, result.values)


# Compiled once each; many values are drawn for them.
PLANS = (
    kernels.plan_collective("reduce", (3, 2), 7, arch="wse2", tree=Tree(Shape.STAR)),
    kernels.plan_collective("all-reduce", (2, 3), 40, precision="f16", tree=Tree(Shape.TREE)),
    kernels.plan_collective("all-reduce", (1, 3), 5, arch="wse2", precision="f16-f32"),
    kernels.plan_collective("all-reduce", (1, 5), 12, tree=Tree(Shape.TWO_PHASE, 2)),
)


@examples(15, by_default=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_a_sum_of_rectangles_is_within_its_bound(plan: CollectivePlan, seed: int) -> None:
    check_sum(plan, seed)


@pytest.mark.slow
@settings(max_examples=100)
@given(plans(12), st.integers(0, 2**32 - 1))
def test_a_sum_of_any_larger_rectangle_is_within_its_bound(plan: CollectivePlan, seed: int) -> None:
    check_sum(plan, seed)


@pytest.mark.parametrize(("size", "arch"), [((2, 3), "wse2"), ((3, 1), "wse3")])
def test_a_broadcast_brings_every_bit(size: tuple[int, int], arch: str) -> None:
    values = np.array([1.5, np.nan, -np.inf, 0.0, -0.0], np.float16)
    result = kernels.broadcast(values, size, arch=arch)
    assert result.values.tobytes() == np.broadcast_to(values, (*size, 5)).tobytes()


def test_an_infinite_value_is_in_its_sum_alone() -> None:
    values = np.ones((1, 3, 2), np.float32)
    values[0, 1, 0] = np.inf
    assert np.array_equal(kernels.reduce(values).values, [np.inf, 3])


def test_a_sum_in_f16_that_may_overflow_has_no_bound() -> None:
    plan = kernels.plan_collective("reduce", (1, 2), 1, precision="f16")
    assert plan.error_bound(np.full((1, 2, 1), 4e4, np.float16)) == np.inf


def test_f16_is_summed_in_f32_unless_told_otherwise() -> None:
    values = np.full((3, 1, 1), 2049, np.float32).astype(np.float16)
    values[1:] = 0.5
    assert kernels.reduce(values).values == 2049
    assert kernels.reduce(values, precision="f16").values == 2048


@pytest.mark.parametrize(
    ("size", "length", "options", "words"),
    [
        ((0, 3), 4, {}, "0 rows and 3 columns of PEs; wse3 has room for 1 to 1174 rows"),
        ((1, 751), 4, {"arch": "wse2"}, "1 to 750 columns"),
        ((2, 2), 0, {}, "0 elements a PE"),
        ((2, 2), 11_000, {}, "takes 50,144 bytes of a PE, 6,144 of them kept for code"),
        ((2, 2), 4, {"precision": "f64"}, "precision is 'f64'"),
        ((2, 2), 4, {"arch": "wse1"}, "arch is 'wse1'"),
        ((100, 1), 700, {"tree": Tree(Shape.STAR)}, "adds 69,300 of them in one operation"),
    ],
)
def test_a_plan_says_what_does_not_fit(
    size: tuple[int, int], length: int, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OpenwaferError) as raised:
        kernels.plan_collective("reduce", size, length, **options)
    assert words in str(raised.value)


def test_values_of_another_type_or_shape_are_refused() -> None:
    with pytest.raises(OpenwaferError, match="values are float64; a kernel takes float32"):
        kernels.reduce(np.zeros((2, 2, 3)))
    with pytest.raises(OpenwaferError, match=r"3 dims \(rows of PEs, columns of PEs, elements\)"):
        kernels.all_reduce(np.zeros((2, 3), np.float32))
    plan = kernels.plan_collective("reduce", (2, 2), 3)
    with pytest.raises(OpenwaferError, match=r"the plan is for \(2, 2, 3\)"):
        plan.run(np.zeros((2, 2, 4), np.float32))
