"""What scripts find in ``cstorch.optim.weight_decay_scheduler``: weight decays by the step."""

from types import MappingProxyType
from typing import Final

from torch.optim import Optimizer

from openwafer.training.frontends.present import schedulers
from openwafer.training.frontends.scripts import schedules

__all__ = [
    "ChainedWD",
    "ConstantWD",
    "CosineAnnealingWD",
    "CosineAnnealingWarmRestartsWD",
    "CosineDecayWD",
    "CyclicWD",
    "ExponentialWD",
    "InverseExponentialTimeDecayWD",
    "InverseSquareRootDecayWD",
    "LambdaWD",
    "LinearWD",
    "MultiStepWD",
    "MultiplicativeWD",
    "OneCycleWD",
    "PiecewiseConstantWD",
    "PolynomialWD",
    "ScalePerParamWD",
    "SequentialWD",
    "StepWD",
    "WeightDecayScheduler",
]

_NAMES: Final = MappingProxyType(
    {
        "val": "value",
        "vals": "values",
        "initial_val": "initial",
        "end_val": "end",
        "base_val": "base",
        "max_val": "max",
    }
)


class WeightDecayScheduler(schedulers.Scheduler):
    """A scheduler of the weight decay; see :class:`Scheduler`."""

    param_group_key = "weight_decay"
    renamed = _NAMES


class ConstantWD(WeightDecayScheduler):
    """See :class:`schedules.Constant`."""

    schedule = schedules.Constant


class PolynomialWD(WeightDecayScheduler):
    """See :class:`schedules.Polynomial`."""

    schedule = schedules.Polynomial


class LinearWD(WeightDecayScheduler):
    """See :func:`schedules.linear`."""

    schedule = staticmethod(schedules.linear)


class ExponentialWD(WeightDecayScheduler):
    """See :class:`schedules.Exponential`."""

    schedule = schedules.Exponential


class InverseExponentialTimeDecayWD(WeightDecayScheduler):
    """See :class:`schedules.InverseExponentialTimeDecay`."""

    schedule = schedules.InverseExponentialTimeDecay


class InverseSquareRootDecayWD(WeightDecayScheduler):
    """See :class:`schedules.InverseSquareRootDecay`."""

    schedule = schedules.InverseSquareRootDecay


class CosineDecayWD(WeightDecayScheduler):
    """See :class:`schedules.CosineDecay`."""

    schedule = schedules.CosineDecay


class MultiStepWD(WeightDecayScheduler):
    """See :class:`schedules.MultiStep`."""

    schedule = schedules.MultiStep


class StepWD(WeightDecayScheduler):
    """See :class:`schedules.Step`."""

    schedule = schedules.Step


class CosineAnnealingWD(WeightDecayScheduler):
    """See :class:`schedules.CosineAnnealing`."""

    schedule = schedules.CosineAnnealing


class MultiplicativeWD(WeightDecayScheduler):
    """See :class:`schedules.Multiplicative`."""

    schedule = schedules.Multiplicative


class CyclicWD(WeightDecayScheduler):
    """See :class:`schedules.Cyclic`."""

    schedule = schedules.Cyclic


class OneCycleWD(WeightDecayScheduler):
    """See :class:`schedules.OneCycle`."""

    schedule = schedules.OneCycle


class PiecewiseConstantWD(WeightDecayScheduler):
    """See :func:`schedules.piecewise_constant`."""

    schedule = staticmethod(schedules.piecewise_constant)


class CosineAnnealingWarmRestartsWD(WeightDecayScheduler):
    """See :class:`schedules.CosineAnnealingWarmRestarts`."""

    schedule = schedules.CosineAnnealingWarmRestarts


class SequentialWD(WeightDecayScheduler, schedulers.SequentialScheduler):
    """See :class:`schedulers.SequentialScheduler`."""


class ChainedWD(WeightDecayScheduler, schedulers.ChainedScheduler):
    """See :class:`schedulers.ChainedScheduler`."""


class ScalePerParamWD(WeightDecayScheduler, schedulers.ScalePerParamScheduler):
    """See :class:`schedulers.ScalePerParamScheduler`."""


class LambdaWD(schedulers.LambdaScheduler, WeightDecayScheduler):
    """See :class:`schedulers.LambdaScheduler`."""

    def __init__(
        self, optimizer: Optimizer, initial_val: float, param_group_tags: schedulers.Tags = None
    ) -> None:
        super().__init__(optimizer, initial_val, param_group_tags)
