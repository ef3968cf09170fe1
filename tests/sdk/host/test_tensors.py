"""Host tensors: orders and element sizes against numpy's own layouts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host import tensors
from openwafer.sdk.host.tensors import DataType, Order

sizes = st.integers(1, 5)


@given(sizes, sizes, sizes, st.sampled_from(Order))
def test_the_flat_array_of_a_region_gives_the_region_back(
    height: int, width: int, length: int, order: Order
) -> None:
    flat = np.arange(height * width * length, dtype=np.uint32)
    region = tensors.to_region(flat, (height, width, length), order)
    np.testing.assert_array_equal(tensors.from_region(region, order), flat)


def test_column_major_is_the_ravel_of_the_transposed_tensor() -> None:
    tensor = np.arange(24, dtype=np.uint32).reshape(2, 3, 4)
    region = tensors.to_region(tensor.T.ravel(), (2, 3, 4), Order.COL_MAJOR)
    np.testing.assert_array_equal(region, tensor)


def test_row_major_is_the_plain_reshape() -> None:
    flat = np.arange(24, dtype=np.uint32)
    region = tensors.to_region(flat, (2, 3, 4), Order.ROW_MAJOR)
    np.testing.assert_array_equal(region, flat.reshape(2, 3, 4))


@pytest.mark.parametrize("data_type", list(DataType))
def test_elements_survive_the_memory_of_a_pe(data_type: DataType) -> None:
    elements = np.array([0, 1, 0xFFFF, 0x8000], np.uint32)
    words = tensors.to_memory(elements, data_type)
    assert words.size == elements.size * data_type.num_words
    np.testing.assert_array_equal(tensors.from_memory(words, data_type), elements)


def test_a_32_bit_element_has_its_low_half_first() -> None:
    words = tensors.to_memory(np.array([0x12345678], np.uint32), DataType.BITS_32)
    assert words.tolist() == [0x5678, 0x1234]


def test_elements_of_two_bytes_are_refused_with_the_remedy() -> None:
    with pytest.raises(OpenwaferError, match=r"src has elements of 2 bytes(.|\n)*to_u32"):
        tensors.words_of(np.zeros(4, np.float16), 4, "src")


def test_too_few_elements_are_refused_with_both_numbers() -> None:
    with pytest.raises(OpenwaferError, match="src has 3 elements; the region takes 4"):
        tensors.words_of(np.zeros(3, np.float32), 4, "src")


def test_of_a_longer_array_the_first_elements_are_taken() -> None:
    words = tensors.words_of(np.arange(6, dtype=np.uint32).reshape(2, 3), 4, "src")
    assert words.tolist() == [0, 1, 2, 3]


def test_of_a_longer_destination_the_first_elements_are_written() -> None:
    dest = np.zeros((3, 2), np.int32).T
    tensors.fill(dest, np.array([1, 2, 3, 4], np.uint32))
    assert dest.tolist() == [[1, 2, 3], [4, 0, 0]]


def test_a_destination_of_any_shape_and_layout_is_filled() -> None:
    dest = np.zeros((3, 2), np.float32).T
    tensors.fill(dest, np.arange(6, dtype=np.float32).view(np.uint32))
    np.testing.assert_array_equal(dest, np.arange(6, dtype=np.float32).reshape(2, 3))
