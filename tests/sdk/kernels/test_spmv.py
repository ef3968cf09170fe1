"""Sparse matrix times vector on rectangles of PEs, against scipy."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import Precision, Shape, SpmvPlan, Tree
from openwafer.sdk.kernels.running import MEMORY_BYTES
from tests.examples import examples
from tests.tables import checkerboard

FORMATS = ("csr", "csc", "coo", "bsr")
PATTERNS = ("even", "power law", "a dense row", "a dense column", "empty")


def sparse(pattern: str, shape: tuple[int, int], seed: int, form: str = "coo") -> Any:
    """Numbers of many sizes in a pattern, unsorted and some of them duplicates."""
    rng = np.random.default_rng(seed)
    num = 0 if pattern == "empty" else int(rng.integers(0, 3 * max(shape)))
    row, column = (rng.integers(0, length, num) for length in shape)
    if pattern == "power law":
        row = np.minimum(rng.zipf(1.6, num) - 1, shape[0] - 1)
    if pattern == "a dense row":
        row, column = np.append(row, shape[1] * [0]), np.append(column, np.arange(shape[1]))
    if pattern == "a dense column":
        row, column = np.append(row, np.arange(shape[0])), np.append(column, shape[0] * [0])
    values = rng.normal(size=len(row)) * 2.0 ** rng.integers(-9, 3, len(row))
    return scipy.sparse.coo_array((values.astype(np.float32), (row, column)), shape).asformat(form)


def check_product(plan: SpmvPlan, seed: int, *, checked: bool = True) -> None:
    """Multiply, looking for mistakes, compare with scipy, and repeat."""
    several = (plan.num_vectors,) if plan.num_vectors > 1 else ()
    x = np.random.default_rng(seed).normal(size=(plan.shape[1], *several))
    x = x.astype(plan.precision.given)
    result = plan.run(x, check=checked)
    exact = plan.tiles.matrix.astype(np.float64) @ x.astype(np.float64)
    assert result.values.dtype == plan.precision.sums
    assert (np.abs(result.values - exact) <= plan.error_bound(x)).all()
    assert np.array_equal(plan.run(x).values, result.values)


PLANS = (
    kernels.plan_spmv(sparse("even", (23, 17), 1), (2, 3), arch="wse2"),
    kernels.plan_spmv(sparse("power law", (9, 40), 2, "csc"), (3, 2), precision="f16"),
    kernels.plan_spmv(sparse("a dense row", (7, 20), 3), (2, 2), arch="wse2", precision="f16-f32"),
    kernels.plan_spmv(sparse("a dense column", (12, 6), 4), (1, 3), tree=Tree(Shape.STAR)),
    kernels.plan_spmv(sparse("empty", (3, 4), 5), (2, 2)),
    kernels.plan_spmv(sparse("even", (9, 11), 6), (2, 3), arch="wse2", num_vectors=3),
    kernels.plan_spmv(sparse("power law", (11, 9), 7), (3, 2), num_vectors=2, precision="f16-f32"),
)


@examples(12, by_default=3)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_a_sparse_product_is_scipys_up_to_its_bound(plan: SpmvPlan, seed: int) -> None:
    check_product(plan, seed)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_any_pattern_on_any_rectangle_is_scipys_up_to_its_bound(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(*2 * [st.integers(1, 60)]))
    pattern, form = data.draw(st.sampled_from(PATTERNS)), data.draw(st.sampled_from(FORMATS))
    seed = data.draw(st.integers(0, 2**32 - 1))
    size = data.draw(st.tuples(*2 * [st.integers(1, 5)]))
    arch, precision = (
        data.draw(st.sampled_from(("wse2", "wse3"))),
        data.draw(st.sampled_from(Precision)),
    )
    options = {"arch": arch, "precision": precision, "num_vectors": data.draw(st.integers(1, 9))}
    a = sparse(pattern, shape, seed, form)
    check_product(kernels.plan_spmv(a, size, **options), seed)


@settings(max_examples=60)
@given(st.sampled_from(PATTERNS), st.integers(0, 2**32 - 1), st.sampled_from(FORMATS))
def test_tiles_hold_the_matrix_and_nothing_else(pattern: str, seed: int, form: str) -> None:
    a = sparse(pattern, (31, 20), seed, form)
    plan = kernels.plan_spmv(a, (3, 4))
    rows, columns = plan.tiles.by_rows, plan.tiles.by_columns
    whole = np.zeros((3, 4, *plan.tile), np.float32)
    tile = plan.tiles
    whole[tile.tile // 4, tile.tile % 4, tile.row, tile.column] = tile.values
    back = whole.transpose(0, 2, 1, 3)[rows.part, rows.place][:, columns.part, columns.place]
    there = np.outer(rows.part >= 0, columns.part >= 0)
    assert np.allclose(np.where(there, back, 0), a.toarray(), rtol=1e-5, atol=1e-4)
    assert plan.memory_bytes <= MEMORY_BYTES


@pytest.mark.parametrize(
    ("kind", "shape"),
    checkerboard(
        (("wse2", "f32"), ("wse3", "f16-f32")),
        (((4, 4), 4, 1), ((2, 3), 90, 1), ((2, 3), 30, 6)),
    ),
)
def test_a_sparse_product_takes_what_its_plan_says(
    kind: tuple[str, str], shape: tuple[tuple[int, int], int, int]
) -> None:
    (arch, precision), (size, num, num_vectors) = kind, shape
    places = np.random.default_rng(1).integers(0, 64, (2, num * size[0] * size[1]))
    a = scipy.sparse.coo_array((np.ones(places.shape[1], np.float32), places), (64, 64))
    plan = kernels.plan_spmv(a, size, arch=arch, precision=precision, num_vectors=num_vectors)
    given = (64, num_vectors) if num_vectors > 1 else (64,)
    cycles = plan.run(np.ones(given, plan.precision.given)).cycles
    assert abs(cycles - plan.cycles) <= 0.06 * plan.cycles


def test_a_sparse_and_a_dense_matrix_are_multiplied() -> None:
    a = scipy.sparse.csr_array(np.array([[0, 2, 0], [1, 0, 0]], np.float32))
    x = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    assert np.array_equal(kernels.spmm(a, x, (2, 2)).values, [[6, 8], [1, 2]])
    assert np.array_equal(kernels.spmm(a, x[:, :1], (2, 2)).values, [[6], [1]])


def test_rows_and_columns_are_dealt_by_their_counts() -> None:
    a = sparse("power law", (400, 400), 7)
    tiles = kernels.plan_spmv(a, (4, 4)).tiles
    of_rows = np.bincount(tiles.tile // 4)
    assert of_rows.max() <= of_rows.min() + np.bincount(tiles.matrix.tocoo().row).max()


@pytest.mark.parametrize(
    ("a", "words"),
    [
        (np.ones((2, 2), np.float32), "A is ndarray"),
        (scipy.sparse.eye_array(3), "values of A are float64"),
        (scipy.sparse.coo_array([[np.nan]], dtype=np.float32), "1 of the 1 values of A are"),
        (scipy.sparse.coo_array((0, 3), dtype=np.float32), "A has the shape (0, 3)"),
        (scipy.sparse.coo_array(np.ones((90, 90), np.float32)), "with 8100 non-zeros takes"),
    ],
)
def test_what_is_no_sparse_matrix_for_a_pe_is_refused(a: Any, words: str) -> None:
    with pytest.raises(OpenwaferError) as raised:
        kernels.plan_spmv(a, (1, 1))
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("indices", "pointers", "words"),
    [
        ([0, 7], [0, 1, 2], "indices must be < 2"),
        ([-1, 0], [0, 1, 2], "indices must be >= 0"),
        ([0, 1], [0, 2, 1], "non-decreasing"),
    ],
)
def test_places_outside_of_a_sparse_matrix_are_refused(
    indices: list[int], pointers: list[int], words: str
) -> None:
    a = scipy.sparse.csr_array(np.eye(2, dtype=np.float32))
    a.indices, a.indptr = np.array(indices), np.array(pointers)
    with pytest.raises(OpenwaferError, match=f"A of the shape .2, 2. is no sound csr: .*{words}"):
        kernels.plan_spmv(a, (1, 1))


def test_places_outside_of_matrices_by_coordinates_and_by_lists_are_refused() -> None:
    by_places = scipy.sparse.coo_array(np.eye(2, dtype=np.float32))
    by_places.coords = by_places.coords[0], by_places.coords[1] + 7
    by_lists = scipy.sparse.lil_array(np.eye(2, dtype=np.float32))
    by_lists.rows[0] = [7]
    for a in (by_places, by_lists):
        with pytest.raises(OpenwaferError, match=f"is no sound {a.format}: .*ind"):
            kernels.plan_spmv(a, (1, 1))


def test_a_vector_that_does_not_fit_a_sparse_matrix_is_refused() -> None:
    a = scipy.sparse.eye_array(3, dtype=np.float32)
    with pytest.raises(OpenwaferError, match=r"x has the shape \(4,\)"):
        kernels.spmv(a, np.ones(4, np.float32), (1, 1))
    with pytest.raises(OpenwaferError, match="1 of the 3 values of x are infinite or no numbers"):
        kernels.spmv(a, np.array([1, np.inf, 0], np.float32), (1, 1))
    with pytest.raises(OpenwaferError, match=r"x has the shape \(3,\)"):
        kernels.spmm(a, np.ones(3, np.float32), (1, 1))
    with pytest.raises(OpenwaferError, match="x has 0 columns"):
        kernels.plan_spmv(a, (1, 1), num_vectors=0)
    big = scipy.sparse.coo_array([[1e6]], dtype=np.float32)
    with pytest.raises(OpenwaferError, match="1 of the 1 values of A are infinite"):
        kernels.spmv(big, np.ones(1, np.float16), (1, 1), precision="f16")
