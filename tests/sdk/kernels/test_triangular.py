"""Triangular systems on rectangles of PEs, against the bound of their residual and scipy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import TriangularPlan
from tests.examples import examples
from tests.tables import case


def system(order: int, num_columns: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A matrix with numbers of many sizes in both triangles, and a right side."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(order, order)) * 2.0 ** rng.integers(-4, 2, order)
    a += np.diag(np.where(np.diagonal(a) < 0, -1, 1))
    return a.astype(np.float32), rng.normal(size=(order, num_columns)).astype(np.float32)


def check_solution(plan: TriangularPlan, seed: int) -> None:
    """Solve, looking for mistakes, multiply again, and repeat."""
    a, b = system(plan.order, plan.num_columns, seed)
    found = plan.run(a, b, check=True).values
    lower = np.tril(a)
    left = np.abs(b - lower.astype(float) @ found.astype(float))
    assert (left <= plan.error_bound(lower, found)).all()
    assert np.array_equal(plan.run(a, b).values, found)


PLANS = (
    # A plan has several columns of PEs with L only where one has no room for it.
    replace(kernels.plan_triangular(9, 4, (2, 4)), factor_columns=3),
    kernels.plan_triangular(7, 5, (3, 1)),
    kernels.plan_triangular(9, 3, (2, 3), arch="wse2"),
)


@examples(6, by_default=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_a_triangular_system_is_solved_up_to_its_bound(plan: TriangularPlan, seed: int) -> None:
    check_solution(plan, seed)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_systems_on_any_rectangle_are_solved_up_to_their_bound(data: st.DataObject) -> None:
    columns = data.draw(st.integers(1, 5))
    plan = kernels.plan_triangular(
        data.draw(st.integers(1, 40)),
        data.draw(st.integers(1, 12)),
        (data.draw(st.integers(1, 5)), columns),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
    )
    if columns > 1:
        plan = replace(plan, factor_columns=data.draw(st.integers(1, columns - 1)))
    check_solution(plan, data.draw(st.integers(0, 2**32 - 1)))


@pytest.mark.parametrize("is_lower", [False, True])
def test_both_triangles_and_a_vector_are_solved_as_by_scipy(is_lower: bool) -> None:
    a, b = system(8, 1, 3)
    found = kernels.trsm(a, b[:, 0], (2, 2), is_lower=is_lower).values
    want = scipy.linalg.solve_triangular(a.astype(float), b[:, 0], lower=is_lower)
    assert found.shape == (8,)
    assert np.allclose(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(
    ("order", "num_columns", "size"),
    [
        case(32, 16, (4, 4), by_default=False),
        case(8, 16, (4, 2), by_default=True),
        case(64, 32, (4, 4), by_default=False),
        case(20, 40, (3, 2), by_default=False),
        case(100, 20, (5, 5), by_default=False),
        case(24, 24, (3, 1), by_default=False),
        case(3, 5, (3, 5), by_default=True),
        case(9, 1, (9, 1), by_default=False),
    ],
)
def test_a_triangular_system_takes_what_its_plan_says(
    order: int, num_columns: int, size: tuple[int, int], arch: str
) -> None:
    plan = kernels.plan_triangular(order, num_columns, size, arch=arch)
    cycles = plan.run(*system(order, num_columns, 1)).cycles
    assert abs(cycles - plan.cycles) <= 0.03 * plan.cycles


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (np.diag([1, 0]), np.ones(2), "element 1 of A's diagonal is 0"),
        (np.diag([1e38, 1]), np.ones(2), r"element 0 of A's diagonal is 1e\+38"),
        (np.diag([1, 1e-39]), np.ones(2), "element 1 of A's diagonal is 1e-39"),
        (np.diag([np.nan, 1]), np.ones(2), "1 of the 4 values of a are no numbers"),
        (np.eye(2), np.ones(3), r"B has the shape \(3,\); the plan is for \(2,\)"),
        (np.ones(2), np.ones(2), r"shapes are \(2,\) and \(2,\)"),
        (np.ones((0, 0)), np.ones(0), "a matrix of 0 rows and a right side of 1 columns"),
    ],
)
def test_what_is_no_triangular_system_is_refused(a: Any, b: Any, words: str) -> None:
    with pytest.raises(OpenwaferError, match=words):
        kernels.trsm(a.astype(np.float32), b.astype(np.float32), (1, 2))


def test_a_triangular_system_that_is_too_large_for_its_pes_is_refused() -> None:
    with pytest.raises(OpenwaferError, match="tiles of 200 x 200 and 200 x 1 elements of f32"):
        kernels.plan_triangular(200, 1, (1, 2))
