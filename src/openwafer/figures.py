"""A number with where it comes from."""

from dataclasses import dataclass
from enum import StrEnum


class Origin(StrEnum):
    """Where a figure comes from.

    It was measured here, came out of a simulation, stands in a publication, follows from other
    figures, or was given by who asks.
    """

    MEASURED = "measured"
    SIMULATED = "simulated"
    PUBLISHED = "published"
    INFERRED = "inferred"
    GIVEN = "given"


@dataclass(frozen=True)
class Figure:
    """One number that is told.

    `low` and `high` bound its 95% interval, and are None where it has none. `source` says how it
    was found, or where it stands.
    """

    name: str
    value: float
    unit: str
    origin: Origin
    source: str
    low: float | None = None
    high: float | None = None
