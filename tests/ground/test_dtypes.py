"""Number formats against their published sizes."""

import numpy as np
import pytest

from openwafer.dtypes import BF16, CB16, DTYPES, DType, Kind

NUMPY_NAMES = {"f16": "float16", "f32": "float32", "f64": "float64", "bool": "bool"}


@pytest.mark.parametrize("name", DTYPES)
def test_the_name_tells_the_size(name: str) -> None:
    digits = "".join(filter(str.isdigit, name)) or "8"
    assert DTYPES[name].num_bits == int(digits) == DTYPES[name].num_bytes * 8


@pytest.mark.parametrize("name", ["f16", "f32", "f64"])
def test_fields_of_ieee_floats_are_numpys(name: str) -> None:
    info = np.finfo(NUMPY_NAMES[name])
    assert (DTYPES[name].exponent_bits, DTYPES[name].mantissa_bits) == (info.iexp, info.nmant)


def test_cb16_lies_between_f16_and_bf16() -> None:
    half = DTYPES["f16"]
    assert half.exponent_bits < CB16.exponent_bits < BF16.exponent_bits
    assert half.mantissa_bits > CB16.mantissa_bits > BF16.mantissa_bits


def test_float_fields_must_fill_the_bits() -> None:
    with pytest.raises(ValueError, match="f8 has 8 bits, its fields take 9"):
        DType("f8", Kind.FLOAT, 8, exponent_bits=4, mantissa_bits=4)


def test_a_dtype_prints_as_its_name() -> None:
    assert [str(dtype) for dtype in DTYPES.values()] == list(DTYPES)
