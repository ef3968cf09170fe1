"""GELU, SiLU and SwiGLU of activations at rest, against numpy."""

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.kernels.activation_functions import ActivationPlan, plan_activation, silu
from tests.sdk.kernels.layer_cycles import check_passes

FUNCTIONS = ("gelu", "silu", "swiglu", "gelu-erf")


def operands(plan: ActivationPlan, seed: int) -> tuple[NDArray[np.float32], ...]:
    """Numbers of many sizes, others and gradients."""
    rng = np.random.default_rng(seed)
    shape = plan.at_rest.num_features, plan.at_rest.num_tokens
    x = rng.normal(size=shape) * 2.0 ** rng.integers(-20, 9, shape)
    given = x, rng.normal(size=shape), rng.normal(size=shape)
    return tuple(values.astype(np.float32) for values in given)


def exact(plan: ActivationPlan, x: NDArray[np.float32]) -> tuple[NDArray[np.float64], ...]:
    """The function and its slope in float64."""
    wide = x.astype(float)
    if plan.function == "gelu-erf":
        normal = scipy.special.ndtr(wide)
        density = np.exp(-(wide**2) / 2) / np.sqrt(2 * np.pi)
        return wide * normal, normal + wide * density
    with np.errstate(over="ignore"):
        share = 1 / (1 + np.exp(-wide))
        rest = 1 / (1 + np.exp(wide))
    if plan.function != "gelu":
        return wide * share, share * (1 + wide * rest)
    inner, slope = wide + 0.044715 * wide**3, 1 + 3 * 0.044715 * wide**2
    half = np.sqrt(2 / np.pi)
    with np.errstate(over="ignore"):
        share, rest = 1 / (1 + np.exp(-2 * half * inner)), 1 / (1 + np.exp(2 * half * inner))
    return wide * share, share * (1 + wide * 2 * half * slope * rest)


def check_function(plan: ActivationPlan, seed: int) -> None:
    """Both passes, looking for mistakes, and numpy's."""
    x, others, dy = operands(plan, seed)
    used, factor = (others, others.astype(float)) if plan.is_gated else (None, 1.0)
    y, slope = exact(plan, x)
    found = plan.forward(x, used, check=True).values
    assert (np.abs(found - y * factor) <= plan.error_bound(x, used)).all()
    gradients, bounds = plan.backward(dy, x, used, check=True), plan.gradient_bounds(dy, x, used)
    assert (np.abs(gradients.values - dy * factor * slope) <= bounds.values).all()
    if plan.is_gated:
        assert gradients.others is not None
        assert bounds.others is not None
        assert (np.abs(gradients.others - dy * y) <= bounds.others).all()


PLANS = (
    plan_activation("gelu", (5, 9), (1, 1), arch="wse2"),
    plan_activation("swiglu", (4, 20), (1, 1)),
    plan_activation("gelu-erf", (4, 4), (1, 1)),
)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.function)
def test_an_activation_function_is_numpys_up_to_its_bound(plan: ActivationPlan) -> None:
    check_function(plan, 1)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_functions_on_any_rectangle_are_within_their_bounds(data: st.DataObject) -> None:
    rows, columns = data.draw(st.tuples(*2 * [st.integers(1, 4)]))
    plan = plan_activation(
        data.draw(st.sampled_from(FUNCTIONS)),
        (data.draw(st.integers(rows, 40)), data.draw(st.integers(1, 40))),
        (rows, columns),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
    )
    check_function(plan, data.draw(st.integers(0, 2**32 - 1)))


def check_cycles(plan: ActivationPlan) -> None:
    """Both passes take what the plan says, up to a cycle or two."""
    x, others, dy = operands(plan, 1)
    used = others if plan.is_gated else None
    check_passes(plan, (plan.forward(x, used).cycles, plan.backward(dy, x, used).cycles))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.function)
def test_a_function_takes_what_its_instructions_and_operations_take(plan: ActivationPlan) -> None:
    check_cycles(plan)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("shape", "size"), [((1, 1), (1, 1)), ((18, 4), (1, 1)), ((4, 2), (4, 2))])
def test_a_function_takes_what_its_plan_says(
    shape: tuple[int, int], size: tuple[int, int], function: str, arch: str
) -> None:
    check_cycles(plan_activation(function, shape, size, arch=arch))


def test_what_cannot_be_computed_is_refused_in_words() -> None:
    with pytest.raises(OpenwaferError, match="function is 'relu'"):
        plan_activation("relu", (4, 4), (1, 1))
    with pytest.raises(OpenwaferError, match="4000 features of 4 tokens takes"):
        plan_activation("gelu", (4000, 4), (1, 1))
    ones = np.ones((4, 2), np.float32)
    with pytest.raises(OpenwaferError, match="swiglu takes a gate and others"):
        plan_activation("swiglu", (4, 2), (1, 1)).forward(ones)
    with pytest.raises(OpenwaferError, match=r"a value of magnitude 1e\+13; silu takes up to"):
        silu(ones * np.float32(1e13), (1, 1))
