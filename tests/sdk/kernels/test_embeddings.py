"""Embeddings of tokens at rest, against numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.kernels.embeddings import EmbeddingPlan, embedding, plan_embedding


def check_embedding(plan: EmbeddingPlan, seed: int) -> None:
    """Both passes, looking for mistakes, and numpy's; their cycles, and the plan's."""
    rng, at_rest = np.random.default_rng(seed), plan.at_rest
    table = rng.normal(size=(plan.num_entries, at_rest.num_features)).astype(np.float32)
    dx = rng.normal(size=(at_rest.num_features, at_rest.num_tokens)).astype(np.float32)
    labels = rng.integers(0, plan.num_entries, at_rest.num_tokens)
    taken = plan.forward(table, labels, check=True)
    assert np.array_equal(taken.values, table[labels].T)
    exact = (labels == np.arange(plan.num_entries)[:, None]).astype(float) @ dx.T.astype(float)
    back = plan.backward(dx, labels, check=True)
    assert (np.abs(back.values - exact) <= plan.error_bound(dx, labels)).all()
    assert abs(taken.cycles - plan.cycles) <= 0.1 * taken.cycles
    assert abs(back.cycles - plan.backward_cycles) <= 0.1 * back.cycles


PLANS = (plan_embedding(40, (39, 60), (2, 2), arch="wse2"),)
"""Of more gradients on a row than its queues have room for, and strides that take longer."""


@settings(max_examples=2)
@given(st.sampled_from(PLANS), st.integers(0, 2**32 - 1))
def test_an_embedding_is_numpys_and_its_gradient_up_to_the_bound(
    plan: EmbeddingPlan, seed: int
) -> None:
    check_embedding(plan, seed)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.data())
def test_embeddings_on_any_rectangle_are_within_their_bounds(data: st.DataObject) -> None:
    rows, columns = data.draw(st.tuples(*2 * [st.integers(1, 5)]))
    plan = plan_embedding(
        data.draw(st.integers(1, 60)),
        (data.draw(st.integers(rows, 40)), data.draw(st.integers(1, 60))),
        (rows, columns),
        arch=data.draw(st.sampled_from(("wse2", "wse3"))),
    )
    check_embedding(plan, data.draw(st.integers(0, 2**32 - 1)))


@pytest.mark.parametrize(
    ("arch", "num_tokens", "size"), [("wse2", 1, (1, 1)), ("wse3", 48, (1, 12))]
)
def test_padded_tokens_far_columns_and_tokens_without_a_loop_are_counted(
    arch: str, num_tokens: int, size: tuple[int, int]
) -> None:
    check_embedding(plan_embedding(20, (1, num_tokens), size, arch=arch), 1)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 8, 12, 16])
@pytest.mark.parametrize("size", [(1, 20), (3, 3)])
def test_few_tokens_take_what_their_plan_says(
    size: tuple[int, int], tokens: int, arch: str
) -> None:
    check_embedding(plan_embedding(20, (6, tokens * size[1]), size, arch=arch), 1)


def test_what_cannot_be_embedded_is_refused_in_words() -> None:
    table = np.ones((4, 2), np.float32)
    with pytest.raises(OpenwaferError, match="label 4 of token 1; the table has 4 entries"):
        embedding(table, np.array([0, 4]), (1, 1))
    with pytest.raises(OpenwaferError, match="0 entries"):
        plan_embedding(0, (2, 2), (1, 1))
    with pytest.raises(OpenwaferError, match=r"200 tokens of a PE[^$]*take 2 columns of PEs"):
        plan_embedding(4, (2, 200), (1, 1))
    with pytest.raises(OpenwaferError, match="100 features of 120 tokens takes"):
        plan_embedding(400, (100, 120), (1, 1))
