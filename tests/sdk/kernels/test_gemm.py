"""Matrix times matrix on rectangles of PEs, against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import GemmPlan, Precision
from openwafer.sdk.kernels.running import MEMORY_BYTES
from tests.examples import examples


@st.composite
def plans(draw: st.DrawFn, most_pes: int, most: int) -> GemmPlan:
    """A plan for matrices of at most `most` rows and columns."""
    size = st.integers(1, most)
    return kernels.plan_gemm(
        (draw(size), draw(size), draw(size)),
        (draw(st.integers(1, most_pes)), draw(st.integers(1, most_pes))),
        arch=draw(st.sampled_from(("wse2", "wse3"))),
        precision=draw(st.sampled_from(Precision)),
        panel=draw(st.none() | st.integers(1, 20)),
    )


def check_product(plan: GemmPlan, seed: int) -> None:
    """Multiply numbers of many sizes, looking for mistakes, and compare."""
    rng = np.random.default_rng(seed)
    sizes = 2.0 ** rng.integers(-9, 3, plan.shape[:2])
    a = (rng.normal(size=plan.shape[:2]) * sizes).astype(plan.precision.given)
    b = rng.normal(size=plan.shape[1:]).astype(plan.precision.given)
    result = plan.run(a, b, check=True)
    error = np.abs(result.values - a.astype(np.float64) @ b.astype(np.float64))
    assert result.values.dtype == plan.precision.sums
    assert (error <= plan.error_bound(a, b)).all()
    assert np.array_equal(plan.run(a, b).values, result.values)


# Compiled once each; many values are drawn for them.
PLANS = (
    kernels.plan_gemm((5, 14, 3), (2, 3), arch="wse2", precision="f32", panel=2),
    kernels.plan_gemm((9, 6, 12), (3, 1), precision="f16-f32"),
    kernels.plan_gemm((14, 11, 7), (2, 2), precision="f16", panel=3),
)


@examples(10, by_default=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_a_product_on_rectangles_is_numpys_up_to_its_bound(plan: GemmPlan, seed: int) -> None:
    check_product(plan, seed)


@pytest.mark.slow
@settings(max_examples=60)
@given(plans(6, 60), st.integers(0, 2**32 - 1))
def test_larger_products_are_numpys_up_to_their_bounds(plan: GemmPlan, seed: int) -> None:
    check_product(plan, seed)


def test_bits_do_not_depend_on_the_rectangle() -> None:
    a = np.random.default_rng(1).normal(size=(8, 12)).astype(np.float32)
    one, many = (kernels.gemm(a, a.T, size).values for size in ((1, 1), (2, 3)))
    assert np.array_equal(one, many)


def own_cycles(plan: GemmPlan) -> int:
    """Of a run with ones."""
    a, b = (np.ones(shape, plan.precision.given) for shape in (plan.shape[:2], plan.shape[1:]))
    return plan.run(a, b).cycles


def check_cycles(plan: GemmPlan) -> None:
    """They are the plan's within a tenth."""
    assert abs(own_cycles(plan) - plan.cycles) <= 0.1 * plan.cycles


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_small_product_on_one_pe_takes_exactly_what_its_instructions_say(arch: str) -> None:
    plan = kernels.plan_gemm((2, 2, 2), (1, 1), arch=arch)
    assert own_cycles(plan) == plan.cycles


# The corner's PE sends and receives all words, which are more than its first task hides.
def test_a_larger_product_on_one_pe_waits_for_its_own_words() -> None:
    plan = kernels.plan_gemm((8, 8, 8), (1, 1))
    assert own_cycles(plan) == pytest.approx(plan.cycles, rel=0.02)


# A PE that sends next does so before it multiplies.
def test_a_small_product_on_two_columns_waits_for_the_next_sender() -> None:
    plan = kernels.plan_gemm((2, 2, 4), (1, 2), arch="wse2")
    assert own_cycles(plan) == pytest.approx(plan.cycles, rel=0.02)


# Large tiles, whose words hide behind products; small ones, which are mostly tasks; and tall ones,
# which wait for the words of the PE that sends.
@pytest.mark.parametrize(
    ("shape", "size", "arch", "precision"),
    [
        ((48, 48, 48), (2, 2), "wse2", "f32"),
        ((16, 16, 12), (4, 4), "wse3", "f16-f32"),
        ((48, 32, 4), (2, 2), "wse2", "f32"),
    ],
)
def test_a_matrix_product_takes_what_its_plan_says(
    shape: tuple[int, int, int], size: tuple[int, int], arch: str, precision: str
) -> None:
    check_cycles(kernels.plan_gemm(shape, size, arch=arch, precision=precision))


@pytest.mark.slow
@settings(max_examples=60)
@given(plans(8, 60))
def test_drawn_products_take_what_their_plans_say(plan: GemmPlan) -> None:
    assume(plan.rows * plan.columns > 1)
    check_cycles(plan)


def test_the_largest_tiles_of_a_plan_reach_most_of_the_peak() -> None:
    plan = kernels.plan_gemm((48 * 64,) * 3, (64, 64), arch="wse2")
    assert plan.share_of_peak > 0.8
    assert plan.memory_bytes <= MEMORY_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_pes", "inner", "least"), [(4, 192, 0.9), (8, 384, 0.9), (16, 256, 0.9), (64, 64, 0.6)]
)
def test_products_of_large_tiles_reach_most_of_the_peak(
    num_pes: int, inner: int, least: float
) -> None:
    n = 48 * num_pes
    plan = kernels.plan_gemm((n, inner, n), (num_pes, num_pes), arch="wse2")
    a = np.ones((n, inner), np.float32)
    result = plan.run(a, a.T.copy())
    assert (result.values == inner).all()
    assert plan.num_panels * plan.product.num_products >= least * result.cycles


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((0, 4, 4), {}, "a product of (0, 4, 4)"),
        ((4, 4, 4), {"panel": 0}, "panels of 0 columns"),
        ((140, 140, 140), {}, "a tile of 70 x 70 elements of f32, and those of A and B, takes"),
    ],
)
def test_a_plan_of_a_product_says_what_it_cannot_do(
    shape: tuple[int, int, int], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OpenwaferError) as raised:
        kernels.plan_gemm(shape, (2, 2), **options)
    assert words in str(raised.value)


def test_matrices_that_do_not_fit_one_another_are_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"B has the shape \(4, 2\); the plan is for \(3, 2\)"):
        kernels.gemm(np.zeros((2, 3), np.float32), np.zeros((4, 2), np.float32), (1, 1))
    with pytest.raises(OpenwaferError, match=r"shapes are \(3,\) and \(3,\)"):
        kernels.gemm(np.zeros(3, np.float32), np.zeros(3, np.float32), (1, 1))
