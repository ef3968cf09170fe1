"""Schedulers of the present style: f(k) is the value of parameter groups at step k, from 0."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.frontends.scripts.program import kind_of
from openwafer.training.frontends.scripts.schedules import Chained, Schedule, Sequential

__all__ = ["Scheduler"]

Tags = str | Iterable[str | None] | None


class Scheduler:
    """Sets a value of parameter groups: f(0) at once, and f(k) behind the k-th :meth:`step`.

    A subclass names its function of k by a class of :mod:`scripts.schedules`, whose arguments it
    takes under its own names.

    Args:
        optimizer: whose groups they are.
        args, options: of the function of k.
        param_group_tags: only groups with one of these ``"tags"``; None in it stands for groups
            that have none.

    Attributes:
        optimizer: see above.
        last_epoch: k.
        value_at: the function of k.

    Raises:
        OpenwaferError: ``present-scheduler``; ``schedule-option``.
    """

    param_group_key: ClassVar[str]
    """Which value of a group it is."""
    renamed: ClassVar[Mapping[str, str]]
    """Arguments by their vendor's names."""
    schedule: ClassVar[Callable[..., Schedule]]

    def __init__(
        self, optimizer: Optimizer, *args: Any, param_group_tags: Tags = None, **options: Any
    ) -> None:
        named = {self.renamed.get(name, name): value for name, value in options.items()}
        self._begin(optimizer, type(self).schedule(*args, **named), param_group_tags)

    def _begin(self, optimizer: Optimizer, value_at: Schedule, tags: Tags) -> None:
        if not isinstance(optimizer, Optimizer):
            raise error(
                "present-scheduler",
                f"{type(self).__name__} takes an optimizer, and got {kind_of(optimizer)}",
                help="make the optimizer by cstorch.optim, and give it first",
            )
        self.optimizer, self.value_at = optimizer, value_at
        self._tags = None if tags is None else {tags} if isinstance(tags, str) else set(tags)
        self.last_epoch = 0
        if not any(map(self._applies, optimizer.param_groups)):
            raise error(
                "present-scheduler",
                f"{type(self).__name__} is for groups with one of the tags {self._tags}, and no "
                "group of the optimizer has one",
                help='write "tags" into the parameter groups, or leave param_group_tags out',
            )
        self._apply()

    def _applies(self, group: Mapping[str, Any]) -> bool:
        if self._tags is None:
            return True
        tags = group.get("tags")
        own = {None} if not tags else {tags} if isinstance(tags, str) else set(tags)
        return bool(self._tags & own)

    def _values(self) -> list[float | None]:
        value = float(self.value_at(self.last_epoch))
        return [value if self._applies(group) else None for group in self.optimizer.param_groups]

    def _apply(self) -> None:
        for group, value in zip(self.optimizer.param_groups, self._values(), strict=True):
            if value is not None:
                group[self.param_group_key] = value

    def step(self) -> None:
        """Go on to the next step's value; behind the optimizer's step."""
        self.last_epoch += 1
        self._apply()

    def get_last_value(self) -> list[float | None]:
        """The values of the groups; None for those that it leaves alone."""
        return self._values()

    def state_dict(self) -> dict[str, Any]:
        """What it is at."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go where it was, and set its values."""
        self.last_epoch = int(state_dict["last_epoch"])
        self._apply()


class SequentialScheduler(Scheduler):
    """Schedulers one after the other; those that it is given take no steps any more."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[Scheduler],
        milestones: list[int],
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        functions = [_function_of(self, one) for one in schedulers]
        self._begin(optimizer, Sequential(functions, milestones), param_group_tags)


class ChainedScheduler(Scheduler):
    """The first scheduler, multiplied by what each other one is of its own beginning."""

    def __init__(self, schedulers: list[Scheduler], param_group_tags: Tags = None) -> None:
        functions = [_function_of(self, one) for one in schedulers]
        self._begin(schedulers[0].optimizer, Chained(functions), param_group_tags)


class ScalePerParamScheduler(Scheduler):
    """A scheduler whose value each group multiplies by its ``"adjust_learning_rate"``."""

    def __init__(
        self, optimizer: Optimizer, scheduler: Scheduler, param_group_tags: Tags = None
    ) -> None:
        self._begin(optimizer, _function_of(self, scheduler), param_group_tags)

    def _values(self) -> list[float | None]:
        factors = [
            group.get("adjust_learning_rate", group.get("adjust_val", 1.0))
            for group in self.optimizer.param_groups
        ]
        return [
            None if value is None else value * factor
            for value, factor in zip(super()._values(), factors, strict=True)
        ]


class LambdaScheduler(Scheduler):
    """``initial * f(k)``, multiplied for all functions of ``set_value_lambda``.

    A script writes a subclass with that method; its functions get a tensor.
    """

    def __init__(self, optimizer: Optimizer, initial: float, param_group_tags: Tags = None) -> None:
        self._initial = initial
        self._begin(optimizer, self._product, param_group_tags)

    def set_value_lambda(self) -> list[Callable[[torch.Tensor], Any]]:
        """The functions of k; a subclass says them.

        Raises:
            OpenwaferError: ``present-scheduler`` where it does not.
        """
        raise error(
            "present-scheduler",
            f"{type(self).__name__} has no set_value_lambda",
            help="write a subclass whose set_value_lambda returns a list of functions of the step",
        )

    def _product(self, k: int) -> float:
        value = 1.0
        for function in self.set_value_lambda():
            value *= self._initial * float(function(torch.tensor(k)))
        return value


def _function_of(outer: Scheduler, inner: Any) -> Schedule:
    if getattr(inner, "param_group_key", None) != outer.param_group_key:
        raise error(
            "present-scheduler",
            f"{type(outer).__name__} takes schedulers of {outer.param_group_key!r}, and got "
            f"{kind_of(inner)}",
            help="give schedulers of one module: lr_scheduler, or weight_decay_scheduler",
        )
    value_at: Schedule = inner.value_at
    return value_at
