"""The system that leads a run in stages: it has the first stage, the tokens and the checkpoints."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.optim import Optimizer

from openwafer.training.collectives.stage_group import default_group
from openwafer.training.session.config import RunConfig
from openwafer.training.session.forward import ModelForward
from openwafer.training.session.learning_rates import LearningRates
from openwafer.training.session.pipelined.messages import BegunEvaluation, BegunStages
from openwafer.training.session.pipelined.stage_trainer import StageTrainer, block_of
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_run import SavedRun, to_restore
from openwafer.training.session.systems import Systems
from openwafer.training.store import ParameterStore, Part, Tier, load_checkpoint
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.execute.execution import StepContext
from openwafer.training.stream.execute.micro_batches import Forward
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.plan.workload import Workload, autocast
from openwafer.training.stream.records import write_weights
from openwafer.training.stream.schedule import UpdateTiming
from openwafer.training.stream.stages.stage_execution import FlowOf, JoinedStages, StageExecution
from openwafer.training.stream.stages.stage_plan import StagePlan
from openwafer.training.systems.owner import Owners


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
        self._joined = ExitStack()
        pipeline = parts.stages.pipeline_of(systems.rank)
        self._joined.enter_context(default_group(systems.meeting, pipeline))
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

    def close(self) -> None:
        """See :class:`Execution`."""
        super().close()
        self._joined.close()


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
