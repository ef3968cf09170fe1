"""Runs whose systems have a stage of the model each equal the plain loop, bit for bit."""

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from rich.console import Console

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.ordered_sums import Reduction
from openwafer.training.metrics import METRICS_FORMAT, VALIDATION_FORMAT, read_lines
from openwafer.training.metrics.run_record import PLAN
from openwafer.training.models import TransformersModel, UserModule
from openwafer.training.noise_scale import Watched
from openwafer.training.plan_record import Mode, PlanRecord
from openwafer.training.session import RunConfig, Session, TrainResult, Weights, load_config
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    EvaluateConfig,
    Precision,
    StreamingConfig,
)
from openwafer.training.session.plan_table import show_plan
from openwafer.training.sparsity.options import SparsityGroup
from openwafer.training.step import LossScaling
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.tiny_model import RememberedModel
from tests.training.session.tiny_runs import (
    GPT,
    MODEL,
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_arrays,
    saved_parameters,
    tiny_config,
    train_quietly,
)

COUNTING = UserModule("tests.training.session.tiny_model:CountingModel")
BATCH = BatchConfig(size=8, sequence_length=12, micro_batches=4)
PIPELINED = StreamingConfig(device="cpu", mode=Mode.PIPELINED)


def pipelined_config(data: TinyData, folder: Path) -> RunConfig:
    """A clipped run with dropout and tied embeddings."""
    tied = replace(GPT, has_tied_embeddings=True)
    tiny = tiny_config(data, folder)
    return replace(tiny, model=tied, batch=BATCH, clip_norm=0.1, streaming=PIPELINED)


def differing_from_loop(found: Any, config: RunConfig) -> list[str]:
    saved, loop = saved_parameters(found), plain_loop(config)
    return differing(saved, {name: loop[name] for name in saved})


def with_stages(config: RunConfig, stages: int) -> RunConfig:
    return replace(config, streaming=replace(config.streaming, stages=stages))


UNEVEN = BatchConfig(size=10, sequence_length=12, micro_batches=5)


def test_replicas_of_a_pipeline_equal_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = replace(with_stages(pipelined_config(data, tmp_path), 2), batch=UNEVEN)
    assert differing_from_loop(pool.train(config, 4), config) == []


@pytest.fixture(scope="module")
def resting(
    data: TinyData, tmp_path_factory: pytest.TempPathFactory, pool: FollowerPool
) -> tuple[TrainResult, Mapping[str, int]]:
    """A run of two replicas whose weights stay, and what they have compared last."""
    config = with_stages(pipelined_config(data, tmp_path_factory.mktemp("resting")), 1)
    still = replace(config.optimizer, learning_rate=0.0)
    with pool.systems(2) as systems:
        config = replace(config, model=GPT, optimizer=still)
        result = Session(config, console=quiet(), systems=systems).train()
    return result, systems.replicas.digests.last


def test_replicas_compare_all_weights_of_their_stage(
    resting: tuple[TrainResult, Mapping[str, int]],
) -> None:
    result, compared = resting
    assert compared == {
        f"values of {name!r}": xxhash.xxh3_64_intdigest(values.numpy().tobytes())
        for name, values in saved_parameters(result).items()
    }


