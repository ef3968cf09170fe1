"""Layer norm and RMS norm of activations at rest, against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.kernels.norms import NormPlan, plan_norm
from tests.sdk.kernels.layer_cycles import check_passes

Arrays = tuple[NDArray[Any], ...]


def operands(plan: NormPlan, seed: int) -> Arrays:
    """Activations far from zero, gradients, scales and shifts."""
    rng = np.random.default_rng(seed)
    shape = plan.at_rest.num_features, plan.at_rest.num_tokens
    x = rng.normal(size=shape) * 2.0 ** rng.integers(-3, 3, shape[1]) + rng.normal()
    given = x, rng.normal(size=shape), rng.normal(size=shape[0]), rng.normal(size=shape[0])
    return tuple(values.astype(np.float32) for values in given)


def exact(plan: NormPlan, x: NDArray[Any]) -> Arrays:
    """Normalized features and roots in float64."""
    wide = x.astype(float)
    centred = wide - wide.mean(0) if plan.has_mean else wide
    root = 1 / np.sqrt((centred**2).mean(0) + np.float32(plan.epsilon))
    return centred * root, root


def check_norm(plan: NormPlan, seed: int) -> None:
    """Both passes, looking for mistakes, and numpy's."""
    x, dy, scales, shifts = operands(plan, seed)
    used = shifts if plan.has_mean else None
    normal, root = exact(plan, x)
    kept = plan.forward(x, scales, used, check=True)
    want = normal * scales[:, None].astype(float) + (shifts[:, None] if plan.has_mean else 0)
    assert (np.abs(kept.values - want) <= plan.error_bound(x, scales, used)).all()
    found, bounds = plan.backward(dy, scales, kept, check=True), plan.gradient_bounds(dy, x, scales)
    inner = dy.astype(float) * scales[:, None]
    dx = inner - normal * (inner * normal).mean(0) - (inner.mean(0) if plan.has_mean else 0)
    assert (np.abs(found.values - root * dx) <= bounds.values).all()
    assert (np.abs(found.scales - (dy * normal).sum(1)) <= bounds.scales).all()
    if plan.has_mean:
        assert (np.abs(found.shifts - dy.astype(float).sum(1)) <= bounds.shifts).all()


PLANS = (
    plan_norm("layer", (7, 9), (2, 2), arch="wse2"),
    plan_norm("rms", (5, 3), (2, 1)),
)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.norm)
def test_a_norm_and_its_gradients_are_numpys_up_to_their_bounds(plan: NormPlan) -> None:
    check_norm(plan, 1)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_norms_on_any_rectangle_are_within_their_bounds(data: st.DataObject) -> None:
    rows, columns = data.draw(st.tuples(*2 * [st.integers(1, 6)]))
    plan = plan_norm(
        data.draw(st.sampled_from(("layer", "rms"))),
        (data.draw(st.integers(rows, 70)), data.draw(st.integers(1, 60))),
        (rows, columns),
        epsilon=data.draw(st.sampled_from((1e-5, 1e-6, 1e-12))),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
    )
    check_norm(plan, data.draw(st.integers(0, 2**32 - 1)))


def check_cycles(plan: NormPlan, share: float) -> None:
    """Of both passes, beside those of the plan."""
    x, dy, scales, shifts = operands(plan, 1)
    kept = plan.forward(x, scales, shifts if plan.has_mean else None)
    backward = plan.backward(dy, scales, kept)
    check_passes(plan, (kept.cycles, backward.cycles), share=share)


@pytest.mark.parametrize(
    ("norm", "arch", "shape", "size"),
    [
        ("layer", "wse3", (3, 10), (1, 2)),
        ("rms", "wse2", (3, 10), (1, 2)),
        # Of four tokens no loop is made.
        ("rms", "wse3", (2, 2), (1, 1)),
    ],
)
def test_a_norm_on_a_row_takes_what_its_instructions_and_operations_take(
    norm: str, arch: str, shape: tuple[int, int], size: tuple[int, int]
) -> None:
    check_cycles(plan_norm(norm, shape, size, arch=arch), 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((2, 2), (1, 1)),
        ((3, 18), (1, 9)),
        ((8, 6), (2, 2)),
        ((9, 4), (9, 1)),
        ((64, 16), (4, 2)),
    ],
)
def test_a_norm_takes_what_its_plan_says(
    shape: tuple[int, int], size: tuple[int, int], norm: str, arch: str
) -> None:
    check_cycles(plan_norm(norm, shape, size, arch=arch), 0.02)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"norm": "batch"}, "norm is 'batch'"),
        ({"shape": (3, 4)}, "3 features of 4 tokens on 4 rows of PEs"),
        ({"shape": (4, 0)}, "4 features of 0 tokens"),
        ({"size": (4, 0)}, "4 rows and 0 columns of PEs"),
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"shape": (4000, 4)}, "1000 features of 4 tokens takes"),
    ],
)
def test_norms_that_cannot_be_planned_are_refused_in_words(
    given: dict[str, Any], words: str
) -> None:
    usual = {"norm": "layer", "shape": (8, 4), "size": (4, 1)}
    with pytest.raises(OpenwaferError) as caught:
        plan_norm(**usual | given)
    assert words in str(caught.value)


def test_operands_that_do_not_fit_a_norm_are_refused() -> None:
    ones, rms = np.ones(4, np.float32), plan_norm("rms", (4, 2), (1, 1))
    x = np.ones((4, 2), np.float32)
    with pytest.raises(OpenwaferError, match="rms norm takes scales alone"):
        rms.forward(x, ones, ones)
    with pytest.raises(OpenwaferError, match=r"X has the shape \(2, 4\); the plan is for \(4, 2\)"):
        rms.forward(x.T.copy(), ones)
    with pytest.raises(OpenwaferError, match="1 of the 4 values of scales are infinite"):
        rms.forward(x, np.array([1, 2, np.nan, 1], np.float32))
