"""Trace buffers of the debug library, record by record."""

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.compat.debug_util import parse_trace


def words(*values: int) -> np.ndarray:
    return np.array(values, np.uint16)


@pytest.mark.parametrize(
    ("record", "value"),
    [
        (words(ord("B") | 200 << 8), 200),
        (words(ord("b") | 0xFF << 8), -1),
        (words(ord("?") | 1 << 8), True),
        (words(ord("h"), 0xFFFE), -2),
        (words(ord("H"), 0xFFFE), 0xFFFE),
        (words(ord("I"), 0x5678, 0x1234), 0x12345678),
        (words(ord("f"), 0, 0x3F80), 1.0),
        (words(ord("e"), 0x3C00), 1.0),
        (words(ord("t"), 1, 2, 3), 1 | 2 << 16 | 3 << 32),
        (words(ord("s") | 4 << 8, 0x6142, 0x0072), "Bar"),
    ],
)
def test_a_record_gives_its_value(record: np.ndarray, value: object) -> None:
    assert list(parse_trace(record)) == [value]


def test_records_follow_one_another() -> None:
    buffer = words(ord("h"), 5, ord("B") | 7 << 8, ord("I"), 1, 0)
    assert list(parse_trace(buffer)) == [5, 7, 1]


def test_an_unknown_record_names_its_kind() -> None:
    with pytest.raises(OpenwaferError, match="the unknown kind 'z'"):
        list(parse_trace(words(ord("z"))))
