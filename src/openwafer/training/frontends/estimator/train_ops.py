"""What a spec's ``train_op`` may be, and the step that it takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from openwafer.diagnostics import error
from openwafer.training.frontends.estimator.spec import remedy_for

__all__ = ["TrainOp"]


class TrainOp(NamedTuple):
    """What a script's own ``minimize`` of an optimizer may give.

    Attributes:
        optimizer: of torch.
        loss: that it is to make small.
    """

    optimizer: Optimizer
    loss: torch.Tensor


@dataclass(frozen=True)
class TrainStep:
    """Optimizers and schedulers that step together, in their order."""

    optimizers: tuple[Optimizer, ...]
    schedulers: tuple[LRScheduler, ...]

    @classmethod
    def of(cls, train_op: Any, where: str) -> "TrainStep":
        """That of a spec.

        Raises:
            OpenwaferError: ``estimator-train-op`` for what cannot step.
        """
        found = list(_steps(train_op, where))
        optimizers = tuple(one for one in found if isinstance(one, Optimizer))
        if not optimizers:
            raise error(
                "estimator-train-op",
                f"{where} returned a train_op without an optimizer",
                help="return the optimizer, or [optimizer, scheduler]",
            )
        return cls(optimizers, tuple(one for one in found if isinstance(one, LRScheduler)))

    def take(self) -> None:
        """Update weights by their gradients, which are then gone, and step schedulers."""
        for optimizer in self.optimizers:
            optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()


def _steps(train_op: Any, where: str) -> Iterator[Optimizer | LRScheduler]:
    if isinstance(train_op, TrainOp):
        yield train_op.optimizer
    elif isinstance(train_op, list | tuple):
        for one in train_op:
            yield from _steps(one, where)
    elif isinstance(train_op, Optimizer) or (
        isinstance(train_op, LRScheduler) and not isinstance(train_op, ReduceLROnPlateau)
    ):
        yield train_op
    else:
        raise error(
            "estimator-train-op",
            f"{where} returned a {type(train_op).__name__} as its train_op",
            help=remedy_for(
                train_op,
                "return an optimizer of torch, or a list of optimizers and of torch's "
                "learning-rate schedulers",
            ),
        )
