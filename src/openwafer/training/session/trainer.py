"""One training step: forward, backward, the exact clip, the loss scale, the update."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import nn

from openwafer.training.data import Batch
from openwafer.training.methods.seam import MethodRun
from openwafer.training.session.allocator import keeping_freed_memory
from openwafer.training.session.config import RunConfig
from openwafer.training.session.forward import forward_of
from openwafer.training.session.gradient_norm import GradientNorm
from openwafer.training.session.learning_rates import LearningRates
from openwafer.training.session.loss_scale import LossScaler
from openwafer.training.session.owned_records import GradientReport, gathered_reports
from openwafer.training.session.precision import Precision
from openwafer.training.session.seeding import seed_micro_batch
from openwafer.training.session.speculation import Outcome, Speculation, require_same
from openwafer.training.session.step_root import StepRoot
from openwafer.training.session.systems import BegunStep, NotFiniteError, Systems
from openwafer.training.store.update_rules.clipping import clip_coefficient
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.systems.owner import ApplyStep

CHECK_EVERY: Final = 100
"""Steps between two in which systems compare their weights."""


@dataclass(frozen=True)
class Decision:
    """What is to become of a step's gradients.

    Attributes:
        grad_norm: global norm before clipping; ``None`` where nothing clips.
        coefficient: multiplies the gradients when they are applied; ``None`` discards them,
            because those of an fp16 step overflowed.
    """

    grad_norm: float | None
    coefficient: float | None


class Trainer:
    """Runs the steps of a run.

    Args:
        model: what ``execution`` runs.
        execution: streamed or resident.
        rates: of the optimizers' parameter groups.
        config: of the run.
        speculation: undoes updates; ``None`` where a store cannot.
        methods: of the run.

    Attributes:
        systems: those of the run; ``None`` where there is one.
        scaler: the loss scale of an fp16 run.
        loss, num_tokens: of the last step, over all systems.
    """

    def __init__(
        self,
        model: nn.Module,
        execution: Execution,
        rates: LearningRates,
        config: RunConfig,
        speculation: Speculation | None = None,
        methods: Sequence[MethodRun] = (),
    ) -> None:
        self.scaler = LossScaler(config.loss_scale) if config.precision is Precision.FP16 else None
        self._model = model
        self._execution = execution
        self._rates = rates
        self._config = config
        self._speculation = speculation
        self.systems: Systems | None = None
        self.num_tokens = self._step = 0
        self._pass: Callable[[], Outcome] = lambda: Outcome((), None)
        self._outcome = Outcome((), None)
        self.loss = math.nan
        self._total: torch.Tensor | None = None
        names = [name for name, _ in model.named_parameters()]
        self._norm = GradientNorm(names, execution.updater.norm_dtype)
        execution.watch_gradients(self._watch)
        self._methods = methods
        for method in methods:
            method.attach(execution)

    def learning_rate(self, step: int) -> float:
        """Learning rate of the first group at a step."""
        return self._rates.at(step)

    def forward_backward(self, step: int, batches: Sequence[Batch]) -> None:
        """Run the micro-batches of a step, or this system's.

        Raises:
            NotFiniteError: a loss is; the store is as it was before the step.
        """
        self._rates.set(step)
        self._step = step
        if self._speculation is not None:
            self._speculation.begin_step()
        self._pass = partial(self._run, step, batches)
        self._outcome = self._pass()

    def _run(self, step: int, batches: Sequence[Batch]) -> Outcome:
        device = self._execution.device
        forwards: Sequence[Forward] = [
            forward_of(self._model, batch, device.torch_device) for batch in batches
        ]
        for method in self._methods:
            forwards = method.forwards(forwards)
        scale = self._scale
        num_micro_batches = self._config.batch.micro_batches_at(step)
        root = StepRoot(batches, num_micro_batches, scale, self.systems, device)
        seed = partial(seed_micro_batch, self._config.seed, step)
        begun: AbstractContextManager[None] = nullcontext()
        if self.systems is not None:
            begun = self.systems.step(BegunStep(step, scale, step % CHECK_EVERY == 0))
        with begun, keeping_freed_memory():
            # The leader has the first block: its micro-batches count from 0.
            self._execution.run(forwards, root, seed)
            self._take_reports()
        self.num_tokens = sum(report.num_tokens for report in root.reports)
        self.loss = root.loss
        self._total = None if self._config.clip_norm is None else self._norm.total()
        norm = None if self._total is None else self._total.item()
        return Outcome(root.losses, norm)

    def _take_reports(self) -> None:
        """Take what other systems know of the gradients of their records."""
        if self.systems is None or not self._config.shares_store:
            return
        for report in gathered_reports(self.systems, GradientReport()):
            self._norm.take(report.norms)
            if report.has_overflowed and self.scaler is not None:
                self.scaler.note_overflow()

    def decide(self) -> Decision:
        """Decide about the gradients, which are complete, and move the loss scale.

        Raises:
            NotFiniteError: their norm is NaN or infinite and no loss scale is at work.
        """
        decision = self._decision()
        for method in self._methods:
            method.end_step(self._scale, self.num_tokens)
        if self.scaler is not None:
            # The scale moves once the step is settled: a pass that is run again has the old one.
            self.scaler.end_step()
        return decision

    @property
    def _scale(self) -> float:
        return 1.0 if self.scaler is None else self.scaler.scale

    def _decision(self) -> Decision:
        clip_norm, norm = self._config.clip_norm, self._outcome.norm
        if self.scaler is not None and self.scaler.has_overflowed:
            self._settle(None)
            return Decision(norm, None)
        if clip_norm is None or self._total is None or norm is None:
            self._settle(1.0)
            return Decision(None, 1.0)
        if not math.isfinite(norm):
            raise NotFiniteError(f"the global norm of the gradients is {norm}")
        coefficient = clip_coefficient(self._total, clip_norm)
        self._settle(coefficient)
        return Decision(norm, coefficient)

    def _settle(self, coefficient: float | None) -> None:
        """Undo updates that were made at once and are not right, and make the right ones."""
        speculation = self._speculation
        if speculation is None:
            return
        is_undone = coefficient != 1.0
        if speculation.is_under_way and coefficient is None:
            speculation.undo()
        elif speculation.is_under_way and is_undone:
            assert coefficient is not None
            speculation.begin_again(coefficient)
            require_same(self._outcome, self._pass())
        speculation.end_step(is_undone=is_undone)

    @property
    def undone(self) -> tuple[bool, ...]:
        """Of the last steps, whether updates made at once were undone."""
        return () if self._speculation is None else self._speculation.undone

    def remember(self, undone: tuple[bool, ...]) -> None:
        """Take over what :attr:`undone` of another process was."""
        if self._speculation is not None:
            self._speculation.undone = undone

    def apply(self, decision: Decision) -> None:
        """Apply or discard the gradients, on all systems."""
        if self.systems is not None and self._config.shares_store:
            steps_applied = self._execution.updater.counts.steps_applied + 1
            is_hooked = self._execution.is_hook_due(steps_applied)
            coefficient, updater = decision.coefficient, self._execution.updater
            rules = None if coefficient is None else updater.this_step(coefficient)
            self.systems.ask(ApplyStep(rules, self._step + 1, is_hooked))
        if decision.coefficient is None:
            self._execution.discard_gradients()
        else:
            self._execution.complete_step(decision.coefficient)

    def abandon_step(self) -> None:
        """Forget a step that raised before it was applied."""
        if self._speculation is not None:
            self._speculation.undo()
        self._execution.discard_gradients()
        if self.scaler is not None:
            self.scaler.abandon_step()

    def _watch(self, gradients: Mapping[str, torch.Tensor]) -> None:
        if self.scaler is not None:
            self.scaler.unscale(gradients.values())
        if self._config.clip_norm is not None:
            self._norm.add(gradients)
