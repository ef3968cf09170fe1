"""Products of many small matrices, against numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import BatchedGemmPlan, Precision


@st.composite
def plans(draw: st.DrawFn) -> BatchedGemmPlan:
    """A plan of at most 20 products of matrices of at most 12 rows and columns."""
    few = st.integers(1, 12)
    return kernels.plan_batched_gemm(
        draw(st.integers(1, 20)),
        (draw(few), draw(few), draw(few)),
        draw(st.tuples(st.integers(1, 4), st.integers(1, 4))),
        arch=draw(st.sampled_from(("wse2", "wse3"))),
        precision=draw(st.sampled_from(Precision)),
    )


def check_products(plan: BatchedGemmPlan, seed: int) -> None:
    """Multiply, looking for mistakes, and compare."""
    rng, (m, k, n) = np.random.default_rng(seed), plan.shape
    a = rng.normal(size=(plan.num_products, m, k)).astype(plan.precision.given)
    b = rng.normal(size=(plan.num_products, k, n)).astype(plan.precision.given)
    result = plan.run(a, b, check=True)
    error = np.abs(result.values - a.astype(float) @ b.astype(float))
    assert result.values.dtype == plan.precision.sums
    assert (error <= plan.error_bound(a, b)).all()
    assert np.array_equal(plan.run(a, b).values, result.values)


PLANS = (
    kernels.plan_batched_gemm(5, (3, 4, 2), (1, 2), arch="wse2"),
    kernels.plan_batched_gemm(4, (5, 3, 3), (2, 1), precision="f16-f32"),
)


@settings(max_examples=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_many_products_are_numpys_up_to_their_bound(plan: BatchedGemmPlan, seed: int) -> None:
    check_products(plan, seed)


@pytest.mark.slow
@settings(max_examples=40)
@given(plans(), st.integers(0, 2**32 - 1))
def test_products_of_any_shape_are_numpys(plan: BatchedGemmPlan, seed: int) -> None:
    check_products(plan, seed)


@pytest.mark.parametrize(
    ("arch", "precision", "num_products", "shape"),
    [
        ("wse2", "f32", 2, (1, 1, 1)),
        ("wse3", "f16-f32", 6, (8, 8, 8)),
        # Loops over products, over columns of B and over sixteen columns of A.
        ("wse3", "f32", 90, (3, 3, 1)),
        ("wse2", "f32", 4, (4, 70, 5)),
    ],
)
def test_many_products_take_exactly_what_their_plan_says(
    arch: str, precision: str, num_products: int, shape: tuple[int, int, int]
) -> None:
    plan = kernels.plan_batched_gemm(num_products, shape, (1, 2), arch=arch, precision=precision)
    a, b = (np.ones((num_products, *one), plan.precision.given) for one in (shape[:2], shape[1:]))
    assert plan.run(a, b).cycles == plan.cycles


def test_products_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"3 products of \(40, 40, 40\) elements of f32 takes"):
        kernels.plan_batched_gemm(3, (40, 40, 40), (1, 1))
    with pytest.raises(OpenwaferError, match=r"0 products of \(4, 4, 4\)"):
        kernels.plan_batched_gemm(0, (4, 4, 4), (1, 1))
    ones = np.ones((2, 3, 3), np.float32)
    with pytest.raises(OpenwaferError, match=r"B has the shape \(2, 2, 3\); the plan is for"):
        kernels.batched_gemm(ones, ones[:, :2], (1, 1))
    with pytest.raises(OpenwaferError, match=r"shapes are \(2, 3, 3\) and \(3, 3\)"):
        kernels.batched_gemm(ones, ones[0], (1, 1))
