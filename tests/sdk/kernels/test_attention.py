"""Causal attention of activations at rest, against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.kernels.causal_attention import AttentionPlan, attention, plan_attention
from tests.sdk.kernels.layer_cycles import check_passes


def operands(plan: AttentionPlan, seed: int) -> list[NDArray[np.float32]]:
    """Queries, keys, values and gradients, with scores of many sizes."""
    rng = np.random.default_rng(seed)
    shape = plan.at_rest.num_features, plan.at_rest.num_tokens
    return [
        (rng.normal(size=shape) * 2.0 ** rng.integers(-2, 3)).astype(np.float32) for _ in range(4)
    ]


def exact(plan: AttentionPlan, given: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The result and the three gradients in float64, query by query."""
    q, k, v, dy = (one.astype(float).reshape(plan.heads, plan.head_size, -1) for one in given)
    found, scale = [np.zeros_like(q) for _ in range(4)], plan.head_size**-0.5
    for head in range(plan.heads):
        for token in range(q.shape[2]):
            seen = slice(token - token % plan.length, token + 1)
            key, value, slope = k[head, :, seen], v[head, :, seen], dy[head, :, token]
            scores = q[head, :, token] @ key * scale
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            toward = slope @ value
            of_scores = weights * (toward - toward @ weights) * scale
            found[0][head, :, token] = value @ weights
            found[1][head, :, token] = key @ of_scores
            found[2][head, :, seen] += np.outer(q[head, :, token], of_scores)
            found[3][head, :, seen] += np.outer(slope, weights)
    return [one.reshape(given[0].shape) for one in found]


def check_attention(plan: AttentionPlan, seed: int) -> None:
    """Both passes, looking for mistakes, and numpy's."""
    *given, dy = operands(plan, seed)
    out, *gradients = exact(plan, [*given, dy])
    result = plan.forward(*given, check=True)
    assert (np.abs(result.values - out) <= plan.error_bound(*given)).all()
    whole = given[0], given[1], given[2]
    found, bounds = plan.backward(dy, whole, result, check=True), plan.gradient_bounds(dy, whole)
    for name, want in zip(("queries", "keys", "values"), gradients, strict=True):
        assert (np.abs(getattr(found, name) - want) <= getattr(bounds, name)).all()


# By heads, where a PE has 4 features of each: all that it has room for, and no more than 30.
MOST_TOKENS = (30, 28, 24, 20)
PLANS = (plan_attention((8, 13), 2, (2, 2), length=9, arch="wse2"),)


@settings(max_examples=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_attention_and_its_gradients_are_numpys_up_to_their_bounds(
    plan: AttentionPlan, seed: int
) -> None:
    check_attention(plan, seed)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.data())
def test_attention_on_any_rectangle_is_within_its_bounds(data: st.DataObject) -> None:
    rows, columns, heads = data.draw(st.tuples(*3 * [st.integers(1, 4)]))
    tokens = data.draw(st.integers(1, 30 if columns > 1 else MOST_TOKENS[heads - 1]))
    plan = plan_attention(
        (rows * heads * data.draw(st.integers(1, 4)), tokens),
        heads,
        (rows, columns),
        length=data.draw(st.integers(1, tokens)),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
    )
    check_attention(plan, data.draw(st.integers(0, 2**32 - 1)))


def check_cycles(plan: AttentionPlan, share: float) -> None:
    """Both passes take what the plan says."""
    *given, dy = operands(plan, 1)
    result = plan.forward(*given)
    backward = plan.backward(dy, (given[0], given[1], given[2]), result)
    check_passes(plan, (result.cycles, backward.cycles), share=share)


def test_attention_takes_what_its_instructions_and_operations_take() -> None:
    check_cycles(PLANS[0], 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(
    ("heads", "shape", "size"),
    [
        (1, (1, 1), (1, 1)),
        (2, (8, 16), (1, 1)),
        (1, (4, 2), (4, 2)),
        (1, (3, 5), (3, 5)),
        (4, (16, 16), (4, 4)),
        (1, (1, 36), (1, 9)),
    ],
)
def test_attention_takes_what_its_plan_says(
    heads: int, shape: tuple[int, int], size: tuple[int, int], arch: str
) -> None:
    check_cycles(plan_attention(shape, heads, size, arch=arch), 0.05)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"heads": 3}, "8 features in 3 heads on 2 rows of PEs"),
        ({"size": (4, 1)}, "choose rows that divide the features of a head"),
        ({"heads": 4, "size": (4, 1)}, "8 features in 4 heads on 4 rows"),
        ({"length": 0}, "sequences of 0 tokens"),
        ({"shape": (8, 200)}, "4 features of 200 tokens takes"),
    ],
)
def test_attention_that_cannot_be_planned_is_refused_in_words(
    given: dict[str, Any], words: str
) -> None:
    usual: dict[str, Any] = {"shape": (8, 4), "heads": 4, "size": (2, 1)}
    with pytest.raises(OpenwaferError) as caught:
        plan_attention(**usual | given)
    assert words in str(caught.value)


def test_operands_that_do_not_fit_attention_are_refused() -> None:
    ones = np.ones((4, 2), np.float32)
    with pytest.raises(OpenwaferError, match=r"keys has the shape \(4, 3\)"):
        attention(ones, np.ones((4, 3), np.float32), ones, 2, (1, 1))
    with pytest.raises(OpenwaferError, match=r"scores may be above 1e\+24"):
        attention(ones * np.float32(1e20), ones * np.float32(1e20), ones, 2, (1, 1))
