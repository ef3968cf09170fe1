"""Arithmetic on bits agrees with numpy, and rounds once."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.sdk.ir.arithmetic import binary, fused_multiply_add, shift
from openwafer.sdk.ir.elements import element
from openwafer.sdk.ir.function import Type
from openwafer.sdk.ir.numbers import FLOATS, WIDTHS, convert, decode, encode

U16 = st.integers(0, 0xFFFF)
U32 = st.integers(0, 0xFFFFFFFF)


@given(U16, U16, st.sampled_from(["add", "sub", "mul", "div"]))
def test_half_precision_operations_are_numpys(a: int, b: int, op: str) -> None:
    x, y = np.array([a, b], np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        want = {"add": x + y, "sub": x - y, "mul": x * y, "div": np.divide(x, y)}[op]
    got = np.uint16(binary(op, a, b, Type.F16)).view(np.float16)
    assert np.array_equal(got, want, equal_nan=True)


@given(U32, U32, st.sampled_from(["add", "sub", "mul", "div"]))
def test_single_precision_operations_are_numpys(a: int, b: int, op: str) -> None:
    x, y = np.array([a, b], np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        want = {"add": x + y, "sub": x - y, "mul": x * y, "div": np.divide(x, y)}[op]
    got = np.uint32(binary(op, a, b, Type.F32)).view(np.float32)
    assert np.array_equal(got, want, equal_nan=True)


@pytest.mark.parametrize("kind", sorted(FLOATS))
@given(data=st.data())
def test_encoding_undoes_decoding(kind: Type, data: st.DataObject) -> None:
    bits = data.draw(st.integers(0, (1 << WIDTHS[kind]) - 1))
    value = decode(bits, kind)
    if value == value:
        assert encode(value, kind) == bits


def test_a_tie_rounds_to_even() -> None:
    assert encode(Fraction(2049), Type.F16) == encode(2048.0, Type.F16)
    assert encode(Fraction(2051), Type.F16) == encode(2052.0, Type.F16)


def test_a_fused_product_is_rounded_once() -> None:
    x = encode(1 + 2.0**-12, Type.F32)
    got = decode(fused_multiply_add(encode(-1.0, Type.F32), x, x, Type.F32, Type.F32), Type.F32)
    assert got == 2.0**-11 + 2.0**-24


@given(st.integers(-(2**15), 2**15 - 1), st.integers(-(2**15), 2**15 - 1))
def test_division_truncates_and_the_remainder_keeps_its_sign(a: int, b: int) -> None:
    left, right = encode(a, Type.I16), encode(b, Type.I16)
    quotient = decode(binary("div", left, right, Type.I16), Type.I16)
    rest = decode(binary("rem", left, right, Type.I16), Type.I16)
    want = (-1, a) if b == 0 else (int(a / b), a - b * int(a / b))
    assert (encode(quotient, Type.I16), rest) == (encode(want[0], Type.I16), want[1])


@given(U16, st.integers(0, 40))
def test_shifts_past_the_width_leave_nothing(bits: int, count: int) -> None:
    assert shift("shl", bits, count, Type.U16) == (bits << count) & 0xFFFF
    assert shift("shr", bits, count, Type.U16) == bits >> count


@pytest.mark.parametrize(
    ("value", "want"), [(10.8, 10), (-10.8, -10), (1e9, 32767), (-1e9, -32768), (float("nan"), 0)]
)
def test_floats_truncate_and_saturate_to_integers(value: float, want: int) -> None:
    assert decode(convert(encode(value, Type.F32), Type.F32, Type.I16), Type.I16) == want


@given(U16, U16)
def test_the_maximum_prefers_a_number_to_nan(a: int, b: int) -> None:
    x, y = np.array([a, b], np.uint16).view(np.float16)
    got = np.uint16(element(27, a, b)).view(np.float16)
    assert np.array_equal(got, np.fmax(x, y), equal_nan=True)


def test_the_wafers_own_format_has_its_own_bias() -> None:
    assert encode(6.0, Type.CB16) == 0b0101100100000000
    assert decode(0b0101100100000000, Type.CB16) == 6.0
