"""Factors of matrices on rectangles of PEs, against numpy and the bound of their product."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import FactorizationPlan
from tests.examples import examples
from tests.tables import some

FACTORS = st.sampled_from(("lu", "cholesky"))


@st.composite
def plans(draw: st.DrawFn) -> FactorizationPlan:
    """A plan on a rectangle of at most 5 PEs a side."""
    return kernels.plan_factorization(
        draw(FACTORS),
        draw(st.integers(1, 40)),
        (draw(st.integers(1, 5)), draw(st.integers(1, 5))),
        arch=draw(st.sampled_from(("wse2", "wse3"))),
    )


def matrix_of(factors: str, order: int, seed: int) -> NDArray[np.float32]:
    """Positive definite, or with a diagonal that is as large as needed."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(order, order)) * 2.0 ** rng.integers(-4, 4, order)
    if factors == "lu":
        return (a + np.diag(np.abs(a).sum(0) + 0.1)).astype(np.float32)
    lower = np.tril(a @ a.T + 0.1 * np.eye(order)).astype(np.float32)
    return lower + np.tril(lower, -1).T


def check_factors(plan: FactorizationPlan, seed: int) -> None:
    """Factor a matrix, looking for mistakes, and multiply again."""
    a = matrix_of(plan.factors, plan.order, seed)
    given = a if plan.factors == "lu" else np.tril(a)
    found = plan.run(given, check=True).values
    lower = np.tril(found).astype(float)
    upper = np.triu(found).astype(float) if plan.factors == "lu" else lower.T
    if plan.factors == "lu":
        np.fill_diagonal(lower, 1)
    assert (np.abs(lower @ upper - a) <= plan.error_bound(lower, upper)).all()
    assert np.array_equal(plan.run(given).values, found)


# Compiled once each; many values are drawn for them.
PLANS = (
    kernels.plan_factorization("lu", 11, (2, 3), arch="wse2"),
    kernels.plan_factorization("lu", 7, (3, 2)),
    kernels.plan_factorization("cholesky", 10, (3, 2), arch="wse2"),
    kernels.plan_factorization("cholesky", 8, (2, 2)),
    kernels.plan_factorization("cholesky", 3, (1, 5)),
)


@examples(10, by_default=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_the_product_of_factors_is_the_matrix(plan: FactorizationPlan, seed: int) -> None:
    check_factors(plan, seed)


@pytest.mark.slow
@settings(max_examples=60)
@given(plans(), st.integers(0, 2**32 - 1))
def test_factors_on_any_rectangle_are_those_of_the_matrix(
    plan: FactorizationPlan, seed: int
) -> None:
    check_factors(plan, seed)


def test_factors_of_tiny_numbers_have_a_bound_that_counts_what_underflows() -> None:
    plan = kernels.plan_factorization("lu", 2, (1, 1))
    a = np.array([[2.0**-100, 2.0**-120], [2.0**-129, 1.0]], np.float32)
    found = plan.run(a).values.astype(float)
    lower, upper = np.array([[1, 0], [found[1, 0], 1]]), np.triu(found)
    assert plan.padding == (0, 0)
    assert (np.abs(lower @ upper - a) <= plan.error_bound(lower, upper)).all()
    assert plan.error_bound(lower, np.zeros((2, 2))).min() > 0


def test_factors_are_numpys() -> None:
    half = np.random.default_rng(1).uniform(-0.5, 0.5, (8, 8))
    a = (half + half.T + 8 * np.eye(8)).astype(np.float32)
    found = kernels.cholesky(np.tril(a), (2, 2)).values
    assert np.allclose(found, np.linalg.cholesky(a.astype(float)), atol=1e-6)
    assert np.allclose(kernels.lu(a, (2, 2)).values.diagonal(), found.diagonal() ** 2)


@pytest.mark.parametrize(
    ("factors", "order", "size", "arch"),
    some(
        [
            (*case, arch)
            for case in (
                *(("lu", 16, (4, 4)), ("cholesky", 36, (3, 3)), ("lu", 150, (2, 3))),
                *(("lu", 5, (3, 5)), ("cholesky", 9, (1, 9))),
            )
            for arch in ("wse2", "wse3")
        ],
        ("lu", 5, (3, 5), "wse2"),
        ("cholesky", 9, (1, 9), "wse3"),
        ("cholesky", 36, (3, 3), "wse2"),
    ),
)
def test_factors_take_what_their_plan_says(
    factors: str, order: int, size: tuple[int, int], arch: str
) -> None:
    plan = kernels.plan_factorization(factors, order, size, arch=arch)
    cycles = plan.run(np.eye(order, dtype=np.float32)).cycles
    assert abs(cycles - plan.cycles) <= 0.01 * plan.cycles


@pytest.mark.parametrize(
    ("factors", "order", "words"),
    [
        ("qr", 4, "factors are 'qr'"),
        ("lu", 0, "a matrix of 0 rows"),
        ("lu", 300, "a tile of 150 x 150 elements of f32 takes 97,348 bytes"),
    ],
)
def test_a_plan_of_factors_says_what_it_cannot_do(factors: str, order: int, words: str) -> None:
    with pytest.raises(OpenwaferError) as raised:
        kernels.plan_factorization(factors, order, (2, 2))
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("function", "a", "words"),
    [
        (kernels.lu, np.array([[0, 1], [1, 0]]), "pivot 0 of A is zero"),
        (kernels.lu, np.diag([1, 2.0**127]), r"pivot 1 of A .* from 2\*\*-126 .*: 1.70141e\+38"),
        (kernels.lu, np.diag([2.0**-127, 1]), r"pivot 0 of A .* 2\*\*126: 5.87747e-39"),
        (kernels.lu, np.array([[1, np.nan], [1, 0]]), "1 of the 4 values of a are no numbers"),
        (kernels.cholesky, np.array([[1, 0], [2, 1]]), "pivot 1 is not positive"),
        (kernels.cholesky, np.array([[1, 0, 2]]), r"A has the shape \(1, 3\)"),
    ],
)
def test_a_matrix_without_such_factors_is_refused(function: Any, a: Any, words: str) -> None:
    with pytest.raises(OpenwaferError, match=words):
        function(a.astype(np.float32), (2, 2))
