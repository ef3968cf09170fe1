"""Batch sizes that follow the gradient noise scale of a run.

McCandlish et al. 2018, arXiv:1812.06162. Where the noise scale is b, a step of B samples brings a
run as far as 1 / (1 + b / B) steps of a huge batch, so that S steps and E samples to one loss are
``(S / S_min - 1)(E / E_min - 1) = 1`` (eq. 2.11) with ``b = E_min / S_min``. Each sample is then
worth 1 / (B + b) of a huge step. Here b is what was measured at that place of the run.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

Span = tuple[int, int]
"""A batch size, and how many steps in a row have it."""


@dataclass(frozen=True)
class NoiseCourse:
    """The noise scale over a run; at least one was measured.

    Attributes:
        positions: samples before each step that was measured, rising.
        scales: the noise scale of each, in samples.
    """

    positions: Sequence[int]
    scales: Sequence[float]

    def at(self, position: int) -> float:
        """The last one measured up to there, or the first of all."""
        return self.scales[max(bisect_right(self.positions, position) - 1, 0)]

    def between(self, start: int, end: int) -> float:
        """The median of those measured there; where none was, that of the place before."""
        first, last = (bisect_right(self.positions, each - 1) for each in (start, end))
        return median(self.scales[first:last] or [self.at(start)])


@dataclass(frozen=True)
class GrowthLimits:
    """What batch sizes are asked for.

    Attributes:
        smallest: the first size; all others are it times a power of two.
        largest: no size is above it; ``None`` for no bound but the noise.
        least_steps: no size holds for fewer.
        samples: of the whole training; what fills no last step is left out.
    """

    smallest: int
    largest: int | None
    least_steps: int
    samples: int


def grown_sizes(course: NoiseCourse, limits: GrowthLimits) -> list[Span]:
    """Batch sizes as large as the noise scale lets them be, and never falling.

    A size is chosen for `least_steps` steps at a time, by the median of the noise scale over the
    samples that so many steps of the size before take.
    """
    spans: list[Span] = []
    position, size = 0, limits.smallest
    while steps := min((limits.samples - position) // size, limits.least_steps):
        wanted = _fitting(size, course.between(position, position + steps * size), limits)
        if (limits.samples - position) // wanted >= limits.least_steps:
            size, steps = wanted, limits.least_steps
        if spans and spans[-1][0] == size:
            spans[-1] = (size, spans[-1][1] + steps)
        else:
            spans.append((size, steps))
        position += size * steps
    return spans


def _fitting(size: int, noise: float, limits: GrowthLimits) -> int:
    most = noise if limits.largest is None else min(noise, limits.largest)
    while 2 * size <= most:
        size *= 2
    return size


def samples_of(spans: Iterable[Span]) -> int:
    """All samples of such steps."""
    return sum(size * steps for size, steps in spans)


def huge_steps(spans: Iterable[Span], course: NoiseCourse) -> float:
    """How many steps of a huge batch would bring a run as far; see the module."""
    total, position = 0.0, 0
    for size, steps in spans:
        for start in range(position, position + size * steps, size):
            total += size / (size + course.at(start))
        position += size * steps
    return total


def missing_samples(spans: Sequence[Span], others: Sequence[Span], course: NoiseCourse) -> float:
    """Samples that `spans` lack to come as far as `others`, in further steps of the last size.

    Below 0 where they come farther. The noise scale is that of their end.
    """
    behind = huge_steps(others, course) - huge_steps(spans, course)
    return behind * (spans[-1][0] + course.at(samples_of(spans)))
