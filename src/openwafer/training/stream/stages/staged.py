"""A plan whose layers stay with the systems that compute them, and what its step takes."""

from dataclasses import dataclass, replace

from openwafer.figures import Origin
from openwafer.training.collectives.network_rates import NetworkRates
from openwafer.training.plan_record import Limit, Mode, PipelineUse, PlannedStage, PlanRecord
from openwafer.training.stream.stages.stage_execution import FlowOf
from openwafer.training.stream.stages.stage_plan import StagePlan, StageRequest


@dataclass(frozen=True)
class Staged:
    """The stages of a run.

    Attributes:
        plan: who has what.
        asked: what the stages were asked for.
        flow_of: how forwards go through the layers.
    """

    plan: StagePlan
    asked: StageRequest
    flow_of: FlowOf

    def described(
        self, whole: PlanRecord, updating: float | None, network: NetworkRates | None
    ) -> PlanRecord:
        """The plan in stages as a record.

        Args:
            whole: the plan of one system that has all stages.
            updating: seconds in which it updates all weights; ``None`` where its step has no time.
            network: rates between the systems; ``None`` leaves messages out.
        """
        plan, asked = self.plan, self.asked
        pipeline = PipelineUse(
            self._replica(0),
            sum(asked.blocks),
            plan.num_replicas,
            self._replica(plan.num_replicas - 1) if plan.num_replicas > 1 else (),
        )
        seconds, limit = _time(whole, pipeline, updating, network)
        held = [stage.total_bytes for stage in (*pipeline.stages, *pipeline.others)]
        budget = Origin.GIVEN if asked.budget_bytes else Origin.MEASURED
        return replace(
            whole,
            mode=Mode.PIPELINED,
            systems=plan.num_ranks,
            device_budget_bytes=asked.budget_bytes or min(asked.rooms.equal_bytes),
            predicted_peak_bytes=max(held),
            predicted_host_bytes=None,
            predicted_step_seconds=seconds,
            step_limit=limit,
            pipeline=pipeline,
            stores=None,
            origins={**whole.origins, "device_budget_bytes": budget},
        )

    def _replica(self, replica: int) -> tuple[PlannedStage, ...]:
        spans, asked = self.plan.spans, self.asked
        seconds = [sum(asked.seconds[call] for call in span) for span in spans]
        return tuple(
            PlannedStage(
                first=asked.flow.calls[span.start].layer,
                last=asked.flow.calls[span.stop - 1].layer,
                share=seconds[number] / sum(seconds),
                **vars(asked.needs(number, span, replica)),
            )
            for number, span in enumerate(spans)
        )


def _time(
    whole: PlanRecord, pipeline: PipelineUse, updating: float | None, network: NetworkRates | None
) -> tuple[float | None, Limit | None]:
    """Seconds of a step and what limits it."""
    alone = whole.predicted_step_seconds
    if alone is None or updating is None:
        return None, None
    computing = alone - updating
    seconds = stage_seconds(pipeline, computing, updating, network)
    passes_longest = seconds > 2 * stage_seconds(pipeline, computing, updating, None)
    return seconds, Limit.NETWORK if passes_longest else whole.step_limit


def stage_seconds(
    pipeline: PipelineUse, computing: float, updating: float, network: NetworkRates | None
) -> float:
    """Seconds of a step.

    A micro-batch goes through all stages, and the others of its replica follow it through the
    slowest. Then each stage updates its weights; of several replicas, gradients go along the chain
    before, and new weights behind, while nothing is computed.

    Args:
        pipeline: the stages.
        computing: seconds in which one system runs all micro-batches forward and backward.
        updating: seconds in which it updates all weights.
        network: rates between the systems; ``None`` leaves messages out.
    """
    fewest = pipeline.micro_batches // pipeline.replicas
    turns = []
    for stage in pipeline.stages:
        turn = stage.share * computing / pipeline.micro_batches
        if network is not None:
            turn += stage.passing_bytes / fewest / network.weights
        turns.append(turn)
    largest = max(stage.weights_bytes for stage in pipeline.stages)
    seconds = sum(turns) + (pipeline.block - 1) * max(turns)
    seconds += updating * largest / sum(stage.weights_bytes for stage in pipeline.stages)
    if network is not None and pipeline.replicas > 1:
        seconds += largest / network.gradients + largest / network.weights
    return seconds
