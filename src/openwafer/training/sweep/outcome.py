"""What runs of a sweep tell: the best setting, and how sure that is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from openwafer.diagnostics import error
from openwafer.training.sweep.ablation import Choice
from openwafer.training.sweep.sweep_file import SweptRun

Setting = Mapping[str, str]
"""Values by key of the config, as texts."""

NUM_ERRORS = 2
"""Standard errors of a difference that two settings have to lie apart to be told apart."""


@dataclass(frozen=True)
class Outcome:
    """Runs that differ in their seed alone.

    Attributes:
        setting: of them all.
        losses: on held-out documents, one a seed; infinite where a run diverged.
    """

    setting: Setting
    losses: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of the losses; infinite where one diverged."""
        return math.inf if self.num_diverged else fmean(self.losses)

    @property
    def num_diverged(self) -> int:
        """Runs whose loss was not finite."""
        return sum(math.isinf(loss) for loss in self.losses)

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds; None of one seed or where a run diverged."""
        if len(self.losses) < 2 or self.num_diverged:
            return None
        return stdev(self.losses)


def outcomes_of(choice: Choice, runs: Sequence[SweptRun]) -> tuple[Outcome, ...]:
    """The outcomes of runs that have all ended, in the order of the settings asked for."""
    return tuple(
        Outcome(
            setting,
            tuple(
                next(run.loss for run in runs if run.is_of(setting, seed)) for seed in choice.seeds
            ),
        )
        for setting in choice.settings
    )


def noise_of(outcomes: Sequence[Outcome]) -> float | None:
    """Standard deviation over seeds, pooled over settings; None where there is one seed alone."""
    found = [each.deviation for each in outcomes if each.deviation is not None]
    return math.sqrt(fmean(deviation**2 for deviation in found)) if found else None


def best_of(outcomes: Sequence[Outcome]) -> tuple[Outcome, tuple[Outcome, ...]]:
    """The setting of the least mean loss, and others that the noise does not tell from it.

    Two means of n seeds are told apart where they differ by more than `NUM_ERRORS` times
    ``noise * sqrt(2 / n)``. With one seed the noise is not known, and no others are told.

    Raises:
        OpenwaferError: ``sweep-diverged`` where no setting has runs that all stayed finite.
    """
    best = min(outcomes, key=lambda each: each.mean)
    if math.isinf(best.mean):
        raise error(
            "sweep-diverged",
            f"of {len(outcomes)} settings each has a run whose loss was not finite",
            help="try lower learning rates",
        )
    noise = noise_of(outcomes)
    if noise is None:
        return best, ()
    apart = NUM_ERRORS * noise * math.sqrt(2 / len(best.losses))
    near = (each for each in outcomes if each is not best and each.mean - best.mean <= apart)
    return best, tuple(near)
