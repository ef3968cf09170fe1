"""A plan says what experts move from and to the disk, the zeros of those not used included."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.training.store.parameter_store import StoreOptions
from openwafer.training.store.transfers import Traffic
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import checkerboard
from tests.training.stream.both_loops import STREAMED, StreamedRun, on_tier, plan
from tests.training.stream.test_expert_weights import one_by_one, run_of

NUM_STEPS = 4


PACED = replace(STREAMED, store=StoreOptions(is_paced=True))


def traffic_after(run: StreamedRun) -> Traffic:
    run.execution.store.drain()
    return run.execution.store.traffic


def moved_bytes(run: StreamedRun) -> tuple[float, float]:
    """Bytes that a step reads from disk and writes to it."""
    # The first steps begin with an empty ring.
    run.step(0)
    run.step(1)
    before = traffic_after(run)
    for step in range(NUM_STEPS):
        run.step(2 + step)
    after = traffic_after(run)
    read, written = after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes
    return read / NUM_STEPS, written / NUM_STEPS


@pytest.mark.parametrize(
    ("clip_norm", "host_kib"), checkerboard({"on push": None, "on fetch": 0.1}, (64, 32), one_in=3)
)
def test_experts_move_the_bytes_of_the_plan(
    clip_norm: float | None, host_kib: int, tmp_path: Path
) -> None:
    run = replace(run_of(one_by_one), clip_norm=clip_norm)
    planned = on_tier(plan(run, PACED), StoreTier.DISK, host_kib << 10)
    trained = StreamedRun(run, planned, tmp_path)
    moved = moved_bytes(trained)
    trained.close()
    step_bytes = planned.outline.step_bytes
    assert moved == pytest.approx((step_bytes.disk_read, step_bytes.disk_write), rel=0.05)
