"""The learning rates of a run, from step to step."""

from collections.abc import Sequence
from itertools import chain

from torch.optim import Optimizer

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.training.lr_schedules import Schedule
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


def remark_on_schedule(before: RunConfig, now: RunConfig, step: int) -> Diagnostic | None:
    """A warning where a run goes on by another schedule than its steps so far had.

    A schedule whose end is not written ends with the run, so that other ``steps`` change it.

    Args:
        before: as the run went until now.
        now: as it goes on.
        step: the next one.
    """
    old, new = before.schedule.build(before.steps), now.schedule.build(now.steps)
    if old == new:
        return None
    as_before = f"{{name: {before.schedule.name}, options: {{{_written(old)}}}}}"
    return Diagnostic(
        Severity.WARNING,
        "schedule-changed",
        f"the learning rate goes on by another schedule than it had before step {step}, where "
        f"this one gives {new(step):.4g} of the highest rate and that one {old(step):.4g}: a run "
        f"of {now.steps} steps from its beginning ends with other weights",
        notes=(
            f"before: {before.schedule.name}, {_written(old)}",
            f"now: {now.schedule.name}, {_written(new)}",
        ),
        help=f"to go on by the one before, add --set 'schedule={as_before}'; a run that may be "
        "extended names its last step in schedule.options.num_steps when it begins",
    )


def _written(schedule: Schedule) -> str:
    return ", ".join(f"{name}: {value}" for name, value in vars(schedule).items())
