"""How long a trainer trains, and how often it evaluates between."""

import math
from collections.abc import Iterator, Sized
from dataclasses import dataclass

from openwafer.diagnostics import error
from openwafer.training.frontends.present.data import compute_num_steps


@dataclass
class ValidationLoop:
    """One evaluation.

    Attributes:
        eval_steps: batches of it; by default all of the loader.
    """

    eval_steps: int | None = None

    def __post_init__(self) -> None:
        _require_counts(self, "eval_steps")


@dataclass
class TrainingLoop:
    """Steps of a training.

    Attributes:
        num_steps: batches to take, or
        max_steps: the step to end at, counted over resumes, or
        num_epochs: epochs to take.
        steps_per_epoch: batches of an epoch; by default all of the loader.
        eval_frequency: steps between evaluations; of a float, the share of all steps. None and 0
            are never.
        eval_steps: see :class:`ValidationLoop`.
        grad_accum_steps: batches of one update. A CSX run takes one, as the vendor's.

    Raises:
        OpenwaferError: ``trainer-loop``.
    """

    num_steps: int | None = None
    max_steps: int | None = None
    num_epochs: int | None = None
    steps_per_epoch: int | None = None
    eval_frequency: int | float | None = 1.0
    eval_steps: int | None = None
    grad_accum_steps: int = 1

    def __post_init__(self) -> None:
        _require_counts(
            self,
            *("num_steps", "max_steps", "num_epochs", "steps_per_epoch", "grad_accum_steps"),
        )
        every = self.eval_frequency
        if isinstance(every, float) and not 0 <= every <= 1:
            raise error(
                "trainer-loop",
                f"eval_frequency is {every}",
                help="give a whole number of steps, or a share of all steps between 0.0 and 1.0",
            )
        self.val_loop = ValidationLoop(self.eval_steps)

    def total_steps(self, loader: Sized, global_step: int) -> int:
        """Batches to take behind `global_step` updates.

        Raises:
            OpenwaferError: ``present-steps``.
        """
        num_epochs = self.num_epochs
        if self.num_steps is None and self.max_steps is None and num_epochs is None:
            num_epochs = 1
        return compute_num_steps(
            loader,
            initial_step=global_step,
            num_steps=self.num_steps,
            max_steps=self.max_steps,
            num_epochs=num_epochs,
            steps_per_epoch=self.steps_per_epoch,
            grad_accum_steps=self.grad_accum_steps,
        )

    def stages(self, total_steps: int) -> Iterator[int]:
        """Steps of each stretch that ends with an evaluation, or with the training."""
        every = self.eval_frequency or total_steps
        if isinstance(every, float):
            every = math.ceil(every * total_steps)
        for start in range(0, total_steps, every):
            yield min(every, total_steps - start)


def _require_counts(loop: object, *names: str) -> None:
    for name in names:
        value = getattr(loop, name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise error(
                "trainer-loop", f"{name} is {value!r}", help="give a whole number of at least 1"
            )
