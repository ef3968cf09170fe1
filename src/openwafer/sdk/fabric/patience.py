"""Tells whoever waits for a long run that it goes on, and what PEs are at."""

import sys
from collections.abc import Callable

from openwafer.sdk.program.remarks import FIRST_SECONDS, RemarkClock


class Patience:
    """Remarks on the standard error while the host waits, each after twice the time.

    Args:
        awaited: what the host waits for.
        seconds: until the first remark.
    """

    def __init__(self, awaited: str, seconds: float = FIRST_SECONDS) -> None:
        self._awaited = awaited
        self._clock = RemarkClock(seconds)

    def look(self, cycles: int, busy: Callable[[], list[str]]) -> None:
        """Write a remark if it is time; `cycles` have gone by, `busy` says what PEs are at."""
        seconds = self._clock.due()
        if seconds is None:
            return
        so_far = f"{seconds:.0f} s, {cycles:,} cycles"
        _write(f"openwafer: the host has waited {so_far}, for {self._awaited}", busy())


def tell_interrupted(cycle: int, busy: list[str]) -> None:
    """Write where PEs were when somebody interrupted the run."""
    _write(f"openwafer: interrupted at cycle {cycle:,}", busy)


def _write(remark: str, notes: list[str]) -> None:
    lines = [remark, *(f"  {note}" for note in notes)]
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
