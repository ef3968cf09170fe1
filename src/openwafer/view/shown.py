"""What is shown of a run, and what a page may ask of it; loads nothing that simulates."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openwafer.view.symbols import Symbols


class Way(IntEnum):
    """Where to go before a PE is looked at, by the numbers of a page's requests."""

    HERE = 0
    """To the end of the cycle."""
    STEP = 1
    """From there to the PE's next statement."""
    STEP_BACK = 2
    LINE = 3
    """To where the PE comes to a line next."""
    LINE_BACK = 4


@dataclass(frozen=True)
class Going:
    """Where a page goes before it looks at a PE.

    Attributes:
        way: from the end of a cycle on.
        line: number of a source, and of a line there, of ways that lead to one.
        condition: an expression that has to hold there; empty for none.
        page: number of who asks; another one that goes is told where it begins.
    """

    way: Way = Way.HERE
    line: tuple[int, int] | None = None
    condition: str = ""
    page: int = 0


@dataclass(frozen=True)
class Shown:
    """What is shown.

    Attributes:
        content: of the file of columns, or that file.
        symbols: begins to look at PEs' memory at cycles; None where there is no journal.
        report: a page of its own, as HTML.
    """

    content: bytes | Path
    symbols: "Callable[[], Symbols] | None" = None
    report: str | None = None
