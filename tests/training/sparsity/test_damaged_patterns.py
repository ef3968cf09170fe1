"""Bytes that no pattern gives are refused, and none that is damaged reads or writes elsewhere."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.training.sparsity.packed import BITMASK, CSR, OFFSETS, Form, form_named, pack, unpack
from openwafer.training.sparsity.pattern import Pattern
from tests.examples import examples
from tests.training.sparsity.random_masks import random_mask

FORMS = [BITMASK, OFFSETS, CSR, form_named("2:4")]
PATTERN = Pattern.from_mask(torch.tensor([[1, 1, 0, 0] * 75, [0, 1, 0, 1] * 75] * 2).bool())


@pytest.mark.parametrize("form", FORMS, ids=str)
@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=4))
@examples(25, by_default=8)
def test_damage_is_refused_or_gives_a_whole_pattern(
    form: Form, damage: list[tuple[int, int]]
) -> None:
    packed = pack(PATTERN, form)
    for place, bits in damage:
        packed[place % packed.size] ^= bits
    with suppress(OpenwaferError):
        pattern = unpack(packed, form, PATTERN.shape, PATTERN.num_kept)
        assert np.array_equal(pack(pattern, form), packed)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_bytes_of_another_length_are_refused(form: Form) -> None:
    packed = pack(PATTERN, form)
    told = rf"uint8 \[{packed.size - 1}\] where uint8 \[{packed.size}\] was expected"
    with pytest.raises(OpenwaferError, match=told):
        unpack(packed[:-1], form, PATTERN.shape, PATTERN.num_kept)


def test_a_bitmask_with_another_count_is_refused() -> None:
    with pytest.raises(OpenwaferError, match="2 bits are set for 3 kept positions"):
        unpack(np.array([5], np.uint8), BITMASK, (2, 3), 3)


def test_bits_behind_the_last_position_are_refused() -> None:
    with pytest.raises(OpenwaferError, match="bits are set behind the last position"):
        unpack(np.array([0x41], np.uint8), BITMASK, (2, 3), 2)


def test_counts_that_claim_more_than_there_is_are_refused() -> None:
    for form, packed in ((OFFSETS, [3, 0, 1, 2]), (CSR, [3, 0, 0, 0, 1, 0, 1, 0])):
        with pytest.raises(OpenwaferError, match="row 0 has columns that cannot be, or too many"):
            unpack(np.array(packed, np.uint8), form, (2, 9), 2)


def test_columns_that_do_not_ascend_are_refused() -> None:
    for form, packed in ((OFFSETS, [2, 0, 4, 4]), (CSR, [2, 0, 0, 0, 4, 0, 0, 0])):
        with pytest.raises(OpenwaferError, match="row 0 is not an ascending list"):
            unpack(np.array(packed, np.uint8), form, (2, 9), 2)


def test_columns_beyond_the_row_are_refused() -> None:
    for form, packed in ((OFFSETS, [0, 1, 9]), (CSR, [0, 0, 1, 0, 9, 0])):
        with pytest.raises(OpenwaferError, match="row 1 has columns that cannot be"):
            unpack(np.array(packed, np.uint8), form, (2, 9), 1)


def test_codes_of_no_choice_are_refused() -> None:
    with pytest.raises(OpenwaferError, match="row 0 has columns that cannot be"):
        unpack(np.array([7], np.uint8), form_named("2:4"), (1, 4), 2)


def test_bits_behind_the_last_code_are_refused() -> None:
    with pytest.raises(OpenwaferError, match="bits are set behind the last code"):
        unpack(np.array([8], np.uint8), form_named("2:4"), (1, 4), 2)


def test_a_count_that_is_not_that_of_the_groups_is_refused() -> None:
    with pytest.raises(OpenwaferError, match="3 kept positions where it keeps 2"):
        unpack(np.array([0], np.uint8), form_named("2:4"), (1, 4), 3)


def test_bytes_that_lie_anywhere_in_memory_are_unpacked() -> None:
    pattern = Pattern.from_mask(random_mask(7, 90, 0.7))
    packed = pack(pattern, CSR)
    shifted = np.zeros(packed.size + 1, np.uint8)[1:]
    shifted[:] = packed
    assert unpack(shifted, CSR, pattern.shape, pattern.num_kept) == pattern
