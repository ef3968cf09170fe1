"""A training step of which each system computes one stage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from openwafer.training.data import Batch
from openwafer.training.session.allocator import keeping_freed_memory
from openwafer.training.session.config import RunConfig
from openwafer.training.session.forward import ModelForward, model_inputs
from openwafer.training.session.learning_rates import LearningRates
from openwafer.training.session.pipelined.messages import BegunPass, Settled
from openwafer.training.session.seeding import seed_micro_batch
from openwafer.training.session.step_root import weigh
from openwafer.training.session.systems import Systems, even_blocks
from openwafer.training.session.trainer import CHECK_EVERY, Trainer
from openwafer.training.step import GradientReport, NotFiniteError
from openwafer.training.stream.stages.stage_execution import StageExecution
from openwafer.training.stream.stages.stage_plan import StagePlan


@dataclass(frozen=True)
class _Report:
    """What one system knows of a pass, as the others get it.

    Attributes:
        losses: of its replica's micro-batches, in the last stage.
        names: of weights that have a gradient here.
        gradients: what it knows of those.
    """

    losses: Sequence[float]
    names: Sequence[str]
    gradients: GradientReport


def block_of(plan: StagePlan, rank: int, num: int) -> range:
    """Which of so many micro-batches are those of a rank's replica."""
    return even_blocks(num, plan.num_replicas)[plan.replica_of(rank)]


class StageTrainer(Trainer):
    """Takes the steps of one stage; see :class:`Trainer`.

    The system that leads calls it as any trainer. The others call :meth:`follow` and :meth:`settle`
    when they are told.
    """

    def __init__(
        self,
        model: nn.Module,
        execution: StageExecution,
        rates: LearningRates,
        config: RunConfig,
        systems: Systems,
    ) -> None:
        super().__init__(model, execution, rates, config, systems)
        self._joined = systems
        self._stage = execution
        systems.replicas.digests.where = execution.plan.where(systems.rank)
        self._block = partial(block_of, execution.plan, systems.rank)
        # Weights of other systems that have a gradient in the step under way.
        self._elsewhere: list[str] = []

    def run(self, number: int, batches: Sequence[Batch]) -> Sequence[float]:
        """See :class:`Step`."""
        self.rates.set(number)
        begun = BegunPass(
            number,
            self.gradients.scale,
            number % CHECK_EVERY == 0,
            inputs=tuple(model_inputs(self._model, batch) for batch in batches),
            num_targets=tuple(batch.num_targets for batch in batches),
        )
        self.num_tokens = sum(batch.num_tokens for batch in batches)
        with self._joined.step(begun):
            losses = self._compute(begun)
        for index, loss in enumerate(losses):
            if not math.isfinite(loss):
                raise NotFiniteError(f"the loss of micro-batch {index} is {loss}")
        pairs = zip(losses, begun.shares, strict=True)
        self.loss = math.fsum(loss * share for loss, share in pairs)
        return losses

    def follow(self, begun: BegunPass) -> None:
        """Compute this system's stage of a step."""
        self.rates.set(begun.step)
        self.gradients.begin(begun.loss_scale)
        with self._joined.measured(begun):
            self._compute(begun)
        self._elsewhere.clear()

    def settle(self, settled: Settled) -> None:
        """Apply or forget what :meth:`follow` has computed."""
        super().apply(settled.coefficient)

    def _compute(self, begun: BegunPass) -> Sequence[float]:
        """Run the pass, and let all systems know of it; returns the losses."""
        block = self._block(len(begun.inputs))
        forwards = [ModelForward(self._model, begun.inputs[index]) for index in block]
        shares = iter(begun.shares[block.start : block.stop])

        def root(losses: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return [weigh(loss, next(shares), begun.loss_scale) for loss in losses]

        def seed(index: int) -> None:
            seed_micro_batch(self._config.seed, begun.step, block.start + index)

        with keeping_freed_memory():
            losses = self._execution.run(forwards, root, seed)
        if begun.checks_weights:
            self._joined.replicas.digests.last = self._stage.digests()
        return self._exchange(losses)

    def _exchange(self, losses: Sequence[float]) -> Sequence[float]:
        names = [name for name, one in self._model.named_parameters() if one.grad is not None]
        own = _Report(losses, names, self.gradients.report)
        reports = self._joined.gathered(own, "what it knows of its pass")
        # In the order of the micro-batches, as the replicas have theirs.
        all_losses: list[float] = []
        for rank, report in enumerate(reports):
            assert isinstance(report, _Report)
            self.gradients.add(report.gradients)
            if rank != self._joined.rank:
                self._elsewhere += report.names
            all_losses += report.losses
        return all_losses

    def apply(self, coefficient: float | None) -> None:
        """See :class:`Step`."""
        with self._joined.doing(Settled(coefficient)):
            super().apply(coefficient)
        if coefficient is not None:
            self._count(self._elsewhere)
        self._elsewhere.clear()

    def _count(self, elsewhere: Sequence[str]) -> None:
        """Know how often the weights of others have been updated, as checkpoints tell."""
        updater = self._execution.updater
        for name in filter(updater.trains, elsewhere):
            updater.count(name, updater.counts.steps_applied - 1)

    def abandon(self) -> None:
        """See :class:`Step`."""
        self._elsewhere.clear()
        with self._joined.doing(Settled(None)):
            super().abandon()
