"""The time of a step in stages, against a walk of micro-batches from stage to stage."""

from collections.abc import Sequence

import pytest

from openwafer.training.collectives.network_rates import NetworkRates
from openwafer.training.plan_record import PipelineUse, PlannedStage
from openwafer.training.stream.stages.stage_plan import stage_seconds


def stage(share: float, weights_bytes: int = 1, passing_bytes: int = 0) -> PlannedStage:
    return PlannedStage("first", "last", weights_bytes, 0, 0, 0, passing_bytes, share)


def walked(turns: Sequence[float], num_micro_batches: int) -> float:
    """When the last micro-batch has left the last stage, each of which takes one at a time."""
    free = [0.0] * len(turns)
    for _ in range(num_micro_batches):
        now = 0.0
        for number, turn in enumerate(turns):
            now = free[number] = max(now, free[number]) + turn
    return free[-1]


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.2, 0.8), (0.5, 0.1, 0.4)])
@pytest.mark.parametrize(("micro_batches", "replicas"), [(4, 1), (4, 2), (7, 2)])
def test_micro_batches_follow_each_other_through_the_slowest_stage(
    shares: tuple[float, ...], micro_batches: int, replicas: int
) -> None:
    pipeline = PipelineUse(tuple(map(stage, shares)), micro_batches, replicas)
    turns = [share * 10.0 / micro_batches for share in shares]
    expected = walked(turns, -(-micro_batches // replicas))
    assert stage_seconds(pipeline, 10.0, 0.0, None) == pytest.approx(expected)


def test_stages_update_side_by_side() -> None:
    pipeline = PipelineUse((stage(0.5, 300), stage(0.5, 100)), 1)
    assert stage_seconds(pipeline, 10.0, 8.0, None) == pytest.approx(10.0 + 6.0)


def test_messages_take_their_time() -> None:
    network = NetworkRates(weights=10.0, gradients=5.0)
    stages = (stage(0.5, 20, passing_bytes=80), stage(0.5, 20, passing_bytes=80))
    one, two = PipelineUse(stages, 8), PipelineUse(stages, 16, replicas=2)
    # 9 turns of 80 / 8 bytes; of two replicas, gradients and weights of a stage besides.
    assert stage_seconds(one, 0.0, 0.0, network) == pytest.approx(9.0)
    assert stage_seconds(two, 0.0, 0.0, network) == pytest.approx(9.0 + 20 / 5 + 20 / 10)
