"""How many samples each step of a run takes, and how many all steps before it took."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from openwafer.config import InvalidFieldError


@dataclass(frozen=True)
class SizeChange:
    """A batch size that holds from a step on.

    Attributes:
        from_step: the first step of that size, counted from 0.
        size: samples of a step.
    """

    from_step: int
    size: int


@dataclass(frozen=True)
class BatchSizes:
    """Batch sizes of all steps.

    Attributes:
        first: samples of a step before the first change.
        changes: later sizes, in the order of their steps.

    Raises:
        InvalidFieldError: ``schedule`` with a step that is not behind the one before, or a size
            below 1 or equal to the one before.
    """

    first: int
    changes: tuple[SizeChange, ...] = ()

    def __post_init__(self) -> None:
        for before, change in pairwise((SizeChange(0, self.first), *self.changes)):
            if change.from_step <= before.from_step:
                raise InvalidFieldError(
                    "schedule",
                    f"expected a from_step behind step {before.from_step}, found "
                    f"{change.from_step}",
                    help="write the changes in the order of their steps, the first at step 1 or "
                    "later: batch.size holds before it",
                )
            if change.size < 1:
                raise InvalidFieldError(
                    "schedule",
                    f"expected a size of at least 1 from step {change.from_step} on, found "
                    f"{change.size}",
                )
            if change.size == before.size:
                raise InvalidFieldError(
                    "schedule",
                    f"the size from step {change.from_step} on is {change.size}, as before",
                    help="leave that change out",
                )

    @property
    def all(self) -> tuple[int, ...]:
        """Every size, in the order of steps."""
        return (self.first, *(change.size for change in self.changes))

    def at(self, step: int) -> int:
        """Samples of a step."""
        held = [change.size for change in self.changes if change.from_step <= step]
        return held[-1] if held else self.first

    def before(self, step: int) -> int:
        """Samples of all steps before one: its position in the stream of samples."""
        return sum(size * steps for size, steps in self.spans(step))

    def spans(self, steps: int) -> Iterator[tuple[int, int]]:
        """Each size with the number of the first `steps` steps that have it."""
        starts = [0, *(min(change.from_step, steps) for change in self.changes), steps]
        for size, (start, end) in zip(self.all, pairwise(starts), strict=True):
            if start < end:
                yield size, end - start

    def until(self, step: int) -> "BatchSizes":
        """The changes that the steps before `step` know of."""
        return BatchSizes(self.first, tuple(c for c in self.changes if c.from_step < step))

    def __str__(self) -> str:
        changes = [f"{change.size} from step {change.from_step} on" for change in self.changes]
        return ", ".join([f"{self.first} samples a step", *changes])
