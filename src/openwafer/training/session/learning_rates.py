"""The learning rates of a run, from step to step."""

from collections.abc import Sequence
from itertools import chain

from torch.optim import Optimizer

from openwafer.training.session.config import RunConfig


class LearningRates:
    """Sets those of all parameter groups, whose present ones are the highest of the schedule.

    Args:
        optimizers: of the run.
        config: of the run.
    """

    def __init__(self, optimizers: Sequence[Optimizer], config: RunConfig) -> None:
        self._groups = list(chain.from_iterable(one.param_groups for one in optimizers))
        self._peaks = [float(str(group["lr"])) for group in self._groups]
        self._schedule = config.schedule.build(config.steps)

    def at(self, step: int) -> float:
        """That of the first group."""
        return self._peaks[0] * self._schedule(step)

    def set(self, step: int) -> None:
        """Make them those of a step."""
        factor = self._schedule(step)
        for group, peak in zip(self._groups, self._peaks, strict=True):
            group["lr"] = peak * factor
