"""Runs steps of which each system computes one stage.

The system that leads has the first stage, the tokens and the checkpoints. It tells the others.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.training.data import Batch
from openwafer.training.session.allocator import keeping_freed_memory
from openwafer.training.session.building import (
    build_hollow_model,
    make_optimizers,
    make_updater,
    make_workload,
    plan_input,
)
from openwafer.training.session.config import RunConfig
from openwafer.training.session.forward import Inputs, ModelForward, model_inputs, seed_micro_batch
from openwafer.training.session.optimizers import LearningRates
from openwafer.training.session.pipelined.plan import Flows, as_one_system
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_run import SavedRun, to_restore
from openwafer.training.session.systems import BegunStep, Systems, even_blocks
from openwafer.training.session.trainer import CHECK_EVERY, Trainer, weigh
from openwafer.training.step import GradientReport, NotFiniteError
from openwafer.training.store import ParameterStore, Part, StoreOptions, Tier, load_checkpoint
from openwafer.training.store.parameter_store import closed_on_error
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.execute.execution import StepContext
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.stream.link.updates import UpdateCounts, Updater
from openwafer.training.stream.plan.workload import Workload, autocast
from openwafer.training.stream.records import write_weights
from openwafer.training.stream.schedule import UpdateTiming
from openwafer.training.stream.stages.flow import FlowOf
from openwafer.training.stream.stages.stage_execution import JoinedStages, StageExecution
from openwafer.training.stream.stages.stage_plan import StagePlan
from openwafer.training.systems.owner import LendParts, Owners, TakeParts, serve


@dataclass(frozen=True)
class BegunStages:
    """A run that begins or goes on; the leader fills the stores.

    Attributes:
        config: of the run.
        vocab_size: token ids of its tokenizer.
        stages: who has what.
        counts: of the updates so far.
    """

    config: RunConfig
    vocab_size: int
    stages: StagePlan
    counts: UpdateCounts


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
class Settled:
    """What becomes of the gradients of a pass: multiplied and applied, or forgotten for None."""

    coefficient: float | None


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


@dataclass(frozen=True)
class StageParts:
    """What a stage is made of.

    Attributes:
        config: of the run.
        workload: of a step, with the model.
        updater: of all weights.
        device: where the stage runs.
        stages: who has what.
        flow_of: how forwards go through the layers.
    """

    config: RunConfig
    workload: Workload
    updater: Updater
    device: Device
    stages: StagePlan
    flow_of: FlowOf

    def context(self) -> StepContext:
        """What steps run under."""
        casting = partial(autocast, self.device.torch_device, self.workload.autocast_dtype)
        return StepContext(UpdateTiming.ON_FETCH, casting)


class StageOfSystem(StageExecution):
    """The stage of one system, while it is in the run."""

    def __init__(self, parts: StageParts, store: ParameterStore, systems: Systems) -> None:
        self._systems, self._config = systems, parts.config
        super().__init__(
            parts.workload.model,
            store,
            parts.updater,
            parts.device,
            parts.context(),
            _joined(parts.stages, systems, parts.flow_of),
        )

    def trainer(self, optimizers: Sequence[Optimizer]) -> StageTrainer:
        """What runs the steps."""
        rates = LearningRates(optimizers, self._config)
        return StageTrainer(self._model, self, rates, self._config, self._systems)

    def share_evaluation(self, begun: BegunEvaluation) -> list[torch.Tensor]:
        """Run this stage of its replica's forwards without gradients; returns all losses."""
        model, was_training = self._model, self._model.training
        model.train(begun.is_training)
        block = block_of(self.plan, self._systems.rank, len(begun.inputs))
        losses = super().evaluate([ModelForward(model, begun.inputs[n]) for n in block])
        model.train(was_training)
        found: list[torch.Tensor] = []
        for each in self._systems.gathered(losses, "the losses of an evaluation"):
            assert isinstance(each, list)
            found += each
        return found


def _joined(plan: StagePlan, systems: Systems, flow_of: FlowOf) -> JoinedStages:
    """Connect the systems of a replica, and those that have the same stage."""
    passing, rank = systems.replicas, systems.rank
    pipeline, alike = plan.pipeline_of(rank), plan.alike(rank)
    stages = systems.part(f"pipeline-{plan.replica_of(rank)}", pipeline, passing.weights)
    if plan.num_replicas == 1:
        return JoinedStages(plan, stages, None, flow_of)
    here = f"stage-{plan.stage_of(rank)}"
    replicas = replace(
        passing,
        weights=systems.part(f"weights-{here}", alike, passing.weights),
        gradients=systems.part(f"gradients-{here}", alike, passing.gradients),
    )
    return JoinedStages(plan, stages, replicas, flow_of)


