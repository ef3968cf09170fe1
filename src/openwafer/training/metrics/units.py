"""Numbers as people read them: bytes, rates, durations, counts and shares.

Bytes are binary everywhere (1 KiB = 1024 B), so that a rate, a peak and a budget can be
compared by eye.
"""

import math
from dataclasses import dataclass
from datetime import timedelta

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_THOUSANDS = ("", "K", "M", "B", "T")
_UNKNOWN = "?"


def format_bytes(num_bytes: float) -> str:
    """Three significant digits and a binary unit: `512 B`, `1.50 KiB`, `48.0 MiB`."""
    if not math.isfinite(num_bytes):
        return _UNKNOWN
    scaled, unit = _scale(num_bytes, 1024, _BINARY)
    return f"{scaled:.0f} B" if unit == "B" else f"{_three_digits(scaled)} {unit}"


def format_rate(bytes_per_second: float) -> str:
    """Bytes a second: `340 MiB/s`."""
    text = format_bytes(bytes_per_second)
    return text if text == _UNKNOWN else f"{text}/s"


def format_count(count: float) -> str:
    """A whole number up to 9999, above that three digits: `1,234`, `124M`, `2.70B`."""
    if not math.isfinite(count):
        return _UNKNOWN
    if abs(count) < 10_000:
        return f"{count:,.0f}"
    scaled, suffix = _scale(count, 1000, _THOUSANDS)
    return f"{_three_digits(scaled)}{suffix}"


def format_share(share: float) -> str:
    """A share of one as a percentage with one decimal: `93.4%`."""
    return f"{100 * share:.1f}%" if math.isfinite(share) else _UNKNOWN


def format_duration(seconds: float) -> str:
    """From `12.0 µs` through `1.25 s` and `3 min 20 s` to `2 d 03 h`."""
    if not math.isfinite(seconds):
        return _UNKNOWN
    for unit, size in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if seconds < 999.5 * size and not (unit == "s" and seconds >= 59.95):
            return f"{_three_digits(seconds / size)} {unit}"
    return _long_duration(timedelta(seconds=round(seconds)))


def _long_duration(duration: timedelta) -> str:
    minutes, seconds = divmod(duration.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if duration.days:
        return f"{duration.days} d {hours:02d} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def _scale(value: float, base: int, units: tuple[str, ...]) -> tuple[float, str]:
    for unit in units[:-1]:
        if abs(value) < base - 0.5:
            return value, unit
        value /= base
    return value, units[-1]


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    decimals = 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
    return f"{value:.{decimals}f}"


@dataclass(frozen=True)
class Scale:
    """A unit for a whole axis: divide by `divisor`, write `unit` behind the number."""

    divisor: float
    unit: str

    def label(self, scaled: float) -> str:
        return f"{scaled:g} {self.unit}"


def byte_scale(most_bytes: float, suffix: str = "") -> Scale:
    """The binary unit in which `most_bytes` has at most four digits."""
    scaled, unit = _scale(most_bytes, 1024, _BINARY)
    return Scale(most_bytes / scaled if scaled else 1, unit + suffix)


def time_scale(most_seconds: float) -> Scale:
    """Microseconds, milliseconds or seconds, whichever gives `most_seconds` few digits."""
    if most_seconds < 2e-3:
        return Scale(1e-6, "µs")
    return Scale(1e-3, "ms") if most_seconds < 2 else Scale(1, "s")
