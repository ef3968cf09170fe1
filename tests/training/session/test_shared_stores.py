"""Runs whose parameter store is dealt to all systems, against one store and the plain loop."""

import os
import re
import shutil
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
import torch
from rich.console import Console

from openwafer.diagnostics import OpenwaferError
from openwafer.folder_lock import folder_to_itself
from openwafer.training.metrics import METRICS_FORMAT, StepMetrics, read_lines
from openwafer.training.models import UserModule, build, loss_of
from openwafer.training.session import RunConfig, Session, TrainResult, Weights
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    EvaluateConfig,
    Precision,
    ScheduleConfig,
)
from openwafer.training.sparsity.masks.schedules import EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparsityGroup
from openwafer.training.step import LossScaling
from openwafer.training.store.layout import Part
from openwafer.training.store.store_folder import read_manifest
from openwafer.training.stream.execute.execution import StepEnd
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.replicas.ownership import StoreSystems
from tests.tables import case
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.mixture_runs import MIXTRAL
from tests.training.session.tiny_runs import (
    GPT,
    NUM_STEPS,
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_arrays,
    saved_parameters,
    tiny_config,
    train_quietly,
)
from tests.training.stream.axes import TIERS

DRAM, DISK = StoreTier.DRAM, StoreTier.DISK
TIED = replace(GPT, has_tied_embeddings=True)
BATCH = BatchConfig(size=10, sequence_length=12, micro_batches=5)
LOUD = "tests.training.session.tiny_model:LoudModel"
# What tells which tensor comes.
MESSAGES_BYTES = 4096


def shared_config(
    data: TinyData, folder: Path, tier: StoreTier = StoreTier.DRAM, **changes: Any
) -> RunConfig:
    """A clipped run with dropout and tied embeddings, whose micro-batches deal out unevenly.

    Several systems share its store unless they are told otherwise.
    """
    config = replace(tiny_config(data, folder, tier), model=TIED, batch=BATCH, clip_norm=0.1)
    return replace(config, **changes)


def differing_from_loop(result: TrainResult, config: RunConfig) -> list[str]:
    """Parameters that the plain loop has otherwise; it knows a tied one by two names."""
    saved, loop = saved_parameters(result), plain_loop(config)
    return differing(saved, {name: loop[name] for name in saved})


@pytest.mark.slow
@pytest.mark.parametrize(("size", "tier"), [(2, DISK), (3, DRAM)])
def test_a_run_over_shared_stores_equals_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool, size: int, tier: StoreTier
) -> None:
    config = shared_config(data, tmp_path, tier)
    assert differing_from_loop(pool.train(config, size), config) == []


@pytest.mark.slow
def test_updates_as_gradients_come_equal_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = shared_config(data, tmp_path, DISK, clip_norm=None)
    assert differing_from_loop(pool.train(config, 3), config) == []


def overflowing(config: RunConfig, scale: float) -> list[str]:
    """Parameters whose gradients are not finite where a loss is multiplied by a scale."""
    model, tokens = build(config.model, config.seed), torch.arange(12)[None]
    with torch.autocast("cpu", config.precision.autocast_dtype):
        loss = loss_of(model(input_ids=tokens, labels=tokens))
    (loss * scale).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return [name for name, gradient in gradients.items() if not gradient.isfinite().all()]


def stored_weights(folder: Path) -> set[str]:
    """Names of the parameters in a store."""
    layouts = read_manifest(folder).catalog.layouts.values()
    return {place.spec.name for one in layouts for place in one.parts[Part.WEIGHTS]}


@pytest.mark.parametrize(("loudest", "store"), [("head", "store"), ("layers.0", "store-1")])
def test_a_step_that_overflows_in_one_store_is_skipped_in_all(
    data: TinyData, tmp_path: Path, pool: FollowerPool, loudest: str, store: str
) -> None:
    scaling = LossScaling(initial_scale=2.0**14, backoff_factor=2.0**-8)
    config = shared_config(data, tmp_path, DISK, precision=Precision.FP16, loss_scale=scaling)
    config = replace(config, model=UserModule(LOUD, {"loudest": loudest}))
    weight = f"{loudest}.weight"
    assert (overflowing(config, 2.0**14), overflowing(config, 2.0**6)) == ([weight], [])
    result = pool.train(config, 2)
    assert weight in stored_weights(result.folder / store)
    assert differing_from_loop(result, config) == []


ALIKE: dict[str, dict[str, Any]] = {
    "masters and averages": {"weights": Weights.BF16, "ema": 0.9},
    "masks that change": {"sparsity": SparsityGroup(0.75, AlgorithmName.SET, update=EverySteps(2))},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ALIKE)
