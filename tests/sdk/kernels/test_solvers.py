"""Iterative solvers on rectangles of PEs, against scipy and numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, diags_array
from scipy.sparse.linalg import bicgstab, cg

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.kernels import Fluxes, Stencil
from openwafer.sdk.kernels.solvers import Solver, SolverPlan
from tests.examples import examples
from tests.tables import covering

Shape = tuple[int, int, int]


def fluxes_of(shape: Shape, seed: int) -> Fluxes:
    """Conductances and storage between 1/2 and 2."""
    rng = np.random.default_rng(seed)
    faces = [tuple(n - (a == b) for b, n in enumerate(shape)) for a in range(3)]
    return Fluxes(*(rng.uniform(0.5, 2, s).astype(np.float32) for s in (*faces, shape)))


def matrix_of(fluxes: Fluxes) -> csr_array:
    """The matrix, a number for each cell and two for each face."""
    numbers = np.arange(fluxes.storage.size).reshape(fluxes.storage.shape)
    rows, columns = [numbers.ravel()], [numbers.ravel()]
    values = [fluxes.storage.ravel().astype(float)]
    between = (fluxes.between_rows, fluxes.between_columns, fluxes.between_layers)
    for axis, faces in enumerate(between):
        one, other = (np.delete(numbers, at, axis).ravel() for at in (-1, 0))
        flow = faces.ravel().astype(float)
        rows += [one, other, one, other]
        columns += [one, other, other, one]
        values += [flow, flow, -flow, -flow]
    return coo_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    ).tocsr()


def matrix_of_stencil(coefficients: dict[tuple[int, ...], float], shape: Shape) -> csr_array:
    """The matrix, a column for each unit vector."""
    units = np.eye(int(np.prod(shape))).reshape(-1, *shape)
    return csr_array(np.array([Stencil(coefficients).applied(u, 1).ravel() for u in units]).T)


def residuals_by_scipy(
    solver: str, matrix: csr_array, b: NDArray[Any], iterations: int
) -> NDArray[np.float64]:
    """Norms of the residuals, relative to that of `b`; zeros once there is nothing left."""
    norms = [1.0]

    def note(x: NDArray[np.float64]) -> None:
        norms.append(float(np.linalg.norm(b - matrix @ x) / np.linalg.norm(b)))

    before = diags_array(1 / matrix.diagonal()) if solver == "preconditioned" else None
    method = bicgstab if solver == "bicgstab" else cg
    method(matrix, b, rtol=1e-12, maxiter=iterations, callback=note, M=before)
    return np.pad(norms, (0, max(0, iterations + 1 - len(norms))))


def check_solution(solver: str, shape: Shape, arch: str, seed: int) -> None:
    """Solve, looking for mistakes, and compare with scipy's residuals and with the right side."""
    fluxes = fluxes_of(shape, seed)
    b = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    plan = kernels.plan_solver(solver, shape, 40, arch=arch)
    solution = plan.run(fluxes, b, 1e-4, check=True)
    matrix = matrix_of(fluxes)
    norms = residuals_by_scipy(solver, matrix, b.ravel().astype(float), len(solution.norms) - 1)
    assert np.allclose(solution.norms, norms[: len(solution.norms)], rtol=0.02, atol=1e-6)
    left = b.ravel() - matrix @ solution.values.ravel().astype(float)
    assert np.linalg.norm(left) <= 1.1e-4 * np.linalg.norm(b)
    if solver != "bicgstab":
        apart = np.linalg.norm(left) / np.linalg.norm(b) - solution.norms[-1]
        assert abs(apart) <= plan.residual_bound(fluxes, solution.norms) < 1e-2


SOLVERS = ("conjugate-gradients", "preconditioned", "bicgstab")


CASES = (
    ("preconditioned", (3, 1, 3), "wse3"),
    ("bicgstab", (2, 2, 3), "wse2"),
    ("conjugate-gradients", (2, 3, 4), "wse2"),
)


@examples(6, by_default=2)
@given(st.sampled_from(CASES), st.integers(0, 99))
def test_residuals_are_scipys(case: tuple[str, Shape, str], seed: int) -> None:
    check_solution(*case, seed)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.sampled_from(SOLVERS),
    st.tuples(*[st.integers(1, 6)] * 3),
    st.sampled_from(("wse2", "wse3")),
    st.integers(0, 2**32 - 1),
)
def test_residuals_on_any_rectangle_are_scipys(
    solver: str, shape: Shape, arch: str, seed: int
) -> None:
    check_solution(solver, shape, arch, seed)


SKEW: dict[tuple[int, ...], float] = {
    (0, 0, 0): 7.0,
    (-1, 0, 0): -2.0,
    (1, 0, 0): -0.5,
    (0, -1, 0): -1.5,
    (0, 1, 0): 0.5,
}
SKEW |= {(0, 0, -1): 1.0, (0, 0, 1): -1.0}


def test_a_stencil_that_is_not_symmetric_is_solved_as_by_scipy() -> None:
    shape = (2, 3, 4)
    b = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    solution = kernels.bicgstab(Stencil(SKEW), b, 5, arch="wse2")
    matrix = matrix_of_stencil(SKEW, shape)
    norms = residuals_by_scipy("bicgstab", matrix, b.ravel().astype(float), 5)
    assert np.allclose(solution.norms, norms, rtol=1e-3)


