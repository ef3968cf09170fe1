"""The gradient noise scale, from squared norms of gradients of few and of many examples.

McCandlish et al. 2018, arXiv:1812.06162, section 2.2 and appendix A.1. A gradient over B
independent examples is G + noise whose covariance is Sigma / B, so that its squared norm is, in the
mean, ``|G|^2 + tr(Sigma) / B``. Two batch sizes tell the two apart.
"""

import math
from dataclasses import dataclass

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
