"""Operations on vectors spread over rectangles of PEs, against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.arch.generation import WSE3
from openwafer.sdk.kernels import Precision, VectorPlan
from tests.examples import examples
from tests.tables import checkerboard

OPERATIONS = ("axpy", "scal", "dot", "nrm2", "asum")


def is_possible(operation: str, precision: Precision) -> bool:
    """Whether a plan takes the two."""
    refused = {"axpy": Precision.F16_F32, "scal": Precision.F16_F32, "nrm2": Precision.F16}
    return refused.get(operation) is not precision


@st.composite
def plans(draw: st.DrawFn) -> VectorPlan:
    """A plan of any operation on a rectangle of at most 6 PEs a side."""
    operation = draw(st.sampled_from(OPERATIONS))
    allowed = [one for one in Precision if is_possible(operation, one)]
    return kernels.plan_vector(
        operation,
        draw(st.integers(1, 2000)),
        (draw(st.integers(1, 6)), draw(st.integers(1, 6))),
        arch=draw(st.sampled_from(("wse2", "wse3"))),
        precision=draw(st.sampled_from(allowed)),
    )


def exact_of(plan: VectorPlan, x: NDArray[Any], y: NDArray[Any] | None, alpha: float) -> Any:
    """The result by numpy, of float64 and of alpha as the elements' type has it."""
    one, other = x.astype(float), 0 if y is None else y.astype(float)
    sums = {"dot": one @ one if y is None else one @ y, "nrm2": np.sqrt(one @ one)}
    sums["asum"] = np.abs(one).sum()
    return sums.get(plan.operation, float(x.dtype.type(alpha)) * one + other)


def check_vectors(plan: VectorPlan, seed: int) -> None:
    """Run with numbers of many sizes, looking for mistakes, and compare."""
    rng = np.random.default_rng(seed)
    sizes = 2.0 ** rng.integers(-9, 3, plan.length)
    drawn = [(rng.normal(size=plan.length) * sizes).astype(plan.precision.given) for _ in range(2)]
    x, y = drawn[0], drawn[1] if plan.operation.has_y else None
    alpha = float(rng.normal())
    result = plan.run(x, y, alpha, check=True)
    wrong = np.abs(result.values - exact_of(plan, x, y, alpha))
    assert result.values.dtype == plan.precision.sums
    assert (wrong <= plan.error_bound(x, y, alpha)).all()
    assert np.array_equal(plan.run(x, y, alpha).values, result.values)


# Compiled once each; many values are drawn for them.
PLANS = (
    kernels.plan_vector("axpy", 100, (2, 3), arch="wse2"),
    kernels.plan_vector("scal", 17, (1, 2), precision="f16"),
    kernels.plan_vector("dot", 150, (2, 2), precision="f16-f32"),
    kernels.plan_vector("dot", 55, (3, 1), arch="wse2", precision="f16"),
    kernels.plan_vector("nrm2", 90, (2, 3)),
    kernels.plan_vector("asum", 31, (1, 1), arch="wse2"),
)


