"""A pattern says what its mask says; torch's own nonzero is the oracle."""

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.sparsity.pattern import NARROW_COLUMNS, Pattern
from tests.training.sparsity.random_masks import masks, random_mask


@given(masks())
def test_a_pattern_gives_its_mask_back(mask: Tensor) -> None:
    assert torch.equal(Pattern.from_mask(mask).mask(), mask)


@given(masks())
def test_positions_are_those_that_torch_finds(mask: Tensor) -> None:
    assert torch.equal(Pattern.from_mask(mask).positions(), mask.flatten().nonzero().flatten())


@given(masks())
def test_values_return_to_their_places(mask: Tensor) -> None:
    pattern = Pattern.from_mask(mask)
    weight = torch.randn(mask.shape)
    values = pattern.values_of(weight)
    assert torch.equal(values, weight[mask])
    assert torch.equal(pattern.dense(values), weight * mask)


def test_a_weight_of_four_dims_is_seen_as_a_matrix() -> None:
    mask = torch.rand(6, 3, 2, 2) < 0.5
    pattern = Pattern.from_mask(mask)
    weight = torch.randn(6, 3, 2, 2)
    assert pattern.shape == (6, 12)
    assert torch.equal(pattern.values_of(weight), weight[mask])


def test_wide_weights_number_their_columns_in_32_bits() -> None:
    for columns, dtype in ((NARROW_COLUMNS, np.uint16), (NARROW_COLUMNS + 1, np.uint32)):
        mask = torch.zeros(2, columns, dtype=torch.bool)
        mask[1, -1] = True
        pattern = Pattern.from_mask(mask)
        assert pattern.columns.dtype == np.dtype(dtype)
        assert pattern.columns.tolist() == [columns - 1]


def test_equal_masks_make_equal_patterns() -> None:
    mask = random_mask(8, 30, 0.5)
    other = mask.clone()
    other[3, 4] ^= True
    assert Pattern.from_mask(mask) == Pattern.from_mask(mask.clone())
    assert hash(Pattern.from_mask(mask)) == hash(Pattern.from_mask(mask.clone()))
    assert Pattern.from_mask(mask) != Pattern.from_mask(other)


def test_density_is_the_share_that_is_kept() -> None:
    mask = torch.zeros(4, 10, dtype=torch.bool)
    mask[2, :4] = True
    assert Pattern.from_mask(mask).density == 0.1


def test_a_mask_that_is_no_mask_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"a mask is a bool tensor of 2 or more dims.*float32"):
        Pattern.from_mask(torch.ones(2, 2))
    with pytest.raises(OpenwaferError, match=r"this one torch\.bool of 1"):
        Pattern.from_mask(torch.ones(4, dtype=torch.bool))


@pytest.mark.parametrize(
    ("starts", "columns", "told"),
    [
        ([0, 2, 3], [1, 1, 0], "row 0 is not an ascending list of columns below 5"),
        ([0, 2, 3], [1, 3, 5], "row 1 is not an ascending list of columns below 5"),
        ([0, 3, 2], [1, 2], "row 0 is not an ascending"),
        ([0, 1, 2], [1, 2, 3], "rows from 0 to 2 for 3 columns"),
        ([0, 3], [1, 2, 3], r"\(2,\) starts of 2 rows"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    starts: list[int], columns: list[int], told: str
) -> None:
    with pytest.raises(OpenwaferError, match=told):
        Pattern((2, 5), np.array(starts, np.int64), np.array(columns, np.uint16))


def test_values_and_weights_of_another_shape_are_refused() -> None:
    pattern = Pattern.from_mask(random_mask(4, 6, 0.5))
    with pytest.raises(OpenwaferError, match=r"a weight of \(6, 4\) for a pattern of \(4, 6\)"):
        pattern.values_of(torch.zeros(6, 4))
    with pytest.raises(OpenwaferError, match=r"values of \(3,\) for \d+ kept positions"):
        pattern.dense(torch.zeros(3))


def test_arrays_of_a_pattern_cannot_be_written() -> None:
    pattern = Pattern.from_mask(random_mask(4, 6, 0.5))
    with pytest.raises(ValueError, match="read-only"):
        pattern.columns[0] = 3
