"""Runs steps of which each system computes one stage.

The system that leads has the first stage, the tokens and the checkpoints. It tells the others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from openwafer.training.data import Batch
from openwafer.training.host_memory import keeping_freed_memory
from openwafer.training.session.config import RunConfig
from openwafer.training.session.forward import (
    Inputs,
    ModelForward,
    checked_inputs,
    seed_micro_batch,
)
from openwafer.training.session.optimizers import LearningRates
from openwafer.training.session.systems import BegunRun, BegunStep, Systems, even_blocks
from openwafer.training.session.trainer import CHECK_EVERY, Trainer, weigh
from openwafer.training.step import GradientReport, NotFiniteError, StepGradients
from openwafer.training.store import ParameterStore
from openwafer.training.stream.execute.execution import StepContext
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.stream.replicas.replica_link import Replicas
from openwafer.training.stream.stages.flow import FlowOf
from openwafer.training.stream.stages.stage_execution import JoinedStages, StageExecution


@dataclass(frozen=True)
class BegunPass(BegunStep):
    """Forward and backward of a step.

    Attributes:
        inputs: of each micro-batch.
        num_targets: of each.
    """

    inputs: Sequence[Inputs] = ()
    num_targets: Sequence[int] = ()

    @property
    def shares(self) -> list[float]:
        """Of each micro-batch in the mean over all targets."""
        return [number / sum(self.num_targets) for number in self.num_targets]


@dataclass(frozen=True)
class BegunEvaluation:
    """Forwards without gradients.

    Attributes:
        inputs: of each.
        is_training: whether the model is in training mode.
    """

    inputs: Sequence[Inputs]
    is_training: bool


@dataclass(frozen=True)
class _Report:
    """What one system knows of a pass, as the others get it.

    Attributes:
        losses: of its replica's micro-batches, in the last stage.
        gradients: what it knows of those of its weights.
    """

    losses: Sequence[float]
    gradients: GradientReport


class StageTrainer(Trainer):
    """Takes steps of which each system computes its stage; see :class:`Trainer`."""

    def __init__(
        self, execution: "StageOfSystem", rates: LearningRates, config: RunConfig, systems: Systems
    ) -> None:
        super().__init__(execution.model, execution, rates, config, systems)
        self._joined = self._sharing = systems
        self._stage = execution

    def run(self, number: int, batches: Sequence[Batch]) -> Sequence[float]:
        self.rates.set(number)
        self._number = number
        begun = BegunPass(
            number,
            self.gradients.scale,
            number % CHECK_EVERY == 0,
            inputs=tuple(checked_inputs(self._model, batch) for batch in batches),
            num_targets=tuple(batch.num_targets for batch in batches),
        )
        self.num_tokens = sum(batch.num_tokens for batch in batches)
        with self._joined.step(begun):
            losses = self._stage.share_pass(begun, self.gradients)
        pairs = zip(losses, begun.shares, strict=True)
        self.loss = math.fsum(loss * share for loss, share in pairs)
        return losses


@dataclass(frozen=True)
class StagesOfRun(JoinedStages):
    """The same, with what a run knows of its systems.

    Attributes:
        systems: those of the run.
        seed: of the run.
    """

    systems: Systems
    seed: int


class StageOfSystem(StageExecution):
    """The stage of one system, while it is in the run; for arguments see :class:`StageExecution`.

    Attributes:
        model: of all stages.
    """

    def __init__(
        self,
        model: nn.Module,
        store: ParameterStore,
        context: StepContext,
        stages: StagesOfRun,
    ) -> None:
        super().__init__(model, store, context, stages)
        self.model = model
        self._systems, self._run_seed = stages.systems, stages.seed

    def share_pass(self, begun: BegunPass, gradients: StepGradients) -> list[float]:
        """Run this stage of its replica's micro-batches; returns the losses of all.

        Args:
            begun: the pass, which all systems run.
            gradients: get what the others know of theirs.

        Raises:
            NotFiniteError: a loss is; all systems meet it.
        """
        block = self._block(len(begun.inputs))
        forwards = [ModelForward(self.model, begun.inputs[index]) for index in block]
        shares = iter(begun.shares[block.start : block.stop])

        def root(losses: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return [weigh(loss, next(shares), begun.loss_scale) for loss in losses]

        def seed(index: int) -> None:
            seed_micro_batch(self._run_seed, begun.step, block.start + index)

        with keeping_freed_memory():
            own = self.run(forwards, root, seed)
        if begun.checks_weights:
            self._systems.replicas.digests.last = self.digests()
        losses = self._exchange(_Report(own, gradients.report), gradients)
        for index, loss in enumerate(losses):
            if not math.isfinite(loss):
                raise NotFiniteError(f"the loss of micro-batch {index} is {loss}")
        return losses

    def _exchange(self, own: _Report, gradients: StepGradients) -> list[float]:
        # In the order of the micro-batches, as the replicas have theirs.
        losses: list[float] = []
        for report in self._systems.control.gather(own, "what it knows of its pass"):
            assert isinstance(report, _Report)
            gradients.add(report.gradients)
            losses += report.losses
        return losses

    def _block(self, num: int) -> range:
        """Which of so many micro-batches are those of this system's replica."""
        replica = self.plan.replica_of(self._systems.rank)
        return even_blocks(num, self.plan.num_replicas)[replica]

    def evaluate(
        self, forwards: Sequence[Forward], *, may_repeat: bool = True
    ) -> list[torch.Tensor]:
        """See :class:`Execution`. The system that leads has the others run their stages."""
        inputs = [one.inputs for one in forwards if isinstance(one, ModelForward)]
        assert len(inputs) == len(forwards)
        begun = BegunEvaluation(inputs, self.model.training)
        with self._systems.doing(begun):
            return self.share_evaluation(begun)

    def share_evaluation(self, begun: BegunEvaluation) -> list[torch.Tensor]:
        """Run this stage of its replica's forwards without gradients; returns all losses."""
        model, was_training = self.model, self.model.training
        model.train(begun.is_training)
        block = self._block(len(begun.inputs))
        losses = super().evaluate([ModelForward(model, begun.inputs[n]) for n in block])
        model.train(was_training)
        found: list[torch.Tensor] = []
        for each in self._systems.control.gather(losses, "the losses of an evaluation"):
            assert isinstance(each, list)
            found += each
        return found


def joined(systems: Systems, begun: BegunRun, flow_of: FlowOf | None) -> Replicas:
    """How the systems of a run pass weights, gradients and activations; all of them call this.

    Args:
        systems: those of the run.
        begun: the run.
        flow_of: how forwards go through the layers, where the run has stages.
    """
    replicas = systems.replicas_by(begun.config.reduction, begun.contract)
    if begun.contract.stages is None or flow_of is None:
        return replicas
    plan, passing, rank = begun.contract.stages, systems.replicas, systems.rank
    passing.digests.where = plan.where(rank)
    pipeline, alike = plan.pipeline_of(rank), plan.alike(rank)
    group = systems.part(f"pipeline-{plan.replica_of(rank)}", pipeline, passing.weights)
    same_stage = None
    if plan.num_replicas > 1:
        here = f"stage-{plan.stage_of(rank)}"
        same_stage = replace(
            passing,
            weights=systems.part(f"weights-{here}", alike, passing.weights),
            gradients=systems.part(f"gradients-{here}", alike, passing.gradients),
        )
    stages = StagesOfRun(plan, group, same_stage, flow_of, systems, begun.config.seed)
    return replace(replicas, stage=partial(StageOfSystem, stages=stages))