@examples(12, by_default=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_an_operation_on_rectangles_is_within_its_bound(plan: VectorPlan, seed: int) -> None:
    check_vectors(plan, seed)


@pytest.mark.slow
@settings(max_examples=80)
@given(plans(), st.integers(0, 2**32 - 1))
def test_any_operation_on_any_rectangle_is_within_its_bound(plan: VectorPlan, seed: int) -> None:
    check_vectors(plan, seed)


@examples(10, by_default=3)
@given(st.integers(-149, 126), st.integers(0, 2**32 - 1))
def test_a_norm_neither_overflows_nor_vanishes(exponent: int, seed: int) -> None:
    plan = PLANS[4]
    rng = np.random.default_rng(seed)
    x = np.ldexp(rng.uniform(0.5, 1, plan.length) / 16, exponent).astype(np.float32)
    assert abs(plan.run(x).values - np.linalg.norm(x.astype(float))) <= plan.error_bound(x)


@pytest.mark.parametrize(("value", "norm"), [(np.inf, np.inf), (0.0, 0.0)])
def test_a_norm_is_infinite_with_its_values_and_zero_without_any(value: float, norm: float) -> None:
    x = np.zeros(90, np.float32)
    x[7] = value
    assert np.array_equal(PLANS[4].run(x).values, norm)


def test_the_last_of_many_columns_begins_and_ends_late() -> None:
    few, many = (kernels.plan_vector("scal", n, (1, n)) for n in (1, 40))
    taken = [plan.run(np.ones(plan.length, np.float32)).cycles for plan in (few, many)]
    assert many.cycles - few.cycles == taken[1] - taken[0] == 39 * WSE3.timing.hop_cycles


@pytest.mark.parametrize(
    ("operation", "arch"), checkerboard(OPERATIONS, ("wse2", "wse3"), one_in=4)
)
def test_an_operation_takes_what_its_plan_says(operation: str, arch: str) -> None:
    plan = kernels.plan_vector(operation, 2 * 3 * 200, (2, 3), arch=arch)
    x = np.ones(plan.length, np.float32)
    cycles = plan.run(x, x if plan.operation.has_y else None).cycles
    assert abs(cycles - plan.cycles) <= 0.1 * plan.cycles


@pytest.mark.parametrize(
    ("operation", "arch", "precision"),
    [
        ("axpy", "wse2", "f32"),
        ("scal", "wse3", "f32"),
        ("dot", "wse2", "f16-f32"),
        ("asum", "wse2", "f16"),
        ("nrm2", "wse2", "f32"),
    ],
)
def test_short_vectors_take_exactly_what_their_plan_says(
    operation: str, arch: str, precision: str
) -> None:
    plan = kernels.plan_vector(operation, 5, (1, 2), arch=arch, precision=precision)
    x = np.ones(plan.length, plan.precision.given)
    assert plan.run(x, x if plan.operation.has_y else None).cycles == plan.cycles


def test_functions_choose_the_precision_by_the_elements() -> None:
    x = np.full(40, 300, np.float16)
    assert kernels.nrm2(x, (1, 2)).values == np.float32(300 * np.sqrt(np.float32(40)))
    assert kernels.asum(x, (1, 2)).values == 12000
    assert kernels.dot(x, x, (1, 2)).values == 3_600_000
    assert (kernels.axpy(2, x, x, (1, 2)).values == 900).all()
    assert kernels.scal(2, x, (1, 2)).values.dtype == np.float16


@pytest.mark.parametrize(
    ("operation", "length", "options", "words"),
    [
        ("gemm", 4, {}, "operation is 'gemm'"),
        ("dot", 0, {}, "a vector of 0 elements"),
        ("dot", 20_000, {}, "5000 elements a PE of f32 takes 66,152 bytes"),
        ("axpy", 4, {"precision": "f16-f32"}, "axpy has no sums, so f16-f32 says nothing"),
        ("nrm2", 4, {"precision": "f16"}, "squares of f16 elements from 256 on leave its range"),
    ],
)
def test_a_plan_says_what_it_cannot_do(
    operation: str, length: int, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OpenwaferError) as raised:
        kernels.plan_vector(operation, length, (2, 2), **options)
    assert words in str(raised.value)


def test_a_vector_that_is_missing_or_too_many_is_refused() -> None:
    x = np.ones(100, np.float32)
    with pytest.raises(OpenwaferError, match="axpy takes two vectors"):
        PLANS[0].run(x)
    with pytest.raises(OpenwaferError, match="nrm2 takes one vector"):
        PLANS[4].run(x[:90], x[:90])
    with pytest.raises(OpenwaferError, match=r"x has the shape \(100,\); the plan is for \(90,\)"):
        PLANS[4].run(x)
    with pytest.raises(OpenwaferError, match=r"x has the shape \(\); the plan is for \(1,\)"):
        kernels.nrm2(np.array(3, np.float32), (1, 1))
