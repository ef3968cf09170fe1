"""What scripts find in ``cstorch.optim.lr_scheduler``: learning rates by the step."""

from types import MappingProxyType
from typing import Final

from torch.optim import Optimizer

from openwafer.training.frontends.present import schedulers
from openwafer.training.frontends.scripts import schedules

__all__ = [
    "ChainedLR",
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CosineDecayLR",
    "CyclicLR",
    "ExponentialLR",
    "InverseExponentialTimeDecayLR",
    "InverseSquareRootDecayLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PiecewiseConstantLR",
    "PolynomialLR",
    "ScalePerParamLR",
    "SequentialLR",
    "StepLR",
]

_NAMES: Final = MappingProxyType(
    {
        "learning_rate": "value",
        "learning_rates": "values",
        "initial_learning_rate": "initial",
        "end_learning_rate": "end",
        "base_lr": "base",
        "max_lr": "max",
    }
)


class LRScheduler(schedulers.Scheduler):
    """A scheduler of the learning rate; see :class:`Scheduler`."""

    param_group_key = "lr"
    renamed = _NAMES

    def get_last_lr(self) -> list[float | None]:
        """The learning rates of the groups; None for those that it leaves alone."""
        return self.get_last_value()

    def get_lr(self) -> list[float | None]:
        """See :meth:`get_last_lr`."""
        return self.get_last_value()


class ConstantLR(LRScheduler):
    """See :class:`schedules.Constant`."""

    schedule = schedules.Constant


class PolynomialLR(LRScheduler):
    """See :class:`schedules.Polynomial`."""

    schedule = schedules.Polynomial


class LinearLR(LRScheduler):
    """See :func:`schedules.linear`."""

    schedule = staticmethod(schedules.linear)


class ExponentialLR(LRScheduler):
    """See :class:`schedules.Exponential`."""

    schedule = schedules.Exponential


class InverseExponentialTimeDecayLR(LRScheduler):
    """See :class:`schedules.InverseExponentialTimeDecay`."""

    schedule = schedules.InverseExponentialTimeDecay


class InverseSquareRootDecayLR(LRScheduler):
    """See :class:`schedules.InverseSquareRootDecay`."""

    schedule = schedules.InverseSquareRootDecay


class CosineDecayLR(LRScheduler):
    """See :class:`schedules.CosineDecay`."""

    schedule = schedules.CosineDecay


class MultiStepLR(LRScheduler):
    """See :class:`schedules.MultiStep`."""

    schedule = schedules.MultiStep


class StepLR(LRScheduler):
    """See :class:`schedules.Step`."""

    schedule = schedules.Step


class CosineAnnealingLR(LRScheduler):
    """See :class:`schedules.CosineAnnealing`."""

    schedule = schedules.CosineAnnealing


class MultiplicativeLR(LRScheduler):
    """See :class:`schedules.Multiplicative`."""

    schedule = schedules.Multiplicative


class CyclicLR(LRScheduler):
    """See :class:`schedules.Cyclic`."""

    schedule = schedules.Cyclic


class OneCycleLR(LRScheduler):
    """See :class:`schedules.OneCycle`."""

    schedule = schedules.OneCycle


class PiecewiseConstantLR(LRScheduler):
    """See :func:`schedules.piecewise_constant`."""

    schedule = staticmethod(schedules.piecewise_constant)


class CosineAnnealingWarmRestarts(LRScheduler):
    """See :class:`schedules.CosineAnnealingWarmRestarts`."""

    schedule = schedules.CosineAnnealingWarmRestarts


class SequentialLR(LRScheduler, schedulers.SequentialScheduler):
    """See :class:`schedulers.SequentialScheduler`."""


class ChainedLR(LRScheduler, schedulers.ChainedScheduler):
    """See :class:`schedulers.ChainedScheduler`."""


class ScalePerParamLR(LRScheduler, schedulers.ScalePerParamScheduler):
    """See :class:`schedulers.ScalePerParamScheduler`."""


class LambdaLR(schedulers.LambdaScheduler, LRScheduler):
    """See :class:`schedulers.LambdaScheduler`."""

    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        param_group_tags: schedulers.Tags = None,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, param_group_tags)


ChainedScheduler = ChainedLR
