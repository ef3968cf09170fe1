"""Backward passes of streamed products, against numpy."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from openwafer.sdk.kernels import StreamedPlan, Streaming
from tests.sdk.kernels.test_streamed import ARCHS, PATTERNS, PRECISIONS, SHARES, weights
from tests.tables import some


def check_backward(plan: StreamedPlan, seed: int) -> None:
    """Both passes, looking for mistakes, and numpy's."""
    rng, (outputs, features, tokens) = np.random.default_rng(seed), plan.shape
    given = plan.precision.given
    x, dy = rng.normal(size=(features, tokens)), rng.normal(size=(outputs, tokens))
    x, dy = x.astype(given), dy.astype(given)
    matrix = plan.streams.matrix.astype(np.float64)
    delta = kernels.streamed_delta(plan, dy, check=True).values
    assert (np.abs(delta - matrix.T @ dy.astype(np.float64)) <= kernels.delta_bound(plan, dy)).all()
    gradient = kernels.streamed_gradient(plan, x, dy, check=True).values
    entries = matrix.tocoo()
    exact = (dy.astype(np.float64) @ x.T.astype(np.float64))[entries.row, entries.col]
    assert (np.abs(gradient - exact) <= kernels.gradient_bound(plan, x, dy)).all()


PLANS = (
    kernels.plan_streamed(
        weights("even", (7, 19), 0.5, 1), 9, (3, 2), arch="wse2", streaming=Streaming(1, 2)
    ),
    kernels.plan_streamed(
        weights("power law", (9, 30), 0.2, 2), 33, (2, 3), precision="f16-f32",
        streaming=Streaming(1),
    ),
    kernels.plan_streamed(weights("empty rows and columns", (11, 8), 0.1, 4), 5, (1, 1)),
)  # fmt: skip


@settings(max_examples=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_both_gradients_are_numpys_up_to_their_bounds(plan: StreamedPlan, seed: int) -> None:
    check_backward(plan, seed)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data())
def test_gradients_of_any_weights_are_within_their_bounds(data: st.DataObject) -> None:
    rows, columns = data.draw(st.tuples(*2 * [st.integers(1, 5)]))
    shape = data.draw(st.tuples(*2 * [st.integers(1, 50)]))
    share, pattern = data.draw(st.sampled_from(SHARES)), data.draw(st.sampled_from(PATTERNS))
    w = weights(pattern, shape, share, data.draw(st.integers(0, 2**32 - 1)))
    plan = kernels.plan_streamed(
        w,
        data.draw(st.integers(1, 80)),
        (rows, columns),
        arch=data.draw(st.sampled_from(ARCHS)),
        precision=data.draw(st.sampled_from(PRECISIONS)),
        streaming=Streaming(1, data.draw(st.integers(1, rows)), data.draw(st.booleans())),
    )
    check_backward(plan, data.draw(st.integers(0, 2**32 - 1)))


@pytest.mark.parametrize(
    ("arch", "precision"), some([("wse2", "f32"), ("wse3", "f16-f32")], ("wse3", "f16-f32"))
)
def test_backward_passes_take_what_is_predicted(arch: str, precision: str) -> None:
    w = weights("even", (12, 48), 0.8, 3)
    plan = kernels.plan_streamed(
        w, 48, (2, 1), arch=arch, precision=precision, streaming=Streaming(1, 2)
    )
    x, dy = (np.ones((n, 48), plan.precision.given) for n in (48, 12))
    delta = kernels.streamed_delta(plan, dy).cycles
    assert abs(delta - kernels.delta_cycles(plan)) <= 0.1 * delta
    gradient = kernels.streamed_gradient(plan, x, dy).cycles
    assert abs(gradient - kernels.gradient_cycles(plan)) <= 0.1 * gradient


@pytest.mark.parametrize(
    ("size", "arch", "precision"),
    some(
        [((1, 1), "wse3", "f32"), ((3, 1), "wse2", "f32"), ((2, 2), "wse3", "f16-f32")],
        ((3, 1), "wse2", "f32"),
    ),
)
def test_backward_passes_of_few_weights_take_what_their_tasks_do(
    size: tuple[int, int], arch: str, precision: str
) -> None:
    w = np.ones((2 * size[0], 2 * size[0]), np.float32)
    streaming = Streaming(1, size[0])
    plan = kernels.plan_streamed(
        w, size[1], size, arch=arch, precision=precision, streaming=streaming
    )
    x = np.ones((2 * size[0], size[1]), plan.precision.given)
    delta, gradient = kernels.streamed_delta(plan, x), kernels.streamed_gradient(plan, x, x)
    assert delta.cycles == pytest.approx(kernels.delta_cycles(plan), rel=0.02)
    assert gradient.cycles == pytest.approx(kernels.gradient_cycles(plan), rel=0.02)


# Weights of an output without any before it wait for its gradients, and none are sent for that one.
def test_backward_passes_with_outputs_that_have_no_weights_take_what_their_tasks_do() -> None:
    w = np.zeros((6, 8), np.float32)
    w[3, 0] = w[4, :3] = 1
    plan = kernels.plan_streamed(
        scipy.sparse.csr_array(w), 4, (1, 1), arch="wse2", streaming=Streaming(1, 1)
    )
    x, dy = np.ones((8, 4), np.float32), np.ones((6, 4), np.float32)
    delta, gradient = kernels.streamed_delta(plan, dy), kernels.streamed_gradient(plan, x, dy)
    assert delta.cycles == pytest.approx(kernels.delta_cycles(plan), rel=0.01)
    assert gradient.cycles == pytest.approx(kernels.gradient_cycles(plan), rel=0.01)


def test_rows_of_a_backward_pass_wait_less_as_other_tasks_lie_between_their_weights() -> None:
    w = weights("even", (24, 24), 0.75, 3)
    plan = kernels.plan_streamed(w, 8, (6, 1), arch="wse2", streaming=Streaming(1, 1))
    delta = kernels.streamed_delta(plan, np.ones((24, 8), np.float32))
    assert delta.cycles == pytest.approx(kernels.delta_cycles(plan), rel=0.05)


def test_passes_that_a_plan_has_not_are_refused_in_words() -> None:
    w, two = np.ones((4, 4), np.float32), np.ones((4, 2), np.float32)
    folded = kernels.plan_streamed(w, 2, (4, 1), streaming=Streaming(fold=2))
    with pytest.raises(OpenwaferError, match="the plan has folds of 2; backward passes have"):
        kernels.streamed_delta(folded, two)
    high = kernels.plan_streamed(w, 2, (20, 1), streaming=Streaming(1))
    with pytest.raises(OpenwaferError, match=r"gradients of 16 leave by one[^$]*give 2 ports"):
        kernels.streamed_gradient(high, two, two)
    wide = np.ones((1, 16), np.float32)
    large = kernels.plan_streamed(wide, 800, (1, 1), precision="f16-f32", streaming=Streaming(1))
    with pytest.raises(OpenwaferError, match=r"a backward pass takes \d\d,\d\d\d bytes of a PE"):
        kernels.streamed_delta(large, np.ones((1, 800), np.float16))


def test_gradients_of_another_shape_are_refused() -> None:
    plan = kernels.plan_streamed(np.ones((4, 3), np.float32), 2, (1, 1))
    with pytest.raises(OpenwaferError, match=r"DY has the shape \(3, 2\); the plan is for \(4, 2"):
        kernels.streamed_delta(plan, np.ones((3, 2), np.float32))