@pytest.mark.slow
def test_three_stages_equal_the_plain_loop_and_compare_the_weights_that_they_share(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = pipelined_config(data, tmp_path)
    with pool.systems(3) as systems:
        result = Session(config, console=quiet(), systems=systems).train()
    assert differing_from_loop(result, config) == []
    assert [*systems.replicas.digests.last] == ["values of 'embedding.weight'"]


@pytest.mark.slow
def test_replicas_of_one_stage_equal_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = with_stages(pipelined_config(data, tmp_path), 1)
    assert differing_from_loop(pool.train(config, 2), config) == []


def llama(**options: Any) -> TransformersModel:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    return TransformersModel("llama", config=sizes | heads | options)


GPT2 = TransformersModel(
    "gpt2", config={"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32}
)
MODELS: dict[str, dict[str, Any]] = {
    "GPT-2, with its head tied to its embedding": {"model": GPT2, "batch": UNEVEN},
    "Llama": {"model": llama()},
    "a user's module that adds outside of its layers": {"model": MODEL, "clip_norm": None},
}


# By default test_stages_of_models cuts a GPT-2 wherever it can be cut.
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_stages_of_any_model_equal_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool, name: str
) -> None:
    config = replace(pipelined_config(data, tmp_path), **MODELS[name])
    assert differing_from_loop(pool.train(config, 2), config) == []


FORMATS: dict[str, dict[str, Any]] = {
    "bf16 weights": {"weights": Weights.BF16, "precision": Precision.BF16},
    "with a moving average": {"ema": 0.9},
}


def alone_and_together(
    config: RunConfig, pool: FollowerPool, size: int = 2
) -> tuple[TrainResult, TrainResult]:
    alone = train_quietly(replace(config, name="alone"))
    return alone, pool.train(replace(config, name="together"), size)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_formats_equal_one_system(
    data: TinyData, tmp_path: Path, pool: FollowerPool, name: str
) -> None:
    config = replace(pipelined_config(data, tmp_path), **FORMATS[name])
    alone, together = alone_and_together(config, pool)
    assert differing(saved_arrays(alone), saved_arrays(together)) == []
    assert together.loss == alone.loss


@pytest.mark.slow
def test_a_step_that_overflows_is_skipped_by_all_stages(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    scaling = LossScaling(initial_scale=1e38, backoff_factor=1e-36)
    config = replace(pipelined_config(data, tmp_path), precision=Precision.FP16, loss_scale=scaling)
    config = with_stages(config, 2)
    assert differing_from_loop(pool.train(config, 4), config) == []


@pytest.mark.slow
def test_micro_batches_count_by_their_targets(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = pipelined_config(data, tmp_path)
    config = replace(config, model=llama(), data=replace(config.data, cross_documents=False))
    alone, together = alone_and_together(config, pool)
    assert differing(saved_arrays(alone), saved_arrays(together)) == []


@pytest.mark.slow
def test_a_run_goes_on_in_another_mode_and_number_of_systems(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = saved_often(pipelined_config(data, tmp_path))
    unbroken = train_quietly(replace(config, name="alone"))
    whole = pool.train(replace(config, name="together"), 3)
    assert validation_losses(whole) == validation_losses(unbroken)
    for mode in ("pipelined", "streamed"):
        resumed = resumed_from_first(whole.folder, pool, 2, f"streaming.mode={mode}")
        assert differing(saved_arrays(resumed), saved_arrays(unbroken)) == []


def saved_often(config: RunConfig) -> RunConfig:
    evaluate, checkpoint = EvaluateConfig(every=1, batches=3), CheckpointConfig(every=1, keep=9)
    return replace(config, checkpoint=checkpoint, evaluate=evaluate)


def resumed_from_first(folder: Path, pool: FollowerPool, size: int, *overrides: str) -> TrainResult:
    first = folder / "checkpoints" / "step-00000001"
    asked = ["streaming.store=auto", *overrides]
    with pool.systems(size) as systems:
        return Session(folder, asked, console=quiet(), systems=systems).resume(first)


@pytest.mark.slow
def test_replicas_go_on_as_one_system_and_one_system_as_replicas(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = saved_often(with_stages(pipelined_config(data, tmp_path), 2))
    alone = train_quietly(replace(config, name="alone"))
    unbroken = saved_arrays(alone)
    whole = pool.train(replace(config, name="together"), 4)
    assert validation_losses(whole) == validation_losses(alone)
    assert differing(saved_arrays(resumed_from_first(whole.folder, pool, 1)), unbroken) == []
    assert differing(saved_arrays(resumed_from_first(alone.folder, pool, 4)), unbroken) == []


def validation_losses(result: TrainResult) -> list[float]:
    rows = read_lines(result.folder / "validation.jsonl", VALIDATION_FORMAT).rows
    return [row.loss for row in rows]


@pytest.mark.slow
def test_a_streamed_run_goes_on_in_stages(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    disk = StreamingConfig(device="cpu", mode=Mode.STREAMED, store=StoreTier.DISK)
    config = replace(pipelined_config(data, tmp_path), streaming=disk)
    config = replace(config, checkpoint=CheckpointConfig(every=1, keep=9))
    alone = train_quietly(config)
    unbroken = saved_arrays(alone)
    staged = resumed_from_first(alone.folder, pool, 2, "streaming.mode=pipelined")
    assert differing(saved_arrays(staged), unbroken) == []


def test_a_loss_that_is_not_finite_keeps_the_last_good_step(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = pipelined_config(data, tmp_path)
    optimizer = replace(config.optimizer, learning_rate=1e30)
    config = replace(config, optimizer=optimizer, clip_norm=None)
    with pytest.raises(OpenwaferError, match=r"(?s)loss-not-finite.*are safe in .*step-0000000"):
        pool.train(config, 2)


@pytest.mark.slow
def test_a_run_whose_plan_chooses_equals_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = replace(pipelined_config(data, tmp_path), streaming=StreamingConfig(device="cpu"))
    done = pool.train(config, 2)
    assert differing_from_loop(done, config) == []
    choice = PLAN.read(done.folder).choice
    assert choice is not None
    assert choice.pipelined_seconds is not None
    assert load_config(done.folder / "config.yaml").streaming.mode is None


def test_the_first_stage_keeps_no_initial_weights_of_others(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    remembered = UserModule("tests.training.session.tiny_model:RememberedModel")
    pool.train(replace(pipelined_config(data, tmp_path), model=remembered), 2)
    *_, model = RememberedModel.built
    assert model.head.weight.untyped_storage().nbytes() < model.head.weight.nbytes


@pytest.mark.slow
def test_what_comes_from_the_neighbours_is_counted(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    result = pool.train(replace(pipelined_config(data, tmp_path), model=GPT), 2)
    row = read_lines(result.folder / "metrics.jsonl", METRICS_FORMAT).rows[-1]
    assert row.system_received_bytes is not None
    first, last = row.system_received_bytes
    activation = BATCH.size * BATCH.sequence_length * GPT.hidden_size * 4
    drawn = 4 * torch.get_rng_state().nbytes
    assert last == activation + drawn
    assert first == activation


def test_what_comes_from_other_replicas_is_counted(
    resting: tuple[TrainResult, Mapping[str, int]],
) -> None:
    result, _ = resting
    row = read_lines(result.folder / "metrics.jsonl", METRICS_FORMAT).rows[-1]
    weights = sum(tensor.nbytes for tensor in saved_parameters(result).values())
    first, second = row.system_received_bytes or (0, 0)
    # Whole sums; running sums and new weights. Headers and padding come on top.
    assert weights <= first < 1.3 * weights
    assert 2 * weights <= second < 2.9 * weights


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"noise_scale": Watched.NORMS}, "noise_scale is set and streaming.mode is pipelined"),
        ({"sparsity": SparsityGroup(0.5)}, "sparsity is set and streaming.mode is pipelined"),
        # Before a plan finds out what the model does.
        (
            {"model": COUNTING, "reduction": Reduction.FAST},
            "reduction is set and streaming.mode is pipelined",
        ),
        ({"model": COUNTING}, "systems-share-state"),
        ({"batch": replace(BATCH, micro_batches=2)}, "2 micro-batches, and there are 3 systems"),
        ({"model": GPT, "systems": 4}, "pipelined-memory"),
        (
            {"streaming": replace(PIPELINED, stages=2)},
            "there are 3 systems, and each replica of the pipeline takes 2 of them",
        ),
        (
            {"model": MODEL, "systems": 5, "batch": replace(BATCH, micro_batches=8)},
            "cut in 3 places, and 5 stages need 4",
        ),
    ],
)
def test_what_stages_cannot_do_is_refused(
    data: TinyData, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    config = replace(pipelined_config(data, tmp_path), systems=3, device_memory=20_000)
    with pytest.raises(OpenwaferError, match=told):
        Session(replace(config, **changes), console=quiet()).plan()


@pytest.fixture(scope="module")
def of_two_stages(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> PlanRecord:
    config = replace(pipelined_config(data, tmp_path_factory.mktemp("planned")), systems=2)
    return Session(config, console=quiet()).plan()


def test_the_plan_says_what_each_stage_holds(of_two_stages: PlanRecord) -> None:
    plan = of_two_stages
    assert plan.pipeline is not None
    first, last = plan.pipeline.stages
    assert (first.first, last.last) == ("embedding", "head")
    assert sum(one.share for one in plan.pipeline.stages) == pytest.approx(1)
    assert plan.pipeline.bubble == 1 / 5
    assert plan.predicted_peak_bytes == max(first.total_bytes, last.total_bytes)


@pytest.mark.slow
def test_the_plan_says_what_other_replicas_hold(data: TinyData, tmp_path: Path) -> None:
    config = replace(with_stages(pipelined_config(data, tmp_path), 2), systems=4, batch=UNEVEN)
    plan = Session(config, console=quiet()).plan()
    assert plan.pipeline is not None
    [first, _], [copy, _] = plan.pipeline.stages, plan.pipeline.others
    assert (plan.systems, plan.pipeline.replicas, plan.pipeline.block) == (4, 2, 3)
    assert (copy.states_bytes, copy.weights_bytes) == (0, first.weights_bytes)
    assert copy.gradients_bytes - first.gradients_bytes == 2 * first.weights_bytes
    assert plan.pipeline.bubble == 1 / 4


def test_the_table_of_a_plan_says_how_long_stages_wait(of_two_stages: PlanRecord) -> None:
    with StringIO() as told:
        show_plan(of_two_stages, Console(file=told))
        lines = told.getvalue().splitlines()
    assert any("each waits 20.0% of it, (2 - 1) / (4 + 2 - 1)" in line for line in lines)
    assert any(line.startswith("0      embedding") for line in lines)


@pytest.mark.slow
def test_one_process_of_a_launcher_has_no_stages(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = pipelined_config(data, tmp_path)
    assert differing_from_loop(pool.train(config, 1), config) == []


NUM_LONG_STEPS = 20
LONG_CASES: dict[str, dict[str, Any]] = {
    "clipped, tied, with dropout": {},
    "untied, not clipped": {"model": GPT, "clip_norm": None},
    "five micro-batches": {"batch": UNEVEN},
    "GPT-2": {"model": GPT2},
    "Llama": {"model": llama()},
    "bf16 autocast": {"precision": Precision.BF16},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_CASES)
@pytest.mark.parametrize(("size", "stages"), [(1, 1), (2, 2), (3, 3), (4, 4), (4, 2), (3, 1)])
def test_twenty_steps_equal_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool, size: int, stages: int, name: str
) -> None:
    config = replace(pipelined_config(data, tmp_path), steps=NUM_LONG_STEPS, **LONG_CASES[name])
    assert differing_from_loop(pool.train(with_stages(config, stages), size), config) == []


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 3])
def test_replicas_on_six_systems_equal_the_plain_loop(
    data: TinyData, tmp_path: Path, stages: int
) -> None:
    batch = BatchConfig(size=14, sequence_length=12, micro_batches=7)
    config = replace(with_stages(pipelined_config(data, tmp_path), stages), batch=batch)
    six = FollowerPool(num_followers=5)
    assert differing_from_loop(six.train(config, 6), config) == []
    six.close()
