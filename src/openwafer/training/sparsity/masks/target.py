"""How many weights are kept at which step: a sparsity over the steps, for a structure."""

import math
from dataclasses import dataclass
from functools import lru_cache

from openwafer.diagnostics import error
from openwafer.training.sparsity.masks.schedules import AtSteps, Constant, Schedule, Updates
from openwafer.training.sparsity.masks.structures import (
    NOfM,
    Shape,
    Structure,
    Unstructured,
    num_kept,
)

NO_UPDATES = AtSteps(())
# A cosine that comes down to 0 ends a little above or below it.
NEARLY_ZERO = 1e-12


def value_at(schedule: Schedule, updates: Updates, step: int) -> float:
    """Value of `schedule` at the update behind `step` training steps."""
    found = schedule(step, updates.num_until(step))
    return 0.0 if abs(found) < NEARLY_ZERO else found


@dataclass(frozen=True)
class Target:
    """What sparsity a weight has, when that changes, and what is kept or dropped together."""

    sparsity: Schedule
    updates: Updates = NO_UPDATES
    structure: Structure = Unstructured()  # noqa: RUF009 - frozen, and without fields

    def sparsity_at(self, step: int) -> float:
        """Sparsity of the mask that an update behind `step` training steps leaves.

        Raises:
            OpenwaferError: ``sparsity-range`` where it is not in [0, 1).
        """
        found = value_at(self.sparsity, self.updates, step)
        if not 0 <= found < 1:
            raise error(
                "sparsity-range",
                f"expected a sparsity in [0, 1), found {found:g} at step {step} of {self.sparsity}",
                help="let updates stop before that step, or change the schedule",
            )
        return found

    def num_units(self, step: int, shape: Shape) -> int:
        """Units that each group keeps behind the update of `step`."""
        return num_kept(self.sparsity_at(step), self.structure.grid(shape)[1])

    def num_kept(self, step: int, shape: Shape) -> int:
        """Weights of a weight of `shape` that are kept behind the update of `step`."""
        return self.structure.num_weights(self.num_units(step, shape), shape)

    def changes(self, shape: Shape, num_steps: int) -> tuple[tuple[int, int], ...]:
        """Steps at which the number kept changes, and the new number; the first step is 0.

        Args:
            num_steps: training steps of the run; an update behind the last one counts.

        Raises:
            OpenwaferError: ``sparsity-range`` where a sparsity is not in [0, 1) at an update.
        """
        return _changes(self, shape, num_steps)

    def capacity(self, shape: Shape, num_steps: int) -> int:
        """Largest number of weights that is ever kept in a run of `num_steps` training steps."""
        return max(number for _, number in self.changes(shape, num_steps))

    def require_pattern(self, name: str, shape: Shape, num_steps: int) -> None:
        """Raise ``mask-pattern`` unless the sparsest mask keeps the n of every m, and no fewer."""
        if not isinstance(self.structure, NOfM):
            return
        highest = 1 - self.structure.n / self.structure.m
        fewest = min(number for _, number in self.changes(shape, num_steps))
        least = fewest * self.structure.m // math.prod(shape)
        if least != self.structure.n:
            raise error(
                "mask-pattern",
                f"{name} is to be {self.structure}, and its sparsity keeps {least} of "
                f"{self.structure.m} at its highest",
                help=f"let the sparsity reach {highest:g}, and no more",
            )


@lru_cache(maxsize=1000)
def _changes(target: Target, shape: Shape, num_steps: int) -> tuple[tuple[int, int], ...]:
    found = [(0, target.num_kept(0, shape))]
    # A schedule may be asked at millions of steps, for hundreds of weights of few shapes.
    for step in () if isinstance(target.sparsity, Constant) else target.updates.until(num_steps):
        number = target.num_kept(step, shape)
        if number != found[-1][1]:
            found.append((step, number))
    return tuple(found)


def require_capacity(
    target: Target, name: str, shape: Shape, num_steps: int, num_reserved: int
) -> None:
    """Raise ``sparsity-capacity`` where a schedule will keep more weights than have room.

    Args:
        name: of the parameter.
        num_reserved: weights that the store has room for.
    """
    for step, number in target.changes(shape, num_steps):
        if number > num_reserved:
            raise error(
                "sparsity-capacity",
                f"{name} keeps {number} weights from step {step} on, and {num_reserved} have room",
                help="begin a new run with this schedule, or let the sparsity stay at least "
                f"{1 - num_reserved / math.prod(shape):g}",
            )
