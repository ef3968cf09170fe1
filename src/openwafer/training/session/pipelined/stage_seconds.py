"""What a step in stages takes, from what its parts take on one system."""

from openwafer.training.collectives.network_rates import NetworkRates
from openwafer.training.plan_record import PipelineUse


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
