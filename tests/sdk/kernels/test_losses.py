"""Cross-entropy of logits at rest, against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.kernels.losses import CrossEntropyPlan, cross_entropy, plan_cross_entropy


def operands(plan: CrossEntropyPlan, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Logits of many sizes, and labels of which a quarter is ignored."""
    rng = np.random.default_rng(seed)
    classes, tokens = plan.at_rest.num_features, plan.at_rest.num_tokens
    logits = rng.normal(size=(classes, tokens)) * 2.0 ** rng.integers(-3, 8, tokens)
    labels = rng.integers(0, classes, tokens)
    return logits.astype(np.float32), np.where(rng.random(tokens) < 0.25, -100, labels)


def check_losses(plan: CrossEntropyPlan, seed: int) -> None:
    """The pass, looking for mistakes, and numpy's, token by token."""
    logits, labels = operands(plan, seed)
    found, bounds = plan.run(logits, labels, check=True), plan.error_bounds(logits, labels)
    count = max(1, np.count_nonzero(labels >= 0))
    for token, label in enumerate(labels):
        of_token = logits[:, token].astype(float) - logits[:, token].max()
        powers = np.exp(of_token)
        loss = np.log(powers.sum()) - of_token[label] if label >= 0 else 0
        gradient = (powers / powers.sum() - (np.arange(len(powers)) == label)) / count
        assert abs(found.losses[token] - loss) <= bounds.losses[token]
        off = np.abs(found.gradients[:, token] - (gradient if label >= 0 else 0))
        assert (off <= bounds.gradients[:, token]).all()


PLANS = (plan_cross_entropy((7, 9), (3, 1), arch="wse2"),)


@settings(max_examples=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_losses_and_gradients_are_numpys_up_to_their_bounds(
    plan: CrossEntropyPlan, seed: int
) -> None:
    check_losses(plan, seed)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_losses_on_any_rectangle_are_within_their_bounds(data: st.DataObject) -> None:
    rows, columns = data.draw(st.tuples(*2 * [st.integers(1, 5)]))
    plan = plan_cross_entropy(
        (data.draw(st.integers(rows, 70)), data.draw(st.integers(1, 40))),
        (rows, columns),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
    )
    check_losses(plan, data.draw(st.integers(0, 2**32 - 1)))


def check_cycles(plan: CrossEntropyPlan, share: float) -> None:
    """A pass over tokens whose labels belong to rows of PEs in turns takes what the plan says."""
    logits, _ = operands(plan, 1)
    labels = np.arange(logits.shape[1]) % len(logits)
    assert plan.run(logits, labels).cycles == pytest.approx(plan.cycles, rel=share)


def test_losses_take_what_their_instructions_and_operations_take() -> None:
    check_cycles(PLANS[0], 0.003)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(
    ("shape", "size"),
    [((1, 1), (1, 1)), ((3, 5), (3, 5)), ((9, 4), (9, 1)), ((12, 16), (4, 2)), ((4, 48), (1, 3))],
)
def test_losses_take_what_their_plan_says(
    shape: tuple[int, int], size: tuple[int, int], arch: str
) -> None:
    check_cycles(plan_cross_entropy(shape, size, arch=arch), 0.03)


def test_labels_that_do_not_fit_are_refused_in_words() -> None:
    logits = np.ones((4, 2), np.float32)
    with pytest.raises(OpenwaferError, match="label 4 of token 1; there are 4 classes"):
        cross_entropy(logits, np.array([0, 4]), (1, 1))
    with pytest.raises(OpenwaferError, match=r"labels are float64 of the shape \(2,\)"):
        cross_entropy(logits, np.zeros(2), (1, 1))
    with pytest.raises(OpenwaferError, match="4000 features of 4 tokens takes"):
        plan_cross_entropy((4000, 4), (1, 1))
