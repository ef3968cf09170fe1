"""Numbers as people read them."""

import math

import pytest

from openwafer.training.metrics.units import (
    byte_scale,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
    time_scale,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (48 * 2**20, "48.0 MiB"),
        (1023.7 * 2**20, "1.00 GiB"),
        (-1536, "-1.50 KiB"),
        (5 * 2**60, "5120 PiB"),
    ],
)
def test_bytes_have_three_digits_and_a_binary_unit(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 µs"),
        (12e-6, "12.0 µs"),
        (0.0423, "42.3 ms"),
        (1.25, "1.25 s"),
        (59.96, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 00 min"),
        (3900, "1 h 05 min"),
        (183_600, "2 d 03 h"),
    ],
)
def test_durations_use_the_largest_unit_that_reads_well(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (1234, "1,234"), (9999, "9,999"), (124e6, "124M"), (2.7e9, "2.70B")],
)
def test_counts_are_exact_up_to_four_digits(count: float, text: str) -> None:
    assert format_count(count) == text


def test_a_rate_is_bytes_a_second() -> None:
    assert format_rate(340 * 2**20) == "340 MiB/s"


def test_a_share_is_a_percentage() -> None:
    assert format_share(0.9337) == "93.4%"


@pytest.mark.parametrize(
    "write", [format_bytes, format_rate, format_count, format_share, format_duration]
)
def test_a_number_that_is_not_finite_is_unknown(write: object) -> None:
    assert callable(write)
    assert {write(math.nan), write(math.inf)} == {"?"}


def test_a_byte_axis_shares_one_unit() -> None:
    scale = byte_scale(64 * 2**20, "/s")
    assert (scale.divisor, scale.label(2.5)) == (2**20, "2.5 MiB/s")


@pytest.mark.parametrize(("seconds", "unit"), [(1e-3, "µs"), (0.3, "ms"), (9.0, "s")])
def test_a_time_axis_takes_the_unit_of_its_length(seconds: float, unit: str) -> None:
    assert time_scale(seconds).unit == unit


def test_an_axis_of_nothing_still_has_a_scale() -> None:
    assert byte_scale(0).divisor == 1
