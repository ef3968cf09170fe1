"""What backward starts from: the losses of a step, weighed by their shares of its targets."""

import math
from collections.abc import Sequence

import torch

from openwafer.training.data import Batch
from openwafer.training.session.systems import MicroBatchReport, Systems
from openwafer.training.step import NotFiniteError
from openwafer.training.stream.device.device import Device


class StepRoot:
    """Turns the losses of micro-batches into finite losses times their shares of the step.

    Args:
        batches: this system's micro-batches.
        num_micro_batches: of the step, over all systems.
        scale: multiplies all losses.
        systems: those of the run; ``None`` where there is one.
        device: makes the losses. What systems send each other of them is the host's.

    Attributes:
        reports: of all micro-batches of the step, when the pass is over.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        num_micro_batches: int,
        scale: float,
        systems: Systems | None,
        device: Device,
    ) -> None:
        # Taken here: the device counts what is computed in a pass.
        self._counts = [(batch.num_targets, batch.num_tokens) for batch in batches]
        self._num_targets = sum(num_targets for num_targets, _ in self._counts)
        self._num_micro_batches = num_micro_batches
        self._scale = scale
        self._systems = systems
        self._device = device
        self.reports: list[MicroBatchReport] = []

    def __call__(self, losses: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Weigh losses of this system; with several systems they are all that it has.

        Raises:
            NotFiniteError: one of them, or another system's, is not finite.
        """
        first = len(self.reports)
        counts = self._counts[first : first + len(losses)]
        own = [
            MicroBatchReport(loss.item(), *found)
            for loss, found in zip(losses, counts, strict=True)
        ]
        if self._systems is None:
            self.reports += own
        else:
            first = self._systems.block(self._num_micro_batches).start
            # Threads of the library keep what was sent for a moment longer.
            with self._device.host_section():
                self.reports = self._systems.exchange(own, self._num_micro_batches)
            self._num_targets = sum(report.num_targets for report in self.reports)
        for index, report in enumerate(self.reports):
            if not math.isfinite(report.loss):
                raise NotFiniteError(f"the loss of micro-batch {index} is {report.loss}")
        weighed = zip(losses, self.reports[first:], strict=False)
        return [weigh(loss, self._share(report), self._scale) for loss, report in weighed]

    @property
    def losses(self) -> tuple[float, ...]:
        """Of all micro-batches of the step, when the pass is over."""
        return tuple(report.loss for report in self.reports)

    @property
    def loss(self) -> float:
        """The mean over all targets of the step, when the pass is over."""
        return math.fsum(report.loss * self._share(report) for report in self.reports)

    def _share(self, report: MicroBatchReport) -> float:
        return report.num_targets / self._num_targets


def weigh(loss: torch.Tensor, share: float, scale: float) -> torch.Tensor:
    """A micro-batch's part of the mean loss of a step, times a scale."""
    num_equal = round(1 / share)
    # A division, as the plain loop has: 1 / 3 is rounded, and the product once more.
    weighed = loss / num_equal if share == 1 / num_equal else loss * share
    return weighed if scale == 1.0 else weighed * scale
