"""Matrix times vector on rectangles of PEs, against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import GemvPlan, Precision, Shape, Tree
from tests.examples import examples
from tests.tables import case


@st.composite
def plans(draw: st.DrawFn, most_pes: int, most: int) -> GemvPlan:
    """A plan for a matrix of at most `most` rows and columns."""
    tree = st.none() | st.builds(Tree, st.sampled_from(Shape), st.integers(1, 3))
    return kernels.plan_gemv(
        (draw(st.integers(1, most)), draw(st.integers(1, most))),
        (draw(st.integers(1, most_pes)), draw(st.integers(1, most_pes))),
        arch=draw(st.sampled_from(("wse2", "wse3"))),
        precision=draw(st.sampled_from(Precision)),
        along=draw(st.sampled_from(("columns", "rows"))),
        tree=draw(tree),
    )


def check_product(plan: GemvPlan, seed: int) -> None:
    """Multiply numbers of many sizes, looking for mistakes, and compare."""
    rng = np.random.default_rng(seed)
    sizes = 2.0 ** rng.integers(-9, 3, plan.shape)
    a = (rng.normal(size=plan.shape) * sizes).astype(plan.precision.given)
    x = rng.normal(size=plan.shape[1]).astype(plan.precision.given)
    result = plan.run(a, x, check=True)
    error = np.abs(result.values - a.astype(np.float64) @ x.astype(np.float64))
    assert result.values.dtype == plan.precision.sums
    assert (error <= plan.error_bound(a, x)).all()
    assert np.array_equal(plan.run(a, x).values, result.values)


# Compiled once each; many values are drawn for them.
PLANS = (
    kernels.plan_gemv((24, 17), (3, 2), precision="f32", along="rows", tree=Tree(Shape.TREE)),
    kernels.plan_gemv((10, 24), (2, 3), arch="wse2", precision="f16", along="columns"),
    kernels.plan_gemv((3, 9), (1, 3), precision="f16", tree=Tree(Shape.TWO_PHASE, 2)),
)


@examples(15, by_default=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_a_product_on_rectangles_is_within_its_bound(plan: GemvPlan, seed: int) -> None:
    check_product(plan, seed)


@pytest.mark.slow
@settings(max_examples=100)
@given(plans(8, 100), st.integers(0, 2**32 - 1))
def test_a_larger_product_on_any_rectangle_is_within_its_bound(plan: GemvPlan, seed: int) -> None:
    check_product(plan, seed)


@pytest.mark.parametrize(
    ("shape", "size", "arch", "precision"),
    [
        case((48, 40), (4, 3), "wse2", "f32", by_default=False),
        case((128, 64), (2, 4), "wse2", "f16", by_default=False),
        case((64, 64), (4, 4), "wse2", "f16-f32", by_default=True),
    ],
)
def test_a_product_takes_what_its_plan_says(
    shape: tuple[int, int], size: tuple[int, int], arch: str, precision: str
) -> None:
    plan = kernels.plan_gemv(shape, size, arch=arch, precision=precision)
    given_type = plan.precision.given
    cycles = plan.run(np.ones(shape, given_type), np.ones(shape[1], given_type)).cycles
    assert abs(cycles - plan.cycles) <= 0.1 * plan.cycles


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("tree", [None, Tree(Shape.CHAIN), Tree(Shape.TWO_PHASE, 4)])
def test_products_of_16_times_16_pes_take_what_their_plans_say(
    arch: str, precision: str, tree: Tree | None
) -> None:
    plan = kernels.plan_gemv((640, 480), (16, 16), arch=arch, precision=precision, tree=tree)
    values = np.ones((640, 480), plan.precision.given)
    cycles = plan.run(values, values[0]).cycles
    assert abs(cycles - plan.cycles) <= 0.1 * plan.cycles


def test_what_an_infinite_element_makes_stays_in_its_row() -> None:
    a = np.ones((3, 3), np.float32)
    a[1, 2] = np.inf
    result = kernels.gemv(a, np.array([1, 1, 0], np.float32), (2, 2))
    assert np.array_equal(result.values, [2, np.nan, 2], equal_nan=True)


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((0, 4), {}, "A has the shape (0, 4)"),
        ((4, 4), {"along": "diagonals"}, "along is 'diagonals'"),
        ((400, 400), {}, "a tile of 200 x 200 elements of f32 takes"),
    ],
)
def test_a_plan_says_what_it_cannot_do(
    shape: tuple[int, int], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OpenwaferError) as raised:
        kernels.plan_gemv(shape, (2, 2), **options)
    assert words in str(raised.value)


def test_operands_that_do_not_fit_one_another_are_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"x has the shape \(4,\); the plan is for \(3,\)"):
        kernels.gemv(np.zeros((2, 3), np.float32), np.zeros(4, np.float32), (1, 1))
    with pytest.raises(OpenwaferError, match="values are float16; a kernel takes float32"):
        kernels.gemv(np.zeros((2, 3), np.float32), np.zeros(3, np.float16), (1, 1))
    with pytest.raises(OpenwaferError, match=r"A has the shape \(3,\)"):
        kernels.gemv(np.zeros(3, np.float32), np.zeros(3, np.float32), (1, 1))
