"""Tells whoever waits for a long compilation that it goes on, and where."""

import sys
from typing import Final

from openwafer.sdk.program.remarks import FIRST_SECONDS, RemarkClock
from openwafer.source import Span

_STEPS: Final = 10_000
"""How many calls and iterations lie between two looks at the clock."""


class Progress:
    """Remarks on the standard error while work at compile time goes on, each after twice the time.

    Args:
        limit: how many calls and iterations there may be.
        seconds: until the first remark.

    Attributes:
        next_steps: how many steps are done when the clock is looked at.
    """

    def __init__(self, limit: int, seconds: float = FIRST_SECONDS) -> None:
        self._limit = limit
        self._clock = RemarkClock(seconds)
        self.next_steps = _STEPS

    def look(self, num_steps: int, span: Span) -> None:
        """Write a remark if it is time; `num_steps` are done, the next one is that of `span`."""
        if num_steps < self.next_steps:
            return
        self.next_steps = num_steps + _STEPS
        seconds = self._clock.due()
        if seconds is None:
            return
        line = span.source.position(span.start).line
        sys.stderr.write(
            f"openwafer: {seconds:.0f} s at compile time, {num_steps:,} of at most {self._limit:,}"
            f" calls and iterations, now at {span.source.name}:{line}\n"
        )
        sys.stderr.flush()
