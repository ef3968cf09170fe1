"""Conjugate gradients on rectangles of PEs, against scipy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.linalg import cg

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import Fluxes
from tests.examples import examples

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


def residuals_by_scipy(matrix: csr_array, b: NDArray[Any], iterations: int) -> NDArray[np.float64]:
    """Norms of the residuals, relative to that of `b`."""
    norms = [1.0]

    def note(x: NDArray[np.float64]) -> None:
        norms.append(float(np.linalg.norm(b - matrix @ x) / np.linalg.norm(b)))

    cg(matrix, b, rtol=0, maxiter=iterations, callback=note)
    return np.array(norms)


def check_solution(shape: Shape, arch: str, seed: int) -> None:
    """Solve, looking for mistakes, and compare with scipy's residuals and with the right side."""
    fluxes = fluxes_of(shape, seed)
    b = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    plan = kernels.plan_conjugate_gradients(shape, 40, arch=arch)
    solution = plan.run(fluxes, b, 1e-4, check=True)
    matrix = matrix_of(fluxes)
    norms = residuals_by_scipy(matrix, b.ravel().astype(float), len(solution.norms) - 1)
    assert np.allclose(solution.norms, norms[: len(solution.norms)], rtol=0.02, atol=1e-6)
    left = b.ravel() - matrix @ solution.values.ravel().astype(float)
    assert np.linalg.norm(left) <= 1.1e-4 * np.linalg.norm(b)


@examples(4, by_default=2)
@given(st.sampled_from([((2, 3, 4), "wse2"), ((3, 1, 3), "wse3")]), st.integers(0, 99))
def test_residuals_are_scipys(given_: tuple[Shape, str], seed: int) -> None:
    check_solution(*given_, seed)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.tuples(*[st.integers(1, 6)] * 3),
    st.sampled_from(("wse2", "wse3")),
    st.integers(0, 2**32 - 1),
)
def test_residuals_on_any_rectangle_are_scipys(shape: Shape, arch: str, seed: int) -> None:
    check_solution(shape, arch, seed)


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
def test_a_plan_of_conjugate_gradients_says_what_it_cannot_do(
    shape: Any, iterations: int, words: str
) -> None:
    with pytest.raises(OpenwaferError) as raised:
        kernels.plan_conjugate_gradients(shape, iterations)
    assert words in str(raised.value)


def test_fluxes_of_other_shapes_are_refused() -> None:
    given_ = fluxes_of((2, 3, 4), 1)
    with pytest.raises(OpenwaferError, match=r"between_rows has the shape \(2, 3, 4\)"):
        Fluxes(given_.storage, given_.between_columns, given_.between_layers, given_.storage)
