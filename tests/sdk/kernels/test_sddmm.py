"""Products of dense matrices where a sparse one has non-zeros, against scipy."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import Precision, SddmmPlan
from tests.examples import examples
from tests.sdk.kernels.test_spmv import PATTERNS, sparse
from tests.tables import some


def check_samples(plan: SddmmPlan, seed: int) -> None:
    """Multiply, looking for mistakes, compare with numpy, and repeat."""
    rng, given_type = np.random.default_rng(seed), plan.precision.given
    a = rng.normal(size=(plan.shape[0], plan.inner)).astype(given_type)
    b = rng.normal(size=(plan.inner, plan.shape[1])).astype(given_type)
    found, s = plan.run(a, b, check=True).values, plan.tiles.matrix
    entries = s.tocoo()
    exact = entries.data * (a.astype(float) @ b.astype(float))[entries.row, entries.col]
    assert np.array_equal(found.indices, s.indices)
    assert np.array_equal(found.indptr, s.indptr)
    assert (np.abs(found.data - exact) <= plan.error_bound(a, b)).all()
    assert np.array_equal(plan.run(a, b).values.data, found.data)


PLANS = (
    kernels.plan_sddmm(sparse("even", (13, 9), 1), 5, (2, 3), arch="wse2"),
    kernels.plan_sddmm(sparse("power law", (9, 20), 2, "csc"), 8, (3, 2), precision="f16"),
    kernels.plan_sddmm(sparse("a dense row", (7, 12), 3), 1, (2, 2), precision="f16-f32"),
)


@examples(6, by_default=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_sampled_products_are_numpys_up_to_their_bound(plan: SddmmPlan, seed: int) -> None:
    check_samples(plan, seed)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_any_samples_on_any_rectangle_are_numpys_up_to_their_bound(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**32 - 1))
    shape = data.draw(st.tuples(*2 * [st.integers(1, 40)]))
    s = sparse(data.draw(st.sampled_from(PATTERNS)), shape, seed)
    plan = kernels.plan_sddmm(
        s,
        data.draw(st.integers(1, 20)),
        data.draw(st.tuples(*2 * [st.integers(1, 4)])),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
        precision=data.draw(st.sampled_from(Precision)),
    )
    check_samples(plan, seed)


@pytest.mark.parametrize(
    ("arch", "precision", "size"),
    some(
        [("wse2", "f32", (2, 2)), ("wse3", "f16", (2, 2)), ("wse3", "f32", (1, 8))],
        ("wse2", "f32", (2, 2)),
        ("wse3", "f32", (1, 8)),
    ),
)
def test_sampled_products_take_what_their_plan_says(
    arch: str, precision: str, size: tuple[int, int]
) -> None:
    plan = kernels.plan_sddmm(sparse("even", (40, 40), 8), 16, size, arch=arch, precision=precision)
    ones = np.ones((40, 16), plan.precision.given)
    cycles = plan.run(ones, ones.T).cycles
    assert abs(cycles - plan.cycles) <= 0.06 * plan.cycles


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (np.ones(3), np.ones(3), r"A has the shape \(3,\)"),
        (np.ones((3, 0)), np.ones((0, 3)), "A has 0 columns"),
        (np.ones((3, 2)), np.ones((3, 2)), r"B has the shape \(3, 2\); the plan is for \(2, 3\)"),
        (np.ones((3, 2)), np.full((2, 3), np.nan), "6 of the 6 values of b are no numbers"),
        (np.ones((3, 6000)), np.ones((6000, 3)), "a tile of 3 x 3 rows of 6000 elements"),
    ],
)
def test_matrices_that_cannot_be_sampled_are_refused(a: Any, b: Any, words: str) -> None:
    s = scipy.sparse.eye_array(3, dtype=np.float32)
    with pytest.raises(OpenwaferError, match=words):
        kernels.sddmm(s, a.astype(np.float32), b.astype(np.float32), (1, 1))