class LeadingStage(StageOfSystem):
    """The first stage, which tells the others; see :class:`Execution`."""

    def __init__(self, parts: StageParts, store: ParameterStore, systems: Systems) -> None:
        super().__init__(parts, store, systems)
        owners = Owners(systems.control, parts.stages.owners)
        self.records = owners.over(store, parts.stages.all_layouts)

    def evaluate(
        self, forwards: Sequence[Forward], *, may_repeat: bool = True
    ) -> list[torch.Tensor]:
        """See :class:`Execution`."""
        inputs = [one.inputs for one in forwards if isinstance(one, ModelForward)]
        assert len(inputs) == len(forwards)
        begun = BegunEvaluation(inputs, self._model.training)
        with self._systems.doing(begun):
            return self.share_evaluation(begun)


def lead_stages(
    systems: Systems,
    planned: Planned,
    begun: BegunStages,
    saved_run: SavedRun | None,
    folder: RunFolder,
    weights: Mapping[str, torch.Tensor],
) -> LeadingStage:
    """Begin a run in stages, or go on with it.

    Args:
        systems: those of the run, which this one leads.
        planned: the run, whose stages are those that begin.
        begun: what the others are told.
        saved_run: where to go on; ``None`` begins with the weights.
        folder: of the run.
        weights: initial ones, by name.
    """
    assert planned.stages is not None
    config, stages, updater = begun.config, begun.stages, planned.updater
    updater.counts = begun.counts.copy()
    checkpoint = None
    if saved_run is not None:
        checkpoint = to_restore(saved_run, stages.all_layouts, folder)
    else:
        # Nothing was saved, so what lies in the store's place was never promised to anyone.
        folder.delete_store()
    systems.begin(begun)
    flow_of = planned.stages.flow_of
    parts = StageParts(config, planned.workload, updater, planned.device, stages, flow_of)
    with ExitStack() as stack:
        store = stack.enter_context(store_of(stages, systems))
        execution = LeadingStage(parts, store, systems)
        stack.callback(execution.close)
        if checkpoint is not None:
            load_checkpoint(checkpoint, execution.records)
        else:
            write_weights(execution.records, weights)
            updater.initialise(execution.records)
        stack.pop_all()
    return execution


def store_of(stages: StagePlan, systems: Systems) -> ParameterStore:
    """The store of a system's stage, in memory alone; the leader fills it."""
    layouts = stages.layouts_of(systems.rank)
    placement = {(name, part): Tier.DRAM for name in layouts for part in Part}
    return ParameterStore.create(layouts.values(), placement, folder=None, ring_bytes=0)


@contextmanager
def following_stages(systems: Systems, begun: BegunStages) -> Iterator[Callable[[object], object]]:
    """Context of a run on this system; does what the system that leads tells.

    Raises:
        OpenwaferError: ``rank-lost``, or whatever the model and the device meet.
    """
    config, alone = begun.config, as_one_system(begun.config)
    with TemporaryDirectory(prefix="openwafer-") as scratch:
        model = build_hollow_model(alone, begun.vocab_size, Path(scratch))
    optimizers = make_optimizers(model, alone, begun.vocab_size)
    updater = make_updater(optimizers, model, alone)
    updater.counts = begun.counts
    workload = make_workload(model, alone, begun.vocab_size)
    device = plan_input(config, StoreOptions()).make_device()
    flows = Flows(workload, begun.stages.layers)
    parts = StageParts(config, workload, updater, device, begun.stages, flows)
    with closed_on_error(store_of(begun.stages, systems)) as store:
        execution = StageOfSystem(parts, store, systems)
    try:
        yield partial(_do, systems, execution, execution.trainer(optimizers))
    finally:
        execution.close()
        store.close()


def _do(systems: Systems, execution: StageOfSystem, trainer: StageTrainer, told: object) -> None:
    match told:
        case BegunPass():
            trainer.follow(told)
        case Settled():
            trainer.settle(told)
        case BegunEvaluation():
            execution.share_evaluation(told)
        case LendParts() | TakeParts():
            serve(execution.store, systems.control.group, told)
        case unknown:
            raise AssertionError(unknown)
