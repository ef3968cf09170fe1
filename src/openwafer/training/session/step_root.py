"""What backward starts from: the losses of a step, weighed by their shares of its targets."""

import math
from collections.abc import Sequence

import torch

from openwafer.training.data import Batch
from openwafer.training.session.systems import MicroBatchReport, Systems


class NotFiniteError(Exception):
    """A loss or a gradient norm is NaN or infinite; nothing of its step was applied.

    Attributes:
        what: the loss of which micro-batch, or the norm, with its value.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class StepRoot:
    """Turns the losses of micro-batches into finite losses times their shares of the step.

    Args:
        batches: this system's micro-batches.
        num_micro_batches: of the step, over all systems.
        scale: multiplies all losses.
        systems: those of the run; ``None`` where there is one.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        num_micro_batches: int,
        scale: float,
        systems: Systems | None,
    ) -> None:
        # Taken here: the device counts what is computed in a pass.
        self._counts = [(batch.num_targets, batch.num_tokens) for batch in batches]
        self._num_micro_batches = num_micro_batches
        self._scale = scale
        self._systems = systems
        self._found: list[float] = []
        self._reports: list[MicroBatchReport] = []

    def __call__(self, losses: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Weigh losses of this system; with several systems they are all that it has.

        Raises:
            NotFiniteError: one of them, or another system's, is not finite.
        """
        first = len(self._found)
        self._found.extend(loss.item() for loss in losses)
        if self._systems is not None:
            own = self._own_reports()
            self._reports = self._systems.exchange(own, self._num_micro_batches)
            first = self._systems.block(self._num_micro_batches).start
        for index, report in enumerate(self._reports or self._own_reports()):
            if not math.isfinite(report.loss):
                raise NotFiniteError(f"the loss of micro-batch {index} is {report.loss}")
        return [self._weighed(loss, first + index) for index, loss in enumerate(losses)]

    def _own_reports(self) -> list[MicroBatchReport]:
        return [
            MicroBatchReport(loss, num_targets, num_tokens)
            for (num_targets, num_tokens), loss in zip(self._counts, self._found, strict=False)
        ]

    @property
    def losses(self) -> tuple[float, ...]:
        """Of all micro-batches of the step, when the pass is over."""
        return tuple(report.loss for report in self._reports or self._own_reports())

    @property
    def num_tokens(self) -> int:
        """Of all micro-batches of the step, when the pass is over."""
        return sum(report.num_tokens for report in self._reports or self._own_reports())

    @property
    def shares(self) -> list[float]:
        """Of each micro-batch of the step in the mean over its targets."""
        if self._reports:
            targets = [report.num_targets for report in self._reports]
        else:
            targets = [num_targets for num_targets, _ in self._counts]
        return [count / sum(targets) for count in targets]

    def _weighed(self, loss: torch.Tensor, index: int) -> torch.Tensor:
        share = self.shares[index]
        num_equal = round(1 / share)
        # A division, as the plain loop has: 1 / 3 is rounded, and the product once more.
        weighed = loss / num_equal if share == 1 / num_equal else loss * share
        return weighed if self._scale == 1.0 else weighed * self._scale
