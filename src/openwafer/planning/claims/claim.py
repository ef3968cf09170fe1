"""A published claim, beside our model's number for it under stated assumptions."""

import math
from dataclasses import dataclass
from enum import StrEnum

from openwafer.figures import Figure, Origin


class Support(StrEnum):
    """The verdict of the numbers on a claim."""

    ALL = "supported"
    SOME = "supported in some cases"
    NONE = "not supported"
    UNKNOWN = "cannot be checked"


@dataclass(frozen=True)
class Case:
    """One computation.

    Attributes:
        assumption: what the computation assumes, in words.
        inputs: all numbers that went in.
        computed: the result, in the unit of the claim.
    """

    assumption: str
    inputs: tuple[Figure, ...]
    computed: Figure


@dataclass(frozen=True)
class Claim:
    """A published number, and the cases that it is computed for.

    Attributes:
        name: the claim in a few words.
        claimed: the number as published; None where only a curve without numbers was.
        least, most: bounds of the published words: a number told with one digit covers all that
            rounds to it, and "in a day" all that is shorter.
        cases: computations of the same quantity.
        implied: further consequences of the claim.
        remark: a note that a reader of the numbers needs.
    """

    name: str
    claimed: Figure | None
    least: float = 0.0
    most: float = math.inf
    cases: tuple[Case, ...] = ()
    implied: tuple[Figure, ...] = ()
    remark: str = ""

    def covers(self, case: Case) -> bool:
        """Whether the computed number is one that the published words cover."""
        return self.least <= case.computed.value < self.most

    @property
    def support(self) -> Support:
        """What the cases say together; nothing but the numbers decides."""
        if self.claimed is None or not self.cases:
            return Support.UNKNOWN
        covered = [self.covers(case) for case in self.cases]
        if all(covered):
            return Support.ALL
        return Support.SOME if any(covered) else Support.NONE


def published(name: str, value: float, unit: str, source: str) -> Figure:
    """A figure of a publication."""
    return Figure(name, value, unit, Origin.PUBLISHED, source)


def assumed(name: str, value: float, unit: str, why: str = "assumed") -> Figure:
    """A figure that a case takes for granted."""
    return Figure(name, value, unit, Origin.GIVEN, why)


def computed(name: str, value: float, unit: str, source: str) -> Figure:
    """A figure that follows from others."""
    return Figure(name, value, unit, Origin.INFERRED, source)
