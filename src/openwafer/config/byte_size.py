"""Byte counts as people write them: 2GiB, 512MB, 4096."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated


@dataclass(frozen=True)
class ByteSize:
    """Marks an ``int`` field that is written with a unit."""


Bytes = Annotated[int, ByteSize()]
"""A field type: a number of bytes, read from 2GiB, 512MB or a plain whole number."""

UNITS = {
    "": 1,
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGTP", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
}
_UNIT_OF = {unit.lower(): num_bytes for unit, num_bytes in UNITS.items()}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)")


def parse_bytes(text: str) -> int:
    """Number of bytes that `text` names, such as 2GiB; the case of the unit does not matter.

    Raises ValueError for another form, an unknown unit, or a fraction of a byte.
    """
    written = _WRITTEN.fullmatch(text)
    if written is None or written[2].lower() not in _UNIT_OF:
        raise ValueError(f"'{text}' is not a byte size")
    num_bytes = Fraction(written[1]) * _UNIT_OF[written[2].lower()]
    if num_bytes.denominator != 1:
        raise ValueError(f"'{text}' is not a whole number of bytes")
    return int(num_bytes)


def exact_bytes(num_bytes: int) -> str:
    """Write `num_bytes` exactly, in the largest binary unit that divides it: 2GiB, 4097B."""
    exact = [u for u, size in UNITS.items() if u.endswith("iB") and num_bytes % size == 0]
    unit = exact[-1] if exact and num_bytes else "B"
    return f"{num_bytes // UNITS[unit]}{unit}"
