"""Copies to and from a GPU come when they must, however late it makes them."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from openwafer.training.plan_record import Activations
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.device.cuda import CopyLane, CudaDevice, RingShape
from tests.tables import case
from tests.training.stream.both_loops import (
    STREAMED,
    Parameters,
    Run,
    StreamedRun,
    differing,
    plan,
    train_plainly,
)
from tests.training.stream.small_gpt import gpt_run
from tests.training.stream_cuda.late_streams import LateEvent, LateRuntime, put_in_place

CPU = torch.device("cpu")
# Smaller than what passes through it, so that chunks are used again.
SMALL = RingShape(chunk_bytes=16, num_chunks=3)
NUM_BYTES = 100


SEEDS = range(5)


@pytest.fixture(params=SEEDS)
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LateRuntime]:
    runtime = LateRuntime(request.param)
    put_in_place(runtime, monkeypatch)
    yield runtime
    # Rings are given back to the one that lent them.
    gc.collect()


def after_all_of(runtime: LateRuntime) -> Any:
    """In the place of an event of CUDA."""
    event = LateEvent(runtime)
    event.record(runtime.current())
    return event


def test_uploads_lie_between_the_uses_of_their_slot(late: LateRuntime) -> None:
    lane, slot = CopyLane("in", CPU, SMALL), torch.zeros(NUM_BYTES, dtype=torch.uint8)
    seen = torch.zeros(6, NUM_BYTES, dtype=torch.uint8)
    with late.on(late.stream()):
        for value in range(6):
            source = torch.full((NUM_BYTES,), value, dtype=torch.uint8)
            uploaded: Any = lane.upload(slot, source, after_all_of(late)).result()
            source.fill_(99)
            late.current().wait_event(uploaded)
            seen[value].copy_(slot, non_blocking=True)
        late.current().synchronize()
    assert torch.equal(seen, torch.arange(6, dtype=torch.uint8)[:, None].expand_as(seen))


@pytest.mark.parametrize("is_turned", [False, True])
def test_downloads_find_what_compute_has_made(late: LateRuntime, is_turned: bool) -> None:
    lane, rows = CopyLane("out", CPU, SMALL), torch.arange(4 * NUM_BYTES).view(4, 10, 10)
    received, compute = torch.zeros(4, 10, 10, dtype=torch.int64), late.stream()
    downloads = []
    for row, place in zip(rows, received, strict=True):
        with late.on(compute):
            made = torch.zeros(10, 10, dtype=torch.int64)
            made = made.t() if is_turned else made
            made.copy_(row, non_blocking=True)
            downloads.append(lane.download(made, place, after_all_of(late)))
            del made
    for download in downloads:
        download.result()
    assert torch.equal(received, rows)


@cache
def run() -> Run:
    return gpt_run(num_steps=2, num_micro_batches=2, clips=True)


@cache
def plain_parameters() -> Parameters:
    return train_plainly(run())


@cache
def planned() -> Planned:
    return plan(run(), replace(STREAMED, link_bytes_per_second=1e9))


def planned_with(policy: Activations) -> Planned:
    """No budget says which policy a layer has to have."""
    made = planned().plan
    return replace(planned(), plan=replace(made, policies=dict.fromkeys(made.policies, policy)))


# Policies that recompute or offload once by default.
RUNS = [
    case(seed, policy, by_default=seed == place > 0, id=f"{policy}, {seed}")
    for place, policy in enumerate(Activations)
    for seed in SEEDS
]


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(("late", "policy"), RUNS, indirect=["late"])
def test_a_run_has_the_bits_of_the_plain_loop(policy: Activations) -> None:
    streamed = StreamedRun(run(), planned_with(policy), device=CudaDevice(CPU))
    for step in range(run().num_steps):
        streamed.step(step)
    found = streamed.parameters()
    streamed.close()
    assert differing(found, plain_parameters()) == []
