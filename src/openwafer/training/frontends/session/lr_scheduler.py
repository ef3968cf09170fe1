"""What scripts find in ``cbtorch.optim.lr_scheduler``: learning rates that sessions set."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

from torch.optim import Optimizer

from openwafer.training.frontends.scripts import schedules
from openwafer.training.frontends.session import program

__all__ = [
    "Constant",
    "CosineAnnealing",
    "CosineAnnealingWarmRestarts",
    "CosineDecay",
    "Exponential",
    "InverseExponentialTimeDecay",
    "InverseSquareRootDecay",
    "MultiStep",
    "Multiplicative",
    "Polynomial",
    "Step",
]

STEPS: Final = "scheduled_steps"
"""The key of a parameter group under which its optimizer's steps are counted."""
_RENAMED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "decay_steps": "total_iters",
        "end_learning_rate": "end",
        "initial_learning_rate": "initial",
        "learning_rate": "value",
        "val": "value",
    }
)
_GOES_ON: Final = "disable_lr_steps_reset"


class LearningRate:
    """Lets sessions set a learning rate before each step of an optimizer.

    Several of one optimizer follow each other in the order in which they are made: each has as
    many steps as its ``decay_steps``, and counts from its own first one.

    Args:
        optimizer: one that the program knows.
        args, options: of the function of the step, then whether it counts the optimizer's steps
            instead (``disable_lr_steps_reset``).

    Attributes:
        value_at: the function of the step.
        num_steps: of its own; None where it is the last.

    Raises:
        OpenwaferError: ``session-not-initialized``; ``schedule-option``.
    """

    schedule: ClassVar[Callable[..., schedules.Schedule]]
    names: ClassVar[tuple[str, ...]]

    def __init__(self, optimizer: Optimizer, *args: Any, **options: Any) -> None:
        given = dict(zip((*self.names, _GOES_ON), args, strict=False))
        given |= {_RENAMED.get(name, name): value for name, value in options.items()}
        self._goes_on = bool(given.pop(_GOES_ON, False))
        self.value_at = type(self).schedule(**given)
        self.num_steps: int | None = given.get("total_iters")
        running = program.current(f"cbtorch.optim.lr_scheduler.{type(self).__name__}")
        running.rates_of(optimizer).append(self)

    def at(self, step: int, begun: int) -> float:
        """The rate of the optimizer's `step`, where this began at the step `begun`."""
        return self.value_at(step if self._goes_on else step - begun)


def set_rate(optimizer: Optimizer, rates: Sequence[LearningRate]) -> None:
    """Give an optimizer the learning rate of the step that it is about to take."""
    step = optimizer.param_groups[0].get(STEPS, 0)
    begun, number = 0, 0
    for rate in rates[:-1]:
        if rate.num_steps is None or step < begun + rate.num_steps:
            break
        begun, number = begun + rate.num_steps, number + 1
    value = rates[number].at(step, begun)
    for group in optimizer.param_groups:
        group["lr"], group[STEPS] = value, step + 1


class Constant(LearningRate):
    """See :class:`schedules.Constant`."""

    schedule = schedules.Constant
    names = ("value", "total_iters")


class Polynomial(LearningRate):
    """See :class:`schedules.Polynomial`."""

    schedule = schedules.Polynomial
    names = ("initial", "end", "total_iters", "power", "cycle")


class Exponential(LearningRate):
    """See :class:`schedules.Exponential`."""

    schedule = schedules.Exponential
    names = ("initial", "total_iters", "decay_rate", "staircase")


class InverseExponentialTimeDecay(LearningRate):
    """See :class:`schedules.InverseExponentialTimeDecay`."""

    schedule = schedules.InverseExponentialTimeDecay
    names = ("initial", "step_exponent", "total_iters", "decay_rate", "staircase")


class InverseSquareRootDecay(LearningRate):
    """See :class:`schedules.InverseSquareRootDecay`."""

    schedule = schedules.InverseSquareRootDecay
    names = ("initial", "scale", "warmup_steps")


class CosineDecay(LearningRate):
    """See :class:`schedules.CosineDecay`."""

    schedule = schedules.CosineDecay
    names = ("initial", "end", "total_iters")


class MultiStep(LearningRate):
    """See :class:`schedules.MultiStep`."""

    schedule = schedules.MultiStep
    names = ("initial", "gamma", "milestones")


class Step(LearningRate):
    """See :class:`schedules.Step`."""

    schedule = schedules.Step
    names = ("initial", "gamma", "step_size")


class CosineAnnealing(LearningRate):
    """See :class:`schedules.CosineAnnealing`."""

    schedule = schedules.CosineAnnealing
    names = ("initial", "T_max", "eta_min")


class CosineAnnealingWarmRestarts(LearningRate):
    """See :class:`schedules.CosineAnnealingWarmRestarts`."""

    schedule = schedules.CosineAnnealingWarmRestarts
    names = ("initial", "T_0", "T_mult", "eta_min")


class Multiplicative(LearningRate):
    """See :class:`schedules.Multiplicative`."""

    schedule = schedules.Multiplicative
    names = ("initial", "coefficient")
