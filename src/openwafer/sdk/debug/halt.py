"""Where a run stands still, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from openwafer.sdk.debug.breakpoints import Seen


class Reason(Enum):
    """Why a run stands still."""

    START = "at the start"
    BREAKPOINT = "at a breakpoint"
    STEP = "behind a step"
    CYCLE = "at a cycle"
    PAUSED = "paused"
    END = "at the end"
    FAILED = "failed"


@dataclass(frozen=True)
class Halt:
    """Where a run stands.

    Attributes:
        cycle: the present one.
        pe: number of the PE whose code has stopped; None where none has.
        place: of the statement that comes next there.
        statement: how many it has begun.
            -1 where the cycle is over.
        breakpoints: numbers of those that it, and others, have come to.
        others: numbers of PEs that have come to a breakpoint in the same cycle.
        text: of the error that ended the run, what was changed and by whom, or why a condition
            cannot be worked out.
    """

    reason: Reason
    cycle: int
    pe: int | None = None
    place: int = -1
    statement: int = -1
    breakpoints: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    text: str = ""


Decide: TypeAlias = Callable[[Seen], Halt | None]
"""Says of what is seen whether the run stands still; None lets it go on."""


def never(_seen: Seen) -> Halt | None:
    """Stand still nowhere."""
    return None
