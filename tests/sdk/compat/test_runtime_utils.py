"""Port maps of the first releases: tensors to and from the words of a region."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.compat.cs_elf_runner import CSELFRunner
from openwafer.sdk.compat.runtime_utils import (
    convert_input_tensor,
    format_output_tensor,
    prepare_output_tensor,
)

BLOCKS = "{ B[i=0:7][j=0:2] -> [PE[i // 4, 1] ->  index[i % 4, j]] }"


def test_rows_of_a_matrix_go_to_columns_of_pes() -> None:
    matrix = np.arange(24, dtype=np.float32).reshape(8, 3)
    x, y, w, h, length, words = convert_input_tensor(BLOCKS, matrix)
    assert (x, y, w, h, length) == (0, 1, 2, 1, 12)
    assert words.view(np.float32).tolist() == matrix.ravel().tolist()


def test_elements_of_16_bits_stand_in_the_low_halves() -> None:
    portmap = "{ a[i=0:1][j=0:2] -> [PE[i, 0] -> index[j]] }"
    *_, words = convert_input_tensor(portmap, np.array([[1, -1, 2], [3, 4, 5]], np.int16))
    assert words.tolist() == [1, 0xFFFF, 2, 3, 4, 5]


def test_a_region_may_begin_anywhere() -> None:
    portmap = "{ C[n = 0:7] -> [PE[3 - 1, 2 + n // 4] -> index[n % 4]] }"
    assert prepare_output_tensor(portmap, np.float32)[:5] == (2, 2, 1, 2, 4)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3))
def test_what_was_converted_comes_back_as_it_was(w: int, h: int, rows: int, cols: int) -> None:
    portmap = (
        f"{{ A[i=0:{h * rows - 1}, j=0:{w * cols - 1}] -> "
        f"[PE[j // {cols}, i // {rows}] -> index[i % {rows}, j % {cols}]] }}"
    )
    matrix = np.random.default_rng(0).standard_normal((h * rows, w * cols)).astype(np.float32)
    *_, words = convert_input_tensor(portmap, matrix)
    np.testing.assert_array_equal(format_output_tensor(portmap, np.float32, words), matrix)


@pytest.mark.parametrize(
    ("portmap", "message"),
    [
        ("B[i=0:7]", "it is not of the form"),
        ("{ B[i=0:7] -> [PE[i] -> index[i]] }", "a PE has a column and a row"),
        ("{ B[i=7:0] -> [PE[i, 0] -> index[i]] }", "the range i=7:0 is empty"),
        ("{ B[i] -> [PE[i, 0] -> index[i]] }", "'i' is not of the form i=0:n"),
        ("{ B[i=0:7] -> [PE[k, 0] -> index[i]] }", "'k' is no sum, product"),
        ("{ B[i=0:7] -> [PE[i // 0, 0] -> index[i]] }", "'i // 0' is no sum, product"),
    ],
)
def test_text_that_is_no_port_map_is_explained(portmap: str, message: str) -> None:
    with pytest.raises(OpenwaferError, match=message):
        prepare_output_tensor(portmap, np.float32)


def test_a_tensor_of_another_size_is_refused() -> None:
    with pytest.raises(OpenwaferError, match=r"has 24 elements, \(8, 3\), the tensor 8, \(8,\)"):
        convert_input_tensor(BLOCKS, np.zeros(8, np.float32))


def test_the_runner_of_the_first_releases_says_what_takes_its_place() -> None:
    with pytest.raises(OpenwaferError, match="use SdkRuntime with <memcpy/memcpy>"):
        CSELFRunner(["out/bin/out_0_0.elf"])
