"""Arguments of launches: bits of each type, and what is refused."""

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host.arguments import raw_arguments
from openwafer.sdk.program.program import HostName


def function(*kinds: str) -> HostName:
    inputs = tuple((f"p{number}", kind) for number, kind in enumerate(kinds))
    return HostName(1, "f", "void", inputs=inputs)


@pytest.mark.parametrize(
    ("kind", "value", "bits"),
    [
        ("f32", 1.0, 0x3F800000),
        ("f32", np.float32(-2), 0xC0000000),
        ("f16", 1.0, 0x3C00),
        ("u16", 65535, 65535),
        ("i16", -1, 0xFFFFFFFFFFFFFFFF),
        ("i16", np.int16(7), 7),
        ("u32", np.array([9]), 9),
        ("bool", True, 1),
    ],
)
def test_a_number_becomes_the_bits_of_its_parameter(kind: str, value: object, bits: int) -> None:
    assert raw_arguments(function(kind), [value]) == (bits,)


def test_another_number_of_arguments_is_refused_with_the_signature() -> None:
    with pytest.raises(OpenwaferError, match=r"expects 2 arguments, 1 provided(.|\n)*p0: u16"):
        raw_arguments(function("u16", "f32"), [1])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("u16", 65536), ("u16", -1), ("i16", 1.5), ("i32", 2**1500)),
        *(("i16", float("nan")), ("u32", np.float32("inf"))),
    ],
)
def test_a_value_that_its_type_cannot_hold_is_refused(kind: str, value: object) -> None:
    with pytest.raises(OpenwaferError, match=rf"p0 is {kind}, from .* got {value}"):
        raw_arguments(function(kind), [value])


@pytest.mark.parametrize(("kind", "value"), [("f16", 1e6), ("f32", -1e300), ("f32", 2**2000)])
def test_a_float_beyond_its_type_is_refused(kind: str, value: object) -> None:
    with pytest.raises(OpenwaferError, match=f"p0 is {kind}, which does not reach as far"):
        raw_arguments(function(kind), [value])


def test_infinity_itself_is_a_float() -> None:
    assert raw_arguments(function("f32"), [float("-inf")]) == (0xFF800000,)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(OpenwaferError, match="p0 is f32, got str"):
        raw_arguments(function("f32"), ["1.0"])
