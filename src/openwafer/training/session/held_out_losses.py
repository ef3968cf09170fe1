"""What a run makes of its held-out losses: whether it goes on, and which checkpoint is the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from openwafer.training.metrics import ValidationPoint
from openwafer.training.session.config_sections import EarlyStoppingConfig
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.store.checkpoint import step_named


@dataclass
class HeldOutLosses:
    """Those of a run so far; all that is decided here follows from validation.jsonl alone.

    So a run that was killed decides as the unbroken one, with nothing else to save.

    Attributes:
        stopping: when the run ends early; ``None`` where it never does.
        kept: the loss of the best checkpoint; infinite where there is none.
        last_step: of the newest evaluation, counted from 0; -1 before the first.
    """

    stopping: EarlyStoppingConfig | None
    kept: float = inf
    last_step: int = -1
    _lowest: float = inf
    _num_without: int = 0

    def add(self, point: ValidationPoint) -> None:
        """Take the next evaluation."""
        self.last_step = point.step
        if self.stopping is None:
            return
        # A loss that is not a number is no gain.
        if point.loss < self._lowest - self.stopping.min_delta:
            self._lowest, self._num_without = point.loss, 0
        else:
            self._num_without += 1

    @property
    def is_spent(self) -> bool:
        """Whether the run has waited for a lower loss as long as it shall."""
        return self.stopping is not None and self._num_without >= self.stopping.patience

    @property
    def reason(self) -> str:
        """Why a spent run ends, for people."""
        assert self.stopping is not None
        return (
            f"the held-out loss has not fallen by more than {self.stopping.min_delta:g} in "
            f"{self._num_without} evaluations; its lowest is {self._lowest:.4f}"
        )


def losses_so_far(
    folder: RunFolder, points: Sequence[ValidationPoint], stopping: EarlyStoppingConfig | None
) -> HeldOutLosses:
    """The losses of a run that begins or goes on.

    Args:
        folder: of the run.
        points: the evaluations behind it, in the order of their steps.
        stopping: of its config.
    """
    found = HeldOutLosses(stopping)
    for point in points:
        found.add(point)
    best = folder.best_checkpoint
    if best is not None:
        # A damaged one is told to who reads it, not to who goes on from another.
        last_step = step_named(best) - 1
        losses = (point.loss for point in points if point.step == last_step)
        found.kept = next(losses, inf)
    return found
