"""The vendor's conversions of tensors, by their documented meaning."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.compat.sdk_utils import calculate_cycles, input_array_to_u32, memcpy_view


def test_a_16_bit_view_writes_the_low_halves() -> None:
    container = np.zeros(3, np.uint32)
    memcpy_view(container, np.float16).fill(1.0)
    assert container.tolist() == [0x3C00] * 3


def test_an_8_bit_view_shows_the_low_bytes() -> None:
    words = np.array([0x11223344, 0x55667788], np.uint32)
    assert memcpy_view(words, np.uint8).tolist() == [0x44, 0x88]


def test_a_32_bit_view_reinterprets_the_bits() -> None:
    assert memcpy_view(np.array([0x3F800000], np.uint32), np.float32).tolist() == [1.0]


def test_a_view_of_an_array_of_16_bits_is_refused() -> None:
    with pytest.raises(OpenwaferError, match="got float16 of uint16"):
        memcpy_view(np.zeros(2, np.uint16), np.float16)


def test_without_a_sentinel_the_high_halves_are_zero() -> None:
    words = input_array_to_u32(np.array([-1, 2], np.int16), None, 2)
    assert words.tolist() == [0xFFFF, 2]


def test_with_a_sentinel_the_high_halves_count_the_fastest_dim() -> None:
    words = input_array_to_u32(np.arange(6, dtype=np.uint16).reshape(2, 3), 0, 3)
    assert (words >> 16).tolist() == [0, 1, 2, 0, 1, 2]


def test_32_bit_elements_keep_their_bits() -> None:
    assert input_array_to_u32(np.array([1.0], np.float32), None, 1).tolist() == [0x3F800000]


@given(st.integers(0, 2**47), st.integers(0, 2**47))
def test_cycles_are_the_difference_of_two_48_bit_counters(start: int, end: int) -> None:
    words = [(value >> shift) & 0xFFFF for value in (start, end) for shift in (0, 16, 32)]
    stamps = np.array(words, np.uint16).view(np.float32)
    assert calculate_cycles(stamps) == end - start


def test_a_buffer_of_another_size_holds_no_pair_of_stamps() -> None:
    with pytest.raises(OpenwaferError, match="3 elements of 4 bytes, got 4"):
        calculate_cycles(np.zeros(4, np.float32))
