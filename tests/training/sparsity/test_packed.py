"""Packed patterns come back as they were, take the bytes that were told, and damage is seen."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from openwafer.diagnostics import OpenwaferError
from openwafer.training.sparsity.packed import (
    BITMASK,
    CSR,
    OFFSETS,
    Form,
    Kind,
    form_named,
    num_bytes,
    pack,
    smallest_form,
    unpack,
)
from openwafer.training.sparsity.pattern import NARROW_COLUMNS, Pattern
from tests.tables import checkerboard
from tests.training.sparsity.random_masks import masks, random_mask

PLAIN = [BITMASK, OFFSETS, CSR]
GROUPED = [form_named(name) for name in ("2:4", "1:4", "4:8", "1:2", "5:16", "15:16")]


def grouped_mask(form: Form, rows: int, groups: int) -> Tensor:
    """Random mask that keeps so many of each group."""
    scores = torch.rand(rows, groups, form.group)
    chosen = scores.topk(form.kept).indices
    return torch.zeros(scores.shape).scatter(2, chosen, 1.0).bool().flatten(1)


@pytest.mark.parametrize("form", PLAIN)
@given(mask=masks())
def test_unpacking_gives_what_was_packed(form: Form, mask: Tensor) -> None:
    pattern = Pattern.from_mask(mask)
    packed = pack(pattern, form)
    assert packed.size == num_bytes(form, pattern.shape, pattern.num_kept)
    assert unpack(packed, form, pattern.shape, pattern.num_kept) == pattern


@pytest.mark.parametrize("form", GROUPED, ids=str)
@given(rows=st.integers(0, 7), groups=st.integers(0, 40))
def test_unpacking_gives_the_groups_that_were_packed(form: Form, rows: int, groups: int) -> None:
    pattern = Pattern.from_mask(grouped_mask(form, rows, groups))
    packed = pack(pattern, form)
    assert packed.size == num_bytes(form, pattern.shape, pattern.num_kept)
    assert unpack(packed, form, pattern.shape, pattern.num_kept) == pattern


@pytest.mark.parametrize(
    ("form", "columns", "sparsity"),
    checkerboard(PLAIN, [NARROW_COLUMNS + one for one in (-1, 0, 1)], [0.0, 0.99]),
)
def test_wide_weights_are_packed_exactly(form: Form, columns: int, sparsity: float) -> None:
    pattern = Pattern.from_mask(random_mask(2, columns, sparsity))
    assert unpack(pack(pattern, form), form, pattern.shape, pattern.num_kept) == pattern


def test_a_bitmask_is_the_mask_bit_after_bit() -> None:
    mask = random_mask(5, 13, 0.6)
    expected = np.packbits(mask.numpy().reshape(-1), bitorder="little")
    assert pack(Pattern.from_mask(mask), BITMASK).tolist() == expected.tolist()


def test_offsets_count_blocks_of_255_columns() -> None:
    mask = torch.zeros(2, 600, dtype=torch.bool)
    mask[0, [3, 254, 255, 599]] = True
    assert pack(Pattern.from_mask(mask), OFFSETS).tolist() == [2, 1, 1, 0, 0, 0, 3, 254, 0, 89]


def test_csr_holds_counts_and_distances() -> None:
    mask = torch.zeros(2, 600, dtype=torch.bool)
    mask[0, [3, 254, 599]] = True
    packed = pack(Pattern.from_mask(mask), CSR)
    assert packed.view("<u2").tolist() == [3, 0, 3, 251, 345]


def test_two_of_four_take_three_bits_a_group() -> None:
    mask = torch.tensor([[1, 1, 0, 0, 0, 1, 0, 1]]).bool()
    # The choices in ascending order are 3, 5, 6, 9, 10, 12: codes 0 and 4.
    assert pack(Pattern.from_mask(mask), form_named("2:4")).tolist() == [4 << 3]


@pytest.mark.parametrize(
    ("sparsity", "form"), [(0.5, BITMASK), (0.85, BITMASK), (0.9, OFFSETS), (0.999, CSR)]
)
def test_the_smallest_form_follows_the_density(sparsity: float, form: Form) -> None:
    shape = (1024, 1024)
    assert smallest_form(shape, int((1 - sparsity) * 1024 * 1024)) == form


@pytest.mark.parametrize("form", [*PLAIN, *GROUPED], ids=str)
def test_a_form_is_found_by_its_text(form: Form) -> None:
    assert form_named(str(form)) == form


@pytest.mark.parametrize("name", ["2:1", "4:4", "0:4", "2:32", "rle", "2:4:8", ""])
def test_forms_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(OpenwaferError, match="form of patterns"):
        form_named(name)
    with pytest.raises(OpenwaferError, match="keeps 2 of 4 columns as csr"):
        Form(Kind.CSR, 2, 4)


def test_patterns_that_are_not_grouped_are_refused() -> None:
    form = form_named("2:4")
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]).bool()
    with pytest.raises(OpenwaferError, match="row 1 of the pattern does not keep 2 of each 4"):
        pack(Pattern.from_mask(mask), form)
    with pytest.raises(OpenwaferError, match="6 columns are no whole number of groups of 4"):
        pack(Pattern.from_mask(torch.ones(2, 6).bool()), form)
