"""How fast a script goes: samples a second."""

import time
from collections.abc import Callable

__all__ = ["RateTracker"]


class RateTracker:
    """Counts samples and seconds.

    Args:
        smooth_factor: share of the rate before in the one that :attr:`rate` tells.
        clock: seconds from any moment on.
    """

    def __init__(
        self, smooth_factor: float = 0.4, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._smooth_factor, self._clock = smooth_factor, clock
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._begun = self._asked = self._clock()
        self.total_samples = 0
        self._num_asked = 0
        self._rate: float | None = None

    def add(self, count: int) -> None:
        """Note samples."""
        self.total_samples += count

    @property
    def total_time(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._begun

    @property
    def rate(self) -> float:
        """Samples a second since this was last asked, smoothed with what it was then."""
        now = self._clock()
        seconds, samples = now - self._asked, self.total_samples - self._num_asked
        if seconds <= 0:
            return 0.0
        found, before = samples / seconds, self._rate
        share = self._smooth_factor
        self._rate = found if before is None else (1 - share) * found + share * before
        self._asked, self._num_asked = now, self.total_samples
        return self._rate

    @property
    def global_rate(self) -> float:
        """Samples a second since the beginning."""
        return self.total_samples / seconds if (seconds := self.total_time) > 0 else 0.0
