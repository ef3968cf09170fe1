"""The gradient noise scale, from squared norms of gradients, and batch sizes that follow it.

McCandlish et al. 2018, arXiv:1812.06162, section 2.2 and appendix A.1. A gradient over B
independent examples is G + noise whose covariance is Sigma / B, so that its squared norm is, in the
mean, ``|G|^2 + tr(Sigma) / B``. Two batch sizes tell the two apart.

Where the noise scale is b, a step of B samples brings a run as far as 1 / (1 + b / B) steps of a
huge batch, so that S steps and E samples to one loss are ``(S / S_min - 1)(E / E_min - 1) = 1``
(eq. 2.11) with ``b = E_min / S_min``. Each sample is then worth 1 / (B + b) of a huge step. For
batches that grow, b is what was measured at that place of the run.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from openwafer.diagnostics import error


@dataclass(frozen=True)
class NoiseEstimate:
    """What one step says of the gradient and its noise; both are unbiased, and may be negative.

    Attributes:
        signal: ``|G|^2``, squared norm of the gradient over all data.
        noise: tr(Sigma), variance of one example's gradient, summed over its entries.
    """

    signal: float
    noise: float


def estimate_noise(small: float, big: float, *, num_small: int, num_big: int) -> NoiseEstimate:
    """Estimate signal and noise from squared norms at two batch sizes.

    Args:
        small: squared norm of the mean gradient over ``num_small`` examples, or a mean of several.
        big: that over ``num_big`` examples.

    Raises:
        OpenwaferError: ``noise-scale-batch`` where the second number is not above the first.
    """
    if not 0 < num_small < num_big:
        raise error(
            "noise-scale-batch",
            f"gradients of {num_small} and of {num_big} examples do not tell noise from signal",
            help="take a batch of at least two examples, and compare it with smaller parts of it",
        )
    signal = (num_big * big - num_small * small) / (num_big - num_small)
    noise = (small - big) / (1 / num_small - 1 / num_big)
    return NoiseEstimate(signal, noise)


def estimate_from_examples(sum_of_squares: float, whole: float, num_examples: int) -> NoiseEstimate:
    """Estimate signal and noise from a batch and each of its examples.

    Where the loss of a batch is a mean over its targets, an example's part of the batch's gradient
    is its own mean gradient times its share of the targets, 1 / ``num_examples`` where all have as
    many. So B times a part stands for one example's gradient, and the mean of their squared norms
    is B times the sum of the parts' squared norms.

    Args:
        sum_of_squares: of the norms of the examples' parts of the batch's gradient.
        whole: squared norm of the batch's gradient, the sum of these parts.

    Raises:
        OpenwaferError: ``noise-scale-batch`` where there is one example.
    """
    return estimate_noise(num_examples * sum_of_squares, whole, num_small=1, num_big=num_examples)


class SmoothedNoise:
    """Exponential means of signal and noise, each by itself, as the mean of ratios is biased.

    McCandlish et al. 2018, appendix A.1. The two means have the same weights, so that their ratio
    needs no correction for its start.

    Args:
        decay: weight of what was before, in [0, 1).

    Attributes:
        signal, noise: the means; ``None`` before the first estimate.
    """

    def __init__(self, decay: float) -> None:
        if not 0 <= decay < 1:
            raise error(
                "noise-scale-decay",
                f"the decay of the noise scale's means is {decay}, not in [0, 1)",
                help="take a number such as 0.95",
            )
        self.decay = decay
        self.signal: float | None = None
        self.noise: float | None = None

    def add(self, estimate: NoiseEstimate) -> None:
        """Take in the estimate of a step; one that is not finite is passed over."""
        if not (math.isfinite(estimate.signal) and math.isfinite(estimate.noise)):
            return
        self.signal = self._mean(self.signal, estimate.signal)
        self.noise = self._mean(self.noise, estimate.noise)

    def _mean(self, before: float | None, new: float) -> float:
        return new if before is None else self.decay * before + (1 - self.decay) * new

    @property
    def noise_scale(self) -> float | None:
        """B_simple = ``tr(Sigma) / |G|^2``, in examples; ``None`` without a signal above 0."""
        if self.signal is None or self.noise is None or self.signal <= 0:
            return None
        return max(self.noise, 0.0) / self.signal


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
