"""The largest of a list of scores, beside Python's own sort."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openwafer.training.sparsity.masks.structures import NOT_ELIGIBLE, largest

BITS = {32: torch.float32, 64: torch.float64}


def check(scores: torch.Tensor, share: float) -> None:
    flat = scores.tolist()
    eligible = [index for index, score in enumerate(flat) if score >= 0]
    num = int(share * len(eligible))
    taken = sorted(eligible, key=lambda index: (-flat[index], index))[:num]
    found = largest(scores.reshape(1, -1), num)[0]
    assert found.nonzero().flatten().tolist() == sorted(taken)


def scores_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Lists of few different scores, some of which are not eligible."""
    return st.lists(values, min_size=1, max_size=3).flatmap(
        lambda few: (
            st.lists(st.sampled_from([NOT_ELIGIBLE, 0, *few]), min_size=1, max_size=40)
            | st.lists(values, min_size=1, max_size=40)
        )
    )


@pytest.mark.parametrize("width", [32, 64])
@given(st.data(), st.floats(0, 1))
def test_numbers_of_any_size_are_ranked(width: Any, data: st.DataObject, share: float) -> None:
    floats = st.floats(0, allow_nan=False, allow_infinity=False, width=width)
    drawn = data.draw(scores_of(floats.map(abs)))
    check(torch.tensor(drawn, dtype=BITS[width]), share)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@given(st.data(), st.floats(0, 1))
def test_whole_numbers_of_any_size_are_ranked(
    dtype: torch.dtype, data: st.DataObject, share: float
) -> None:
    drawn = data.draw(scores_of(st.integers(0, torch.iinfo(dtype).max)))
    check(torch.tensor(drawn, dtype=dtype), share)


def test_many_scores_are_ranked_as_a_stable_sort_ranks_them() -> None:
    scores = torch.randn(200_000, generator=torch.Generator().manual_seed(1)).abs().half().float()
    order = scores.argsort(descending=True, stable=True)
    found = largest(scores.reshape(1, -1), 70_000)[0]
    assert torch.equal(found.nonzero().flatten(), order[:70_000].sort().values)


def test_groups_may_keep_different_numbers() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, -1.0, 5.0]])
    found = largest(scores, torch.tensor([1, 2, 0]))
    assert found.int().tolist() == [[0, 1, 0], [1, 1, 0], [0, 0, 0]]