def test_the_power_method_is_numpys() -> None:
    shape = (2, 3, 4)
    vector = np.random.default_rng(6).normal(size=shape).astype(np.float32)
    found = kernels.power_method(Stencil(SKEW), vector, 6)
    values, norms = vector.ravel() / np.linalg.norm(vector.astype(float)), []
    for _ in range(6):
        product = matrix_of_stencil(SKEW, shape) @ values
        norms.append(np.linalg.norm(product))
        values = product / norms[-1]
    assert np.allclose(found.norms, norms, rtol=1e-5)
    assert np.allclose(found.values.ravel(), values, atol=1e-5)


def test_a_residual_has_a_bound_where_the_diagonal_says_how_long_solutions_are() -> None:
    plan, norms = kernels.plan_solver("conjugate-gradients", (2, 2, 2), 9), np.ones(3)
    assert plan.residual_bound(Stencil({(0, 0, 0): 2.0, (0, 0, 1): -2.0}), norms) == np.inf
    with pytest.raises(OpenwaferError, match="the residual of bicgstab has no bound"):
        kernels.plan_solver("bicgstab", (2, 2, 2), 9).residual_bound(Stencil(SKEW), norms)


def test_f16_is_refused_with_its_reason() -> None:
    with pytest.raises(OpenwaferError, match=r"the right side is float16; .* end at 65,504"):
        kernels.bicgstab(Stencil(SKEW), np.ones((1, 1, 4), np.float16), 3)


def cycles_of(plan: SolverPlan) -> int:
    b = np.random.default_rng(1).normal(size=plan.shape).astype(np.float32)
    vector = b / np.float32(np.linalg.norm(b))
    return plan.run(fluxes_of(plan.shape, 2), vector).cycles


SHAPES = ((1, 1, 9), (2, 3, 4), (20, 9, 6), (9, 30, 3), (200, 1, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "shape", "arch"), covering(([*Solver], SHAPES, list(Arch)), 2, lambda _: True)
)
def test_iterations_of_any_solver_take_what_their_plan_says(
    solver: Solver, shape: Shape, arch: Arch
) -> None:
    plan = kernels.plan_solver(solver, shape, 7, arch=arch)
    assert cycles_of(plan) == pytest.approx(plan.cycles, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [1, 7])
def test_a_solver_of_two_cells_takes_what_its_plan_says(iterations: int) -> None:
    plan = kernels.plan_solver("bicgstab", (2, 1, 1), iterations)
    assert cycles_of(plan) == pytest.approx(plan.cycles, rel=0.02)


def test_what_a_solver_cannot_do_is_refused() -> None:
    far = Stencil({(0, 0, 0): 1.0, (0, 0, 2): 1.0})
    with pytest.raises(OpenwaferError, match=r"that reaches \(0, 0, 2\) cells"):
        kernels.bicgstab(far, np.ones((1, 1, 4), np.float32), 3)
    with pytest.raises(OpenwaferError, match="the vector's norm is 0"):
        kernels.power_method(Stencil(SKEW), np.zeros((1, 1, 4), np.float32), 3)
    with pytest.raises(OpenwaferError, match="solver is 'gmres'"):
        kernels.plan_solver("gmres", (1, 1, 4), 3)


def test_a_right_side_of_zeros_needs_no_iteration() -> None:
    solution = kernels.conjugate_gradients(
        fluxes_of((2, 3, 4), 1), np.zeros((2, 3, 4), np.float32), 40, arch="wse2"
    )
    assert not solution.values.any()
    assert solution.norms.tolist() == [0]


@pytest.mark.parametrize(
    ("shape", "iterations", "words"),
    [
        ((2, 2), 3, "an array of the shape (2, 2)"),
        ((2, 2, 2), 0, "0 iterations"),
        ((2, 2, 900), 3, "a column of 900 cells and 3 iterations takes"),
    ],
)
def test_a_plan_of_a_solver_says_what_it_cannot_do(shape: Any, iterations: int, words: str) -> None:
    with pytest.raises(OpenwaferError) as raised:
        kernels.plan_solver("bicgstab", shape, iterations)
    assert words in str(raised.value)


def test_fluxes_of_other_shapes_are_refused() -> None:
    given_ = fluxes_of((2, 3, 4), 1)
    with pytest.raises(OpenwaferError, match=r"between_rows has the shape \(2, 3, 4\)"):
        Fluxes(given_.storage, given_.between_columns, given_.between_layers, given_.storage)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (np.nan, "2 of the 2 values of right_side are no numbers"),
        (1e30, "the sum of the squares of the right side is 2e\\+60; float32 holds"),
        (1e-30, "the sum of the squares of the right side is 2e-60; float32 holds"),
    ],
)
def test_right_sides_that_have_no_norm_are_refused(number: float, words: str) -> None:
    one = Stencil({(0, 0, 0): 2.0})
    with pytest.raises(OpenwaferError, match=words):
        kernels.conjugate_gradients(one, np.full((1, 1, 2), number, np.float32), 2)
