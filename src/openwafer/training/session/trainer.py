"""The steps of a run on one system, or on the one that leads several with shares of the batch."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final

import torch
from torch import nn

from openwafer.training.data import Batch
from openwafer.training.host_memory import keeping_freed_memory
from openwafer.training.methods.seam import MethodRun
from openwafer.training.session.config import RunConfig
from openwafer.training.session.config_sections import Precision
from openwafer.training.session.forward import forward_of, seed_micro_batch
from openwafer.training.session.optimizers import LearningRates
from openwafer.training.session.systems import (
    BegunStep,
    MicroBatchReport,
    Systems,
    gathered_reports,
)
from openwafer.training.step import GradientReport, NotFiniteError, Outcome, Step
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.systems.owner import Owner

CHECK_EVERY: Final = 100
"""Steps between two in which systems compare their weights."""


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


class Trainer(Step):
    """See the module.

    Args:
        model: what ``execution`` runs.
        execution: streamed or resident.
        rates: of the optimizers' parameter groups.
        config: of the run.
        systems: those of the run, which this one leads; ``None`` where there is one.
        methods: of the run.

    Attributes:
        rates: see above.
        loss, num_tokens: of the last step, over all systems.
    """

    def __init__(
        self,
        model: nn.Module,
        execution: Execution,
        rates: LearningRates,
        config: RunConfig,
        systems: Systems | None,
        methods: Sequence[MethodRun] = (),
    ) -> None:
        scaling = config.loss_scale if config.precision is Precision.FP16 else None
        super().__init__(model, execution, clip_norm=config.clip_norm, scaling=scaling)
        self.rates = rates
        self.loss, self.num_tokens = math.nan, 0
        self._number = 0
        self._model = model
        self._execution = execution
        self._config = config
        self._systems = systems
        # Systems with stores of their own know the gradients of the records that are there.
        self._sharing = systems if config.shares_store else None
        self._methods = methods
        for method in methods:
            method.attach(execution)

    def take(self, number: int, batches: Sequence[Batch], settled: Callable[[], None]) -> Outcome:

        def ended() -> None:
            for method in self._methods:
                method.end_step(self.gradients.scale, self.num_tokens)
            settled()

        return super().take(number, batches, ended)

    def run(self, number: int, batches: Sequence[Batch]) -> Sequence[float]:
        self.rates.set(number)
        self._number = number
        scale, device = self.gradients.scale, self._execution.device
        forwards: Sequence[Forward] = [
            forward_of(self._model, batch, device.torch_device) for batch in batches
        ]
        for method in self._methods:
            forwards = method.forwards(forwards)
        num_micro_batches = self._config.batch.micro_batches_at(number)
        root = StepRoot(batches, num_micro_batches, scale, self._systems, device)
        begun: AbstractContextManager[None] = nullcontext()
        if self._systems is not None:
            begun = self._systems.step(BegunStep(number, scale, number % CHECK_EVERY == 0))
        with begun, keeping_freed_memory():
            # The leader has the first block: its micro-batches count from 0.
            seed = partial(seed_micro_batch, self._config.seed, number)
            self._execution.run(forwards, root, seed)
            if self._sharing is not None:
                for report in gathered_reports(self._sharing, GradientReport()):
                    self.gradients.add(report)
        self.loss, self.num_tokens = root.loss, sum(one.num_tokens for one in root.reports)
        return root.losses

    def apply(self, coefficient: float | None) -> None:
        if self._sharing is not None:
            updater = self._execution.updater
            is_hooked = self._execution.is_hook_due(updater.counts.steps_applied + 1)
            rules = None if coefficient is None else updater.this_step(coefficient)
            steps_done = self._number + 1
            applying = partial(Owner.apply, rules=rules, steps_done=steps_done, is_hooked=is_hooked)
            self._sharing.ask(applying)
        if coefficient is None:
            self._execution.discard_gradients()
        else:
            self._execution.complete_step(coefficient)

    def abandon(self) -> None:
        self._execution.discard_gradients()
