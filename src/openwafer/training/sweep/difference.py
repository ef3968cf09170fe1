"""How far a variant's losses lie from the baseline's, run by run of one seed."""

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

from scipy.special import stdtrit

from openwafer.training.sweep.outcome import Outcome

CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean over seeds of a variant's loss minus the baseline's with the same seed.

    Losses are in nats a token. With one seed the noise is not known.

    Attributes:
        mean: of the differences.
        standard_error: of that mean; None of one seed.
        margin: half the 95% interval of the mean, by Student's t; None of one seed.
    """

    mean: float
    standard_error: float | None
    margin: float | None

    @property
    def is_told_apart(self) -> bool | None:
        """Whether 0 lies outside the interval; None of one seed."""
        return None if self.margin is None else abs(self.mean) > self.margin


def standard_errors(num_seeds: int) -> float:
    """Standard errors from the mean of so many differences to either end of its 95% interval.

    It is the quantile of Student's t with ``num_seeds - 1`` degrees of freedom.
    """
    return float(stdtrit(num_seeds - 1, (1 + CONFIDENCE) / 2))


def difference_of(baseline: Outcome, variant: Outcome) -> Difference | None:
    """The difference of two outcomes of the same seeds; None where a run of either diverged."""
    if baseline.num_diverged or variant.num_diverged:
        return None
    pairs = zip(variant.losses, baseline.losses, strict=True)
    own = [one - other for one, other in pairs]
    if len(own) < 2:
        return Difference(own[0], None, None)
    error = stdev(own) / math.sqrt(len(own))
    return Difference(fmean(own), error, standard_errors(len(own)) * error)