def test_shared_stores_equal_one_store(
    data: TinyData, tmp_path: Path, pool: FollowerPool, case: str
) -> None:
    config = shared_config(data, tmp_path, DISK, **ALIKE[case])
    alone = train_quietly(replace(config, name="alone"))
    together = pool.train(replace(config, name="together"), 2)
    assert differing(saved_arrays(alone), saved_arrays(together)) == []


def files_of(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}


@pytest.mark.slow
def test_a_checkpoint_of_shared_stores_is_that_of_one_store(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = shared_config(data, tmp_path)
    alone = train_quietly(replace(config, name="alone"))
    together = pool.train(replace(config, name="together"), 3)
    assert alone.checkpoint is not None
    assert together.checkpoint is not None
    assert files_of(together.checkpoint) == files_of(alone.checkpoint)


def validation_of(result: TrainResult) -> str:
    return (result.folder / "validation.jsonl").read_text()


@pytest.mark.slow
def test_a_run_goes_on_over_more_stores_and_over_one(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    saving = CheckpointConfig(every=1, keep=9)
    evaluating = EvaluateConfig(every=1, batches=1)
    config = shared_config(data, tmp_path, checkpoint=saving, evaluate=evaluating)
    unbroken = train_quietly(replace(config, name="alone"))
    whole = pool.train(replace(config, name="together"), 2)
    first = whole.folder / "checkpoints" / "step-00000001"
    with pool.systems(3) as systems:
        three = Session(whole.folder, console=quiet(), systems=systems).resume(first)
    assert differing(saved_arrays(three), saved_arrays(unbroken)) == []
    one = Session(whole.folder, ["systems=1"], console=quiet()).resume(first)
    assert differing(saved_arrays(one), saved_arrays(unbroken)) == []
    assert validation_of(whole) == validation_of(unbroken)


def two_more_steps(
    run: Path, pool: FollowerPool, size: int, console: Console | None = None
) -> TrainResult:
    with pool.systems(size) as systems:
        longer = [f"steps={NUM_STEPS + 2}", "checkpoint.at_end=true"]
        return Session(run, longer, console=console or quiet(), systems=systems).resume()


CONSTANT = ScheduleConfig("constant")


@pytest.fixture
def on_disk(data: TinyData, tmp_path: Path) -> RunConfig:
    """A run whose last step is in its stores alone."""
    saving = CheckpointConfig(every=NUM_STEPS - 1, at_end=False)
    return shared_config(data, tmp_path, DISK, checkpoint=saving, schedule=CONSTANT)


def wait_for_stores(run: Path) -> None:
    """Return when all systems have closed their stores, which the first one does not wait for."""
    for store in run.glob("store-*"):
        with folder_to_itself(store):
            pass


@pytest.fixture(scope="module")
def unbroken(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """The same with two steps more, on one system."""
    folder = tmp_path_factory.mktemp("unbroken")
    config = shared_config(data, folder, DISK, steps=NUM_STEPS + 2, schedule=CONSTANT)
    return train_quietly(config)


# By default stores of three systems go on over two.
@pytest.mark.slow
def test_a_run_goes_on_from_its_stores(
    on_disk: RunConfig, unbroken: TrainResult, pool: FollowerPool
) -> None:
    run = pool.train(on_disk, 2).folder
    wait_for_stores(run)
    # As a kill between the two halves of a commit leaves it.
    (run / "store-1" / "manifest.json").unlink()
    checkpoints = run / "checkpoints"
    shutil.rmtree(checkpoints)
    result = two_more_steps(run, pool, 2)
    assert differing(saved_arrays(result), saved_arrays(unbroken)) == []
    assert f"training from step {NUM_STEPS} to" in (run / "log.txt").read_text()


@pytest.mark.slow
def test_a_run_without_its_stores_goes_on_from_its_checkpoint(
    on_disk: RunConfig, unbroken: TrainResult, pool: FollowerPool
) -> None:
    run = pool.train(on_disk, 2).folder
    wait_for_stores(run)
    shutil.rmtree(run / "store-1")
    said = StringIO()
    result = two_more_steps(run, pool, 2, Console(file=said, width=500))
    told = f"in the stores of 2 systems, and store-1 is not in {run} on {gethostname()}\n"
    assert told in said.getvalue()
    assert "goes on from its last checkpoint" in said.getvalue()
    assert differing(saved_arrays(result), saved_arrays(unbroken)) == []


@pytest.mark.parametrize(
    ("rank", "number"), [case(0, signal.SIGINT, by_default=False), (1, signal.SIGTERM)]
)
def test_a_signal_to_any_system_leaves_a_checkpoint_for_any_number_of_them(
    data: TinyData, tmp_path: Path, pool: FollowerPool, rank: int, number: signal.Signals
) -> None:
    config = shared_config(data, tmp_path, DISK, steps=1000)

    def interrupt(end: StepEnd) -> None:
        if end.steps_applied == 2:
            os.kill(pool.pid(rank), number)

    with pool.systems(2) as systems:
        session = Session(config, console=quiet(), systems=systems)
        session.between_steps(interrupt)
        result = session.train()
    assert (result.interrupted_by, result.is_complete) == (number.name, False)
    assert 2 <= result.steps_done < 1000
    assert result.checkpoint == config.path / "checkpoints" / f"step-{result.steps_done:08d}"


@pytest.mark.slow
def test_a_reader_takes_the_last_step_of_shared_stores(
    on_disk: RunConfig, pool: FollowerPool
) -> None:
    run = pool.train(on_disk, 2).folder
    alone = train_quietly(replace(on_disk, name="alone")).folder
    assert Session(run, console=quiet()).evaluate(1) == Session(alone, console=quiet()).evaluate(1)


@pytest.mark.slow
def test_shares_add_up_to_one_store(on_disk: RunConfig, pool: FollowerPool) -> None:
    whole = pool.train(replace(on_disk, name="one", store_systems=StoreSystems.FIRST), 2).folder
    run = pool.train(on_disk, 2).folder
    shares = [read_manifest(run / name).catalog.layouts for name in ("store", "store-1")]
    assert {**shares[0], **shares[1]} == dict(read_manifest(whole / "store").catalog.layouts)
    assert not shares[0].keys() & shares[1].keys()
    num_bytes = [sum(layout.num_bytes for layout in share.values()) for share in shares]
    assert max(num_bytes) < 2 * min(num_bytes)


def steps_of(result: TrainResult) -> list[StepMetrics]:
    return list(read_lines(result.folder / "metrics.jsonl", METRICS_FORMAT).rows)


@pytest.mark.slow
def test_what_passes_is_what_stores_lack(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = shared_config(data, tmp_path)
    one = replace(config, name="one", store_systems=StoreSystems.FIRST)
    [whole, *_], [share, *_] = steps_of(pool.train(one, 2)), steps_of(pool.train(config, 2))
    assert share.system_received_bytes is not None
    assert 0 < share.fetch_bytes < whole.fetch_bytes
    # The first system gets weights that it lacks, and sums from the last one, which has the rest.
    assert share.system_received_bytes == pytest.approx(
        [
            whole.fetch_bytes - share.fetch_bytes + share.push_bytes,
            share.fetch_bytes + whole.push_bytes,
        ],
        abs=MESSAGES_BYTES,
    )


@pytest.mark.slow
def test_systems_with_stores_keep_to_the_memory_that_their_plan_foretells(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = shared_config(data, tmp_path)
    peak_bytes = Session(replace(config, systems=3), console=quiet()).plan().predicted_peak_bytes
    # Above its budget a device of a run refuses to hold anything.
    assert pool.train(replace(config, device_memory=peak_bytes), 3).is_complete


@pytest.mark.slow
def test_a_loss_that_is_not_finite_leaves_the_steps_before_it_in_a_checkpoint(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = shared_config(data, tmp_path, clip_norm=None)
    optimizer = replace(config.optimizer, learning_rate=1e30)
    with pytest.raises(OpenwaferError, match=r"are safe in .*step-0000000"):
        pool.train(replace(config, optimizer=optimizer), 2)


def test_what_fits_one_store_on_a_host_fits_several_and_no_more_does(
    data: TinyData, tmp_path: Path
) -> None:
    config = shared_config(data, tmp_path, systems=2)

    def plan(stores: StoreSystems, host_memory: int) -> None:
        streaming = replace(config.streaming, host_memory=host_memory)
        asked = replace(config, store_systems=stores, streaming=streaming)
        Session(asked, console=quiet()).plan()

    with pytest.raises(OpenwaferError, match="store-too-large") as found:
        plan(StoreSystems.FIRST, 1000)
    [needed] = re.findall(r"need ([\d,]+) bytes", str(found.value))
    plan(StoreSystems.AUTO, int(needed.replace(",", "")))
    with pytest.raises(OpenwaferError, match="store-too-large"):
        plan(StoreSystems.AUTO, int(needed.replace(",", "")) - 1)


NUM_LONG_STEPS = 20
CASES: dict[str, dict[str, Any]] = {
    "clipped, tied, with dropout": {},
    "updated as gradients come": {"clip_norm": None},
    "untied": {"model": GPT},
    "mixture": {"model": MIXTRAL},
    "bf16 autocast": {"precision": Precision.BF16},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_twenty_steps_over_shared_stores_equal_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool, size: int, tier: StoreTier, case: str
) -> None:
    config = replace(shared_config(data, tmp_path, tier, **CASES[case]), steps=NUM_LONG_STEPS)
    assert differing_from_loop(pool.train(config, size), config) == []
