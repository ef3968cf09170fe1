"""When to tell whoever waits that work goes on, in the compiler as in the simulator."""

import time
from typing import Final

FIRST_SECONDS: Final = 10.0


class RemarkClock:
    """Says when a remark is due: each after twice the time of the one before.

    Args:
        seconds: until the first remark.
    """

    def __init__(self, seconds: float = FIRST_SECONDS) -> None:
        self._begin = time.monotonic()
        self._next_seconds = seconds

    def due(self) -> float | None:
        """Seconds since the work began where a remark is due, else None."""
        seconds = time.monotonic() - self._begin
        if seconds < self._next_seconds:
            return None
        self._next_seconds = 2 * seconds
        return seconds
