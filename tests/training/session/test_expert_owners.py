"""Runs whose systems compute the experts that they own for all of them."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import prepare
from openwafer.training.metrics import METRICS_FORMAT, StepMetrics, read_lines
from openwafer.training.models import TransformersModel, build
from openwafer.training.models.build import with_vocab_size
from openwafer.training.plan_record import Activations, ExpertsWay, ExpertTraffic, PlanRecord
from openwafer.training.session import RunConfig, Session, TrainResult, Weights, show_plan
from openwafer.training.session.building import tokenizer_of
from openwafer.training.session.config_sections import (
    BatchConfig,
    CheckpointConfig,
    EvaluateConfig,
    Precision,
)
from openwafer.training.session.systems import blocks_of
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.replicas.ownership import StoreSystems
from tests.tables import case
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.mixture_runs import MIXTRAL, mixture_config
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_arrays,
    saved_parameters,
    train_quietly,
)

BATCH = BatchConfig(size=10, sequence_length=12, micro_batches=5)
NUM_EXPERTS = 8
ROW_BYTES = 32 * 4
# Numbers that tell what rows are for.
HEADER_BYTES = 4096


def owned_config(
    data: TinyData, folder: Path, way: ExpertsWay = ExpertsWay.OWNERS, **changes: Any
) -> RunConfig:
    """A clipped run whose micro-batches deal out unevenly."""
    config = replace(mixture_config(data, folder), batch=BATCH, store_systems=StoreSystems.ALL)
    return replace(config, streaming=replace(config.streaming, experts=way), **changes)


def with_model(config: RunConfig, **changes: Any) -> RunConfig:
    return replace(config, model=replace(MIXTRAL, config={**MIXTRAL.config, **changes}))


def differing_from_loop(result: TrainResult, config: RunConfig) -> list[str]:
    saved, loop = saved_parameters(result), plain_loop(config)
    return differing(saved, {name: loop[name] for name in saved})


@pytest.mark.parametrize("size", [2, case(3, by_default=False)])
def test_a_run_equals_the_plain_loop(
    data: TinyData, tmp_path: Path, pool: FollowerPool, size: int
) -> None:
    config = owned_config(data, tmp_path, steps=2)
    assert differing_from_loop(pool.train(config, size), config) == []


@pytest.mark.slow
def test_owners_compute_on_as_many_threads_as_the_model_is_computed_on() -> None:
    test = f"{__file__}::{test_a_run_equals_the_plain_loop.__name__}[2]"
    # Small products differ with the number of threads on some processors only.
    several = {**os.environ, "OMP_NUM_THREADS": "2"}
    several.pop("PYTEST_XDIST_WORKER", None)  # with it, tests compute on one thread
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, test]
    ended = subprocess.run(command, check=False, env=several, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout


CASES: dict[str, dict[str, Any]] = {
    "kept": {},
    "updated as gradients come": {"clip_norm": None},
    "without a moving average": {"ema": None},
    "one token a micro-batch": {"batch": BatchConfig(size=5, sequence_length=2, micro_batches=5)},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("activations", list(Activations))
@pytest.mark.parametrize("size", [2, 3, 4])
def test_many_runs_equal_the_plain_loop(
    data: TinyData,
    tmp_path: Path,
    pool: FollowerPool,
    size: int,
    activations: Activations,
    case: str,
) -> None:
    config = owned_config(data, tmp_path, steps=8, **CASES[case])
    config = replace(config, streaming=replace(config.streaming, activations=activations))
    assert differing_from_loop(pool.train(config, size), config) == []


@pytest.mark.slow
@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("size", [2, 3])
def test_bf16_equals_one_system(
    data: TinyData, tmp_path: Path, pool: FollowerPool, size: int, weights: Weights
) -> None:
    config = owned_config(data, tmp_path, weights=weights, precision=Precision.BF16, ema=None)
    alone = train_quietly(replace(config, name="alone"))
    together = pool.train(replace(config, name="together"), size)
    assert differing(saved_arrays(alone), saved_arrays(together)) == []


@pytest.mark.slow
def test_a_run_goes_on_with_other_systems_and_in_the_other_way(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    saving, evaluating = CheckpointConfig(every=1, keep=9), EvaluateConfig(every=1, batches=1)
    config = owned_config(data, tmp_path, checkpoint=saving, evaluate=evaluating)
    alone = train_quietly(replace(config, name="alone"))
    run = pool.train(config, 2).folder
    first = run / "checkpoints" / "step-00000001"
    with pool.systems(3) as systems:
        fetching = Session(run, ["streaming.experts=fetch"], console=quiet(), systems=systems)
        assert differing(saved_arrays(fetching.resume(first)), saved_arrays(alone)) == []
    second = run / "checkpoints" / "step-00000002"
    with pool.systems(3) as systems:
        owning = Session(run, console=quiet(), systems=systems)
        assert differing(saved_arrays(owning.resume(second)), saved_arrays(alone)) == []
    name = "validation.jsonl"
    assert (run / name).read_text() == (alone.folder / name).read_text()


# What passes.


def routed(config: RunConfig) -> list[Mapping[str, torch.Tensor]]:
    """The experts of each token in the first step of a plain loop, by micro-batch and module."""
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    assert config.data.folder is not None
    dataset = prepare(preparation, config.data.folder)
    model = build(with_vocab_size(config.model, dataset.tokenizer.vocab_size), config.seed)
    found: list[dict[str, torch.Tensor]] = []
    for name, module in model.named_modules():
        if name.endswith("experts"):

            def note(_module: nn.Module, args: Any, name: str = name) -> None:
                found[-1][name] = args[1]

            module.register_forward_pre_hook(note)
    for batch in dataset.micro_batches(0, config.batch.num_micro_batches):
        found.append({})
        model(input_ids=batch.input_ids, labels=batch.labels)
    return list(found)


def rows_between(config: RunConfig, size: int) -> torch.Tensor:
    """Rows of the systems' tokens [from, to] that owners compute in the first step."""
    rows = torch.zeros(size, size, dtype=torch.int64)
    micro_batches = routed(config)
    for rank, block in enumerate(blocks_of(len(micro_batches), size)):
        for index in block:
            for experts in micro_batches[index].values():
                owners = experts.flatten() * size // NUM_EXPERTS
                rows[rank] += owners.bincount(minlength=size)
    return rows


def expected_bytes(config: RunConfig, size: int) -> torch.Tensor:
    """What a system receives: products of its rows and rows of others, and both as gradients."""
    between = rows_between(config, size).fill_diagonal_(0)
    return 2 * ROW_BYTES * (between.sum(0) + between.sum(1))


def received(result: TrainResult) -> torch.Tensor:
    rows: list[StepMetrics] = list(read_lines(result.folder / "metrics.jsonl", METRICS_FORMAT).rows)
    assert rows[0].system_received_bytes is not None
    return torch.tensor(rows[0].system_received_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_bytes_of_rows_are_those_of_the_routing(
    data: TinyData, tmp_path: Path, pool: FollowerPool, size: int
) -> None:
    two = owned_config(data, tmp_path, steps=1, name="two", clip_norm=None)
    # All else that passes is the same.
    one = replace(with_model(two, num_experts_per_tok=1), name="one")
    more = received(pool.train(two, size)) - received(pool.train(one, size))
    expected = expected_bytes(two, size) - expected_bytes(one, size)
    assert more.tolist() == pytest.approx(expected.tolist(), abs=HEADER_BYTES)
    assert int(expected.min()) > 4 * HEADER_BYTES


@pytest.mark.slow
def test_bytes_of_weights_are_those_of_the_plan(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    few = owned_config(data, tmp_path, ExpertsWay.FETCH, steps=1, name="few")
    many = replace(with_model(few, num_local_experts=2 * NUM_EXPERTS), name="many")
    more = received(pool.train(many, 2)) - received(pool.train(few, 2))
    traffic = [traffic_of(replace(config, systems=2)).fetch_bytes for config in (many, few)]
    assert more.double().mean().item() == pytest.approx(traffic[0] - traffic[1], abs=HEADER_BYTES)


@pytest.mark.slow
def test_norms_bring_each_gradient_to_one_system(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    clipped = owned_config(data, tmp_path, steps=1, name="clipped")
    free = replace(clipped, name="free", clip_norm=None)
    more = received(pool.train(clipped, 2)) - received(pool.train(free, 2))
    # Of the two weights of a layer one comes to each.
    weights = torch.tensor([96 * 32, 32 * 48]) * 4 * 2 * NUM_EXPERTS
    assert more.tolist() == (weights // 2).tolist()


def traffic_of(config: RunConfig) -> ExpertTraffic:
    traffic = plan_of(config).expert_traffic
    assert traffic is not None
    return traffic


@pytest.fixture(scope="module")
def planned(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> PlanRecord:
    folder = tmp_path_factory.mktemp("planned")
    return plan_of(owned_config(data, folder, ExpertsWay.AUTO, systems=2))


def plan_of(config: RunConfig) -> PlanRecord:
    return Session(config, console=quiet()).plan()


def test_the_plan_counts_both_ways(planned: PlanRecord) -> None:
    traffic = planned.expert_traffic
    assert traffic is not None
    experts = 2 * NUM_EXPERTS * (96 * 32 + 32 * 48) * 4
    # Both layers stay from forward to backward: weights come once, a running sum as well, and half
    # of the sums.
    assert traffic.fetch_bytes == (1 + 1 + 0.5) * experts / 2
    # Three micro-batches of 2 x 12 tokens, each by two experts in two layers; and for the norms,
    # half of the gradients to one of two systems.
    rows = 3 * 24 * 2 * 2
    assert traffic.owners_bytes == rows * 4 * ROW_BYTES / 2 + experts / 4
    assert traffic.way is ExpertsWay.OWNERS


@pytest.mark.slow
def test_many_tokens_for_small_experts_let_weights_be_fetched(
    data: TinyData, tmp_path: Path
) -> None:
    batch = BatchConfig(size=32, sequence_length=48, micro_batches=2)
    config = owned_config(data, tmp_path, ExpertsWay.AUTO, systems=2, batch=batch)
    traffic = traffic_of(config)
    assert traffic.owners_bytes is not None
    assert traffic.owners_bytes > traffic.fetch_bytes
    assert traffic.way is ExpertsWay.FETCH


def shown(plan: PlanRecord) -> str:
    console = Console(file=StringIO(), width=250)
    show_plan(plan, console)
    assert isinstance(console.file, StringIO)
    [told] = [line for line in console.file.getvalue().splitlines() if line.startswith("experts")]
    return told.removeprefix("experts").strip()


def test_the_plan_shows_the_way_with_the_bytes_of_both(planned: PlanRecord) -> None:
    assert shown(planned) == (
        "computed by the systems that own them: each receives about 144 KiB a step of rows, and "
        "would of weights and gradients 360 KiB"
    )


@pytest.mark.slow
def test_the_plan_shows_why_weights_are_fetched(data: TinyData, tmp_path: Path) -> None:
    config = owned_config(data, tmp_path, ExpertsWay.AUTO, systems=2)
    told = shown(plan_of(replace(config, store_systems=StoreSystems.FIRST)))
    assert told == (
        "fetched by each system, for store_systems is first, not all: it receives 432 KiB a step "
        "of them"
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one store": ({"store_systems": StoreSystems.FIRST}, "store_systems is first, not all"),
    "fp16": ({"precision": Precision.FP16}, "precision is fp16"),
    "more systems than experts": ({"systems": 9, "batch": replace(BATCH, micro_batches=10)}, "8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_owners_are_refused_where_they_cannot(data: TinyData, tmp_path: Path, case: str) -> None:
    changes, reason = REFUSED[case]
    config = owned_config(data, tmp_path, **{"systems": 2, **changes})
    with pytest.raises(OpenwaferError, match=rf"\[experts-owners\].*for each other: .*{reason}"):
        Session(config, console=quiet()).plan()


def test_experts_of_another_code_are_refused(data: TinyData, tmp_path: Path) -> None:
    config = with_model(owned_config(data, tmp_path, systems=2), experts_implementation="eager")
    told = r"layers.0.mlp.experts: experts_implementation is eager, not grouped_mm"
    with pytest.raises(OpenwaferError, match=told):
        Session(config, console=quiet()).plan()


@pytest.mark.slow
def test_owners_are_refused_over_a_store_on_disk(data: TinyData, tmp_path: Path) -> None:
    config = owned_config(data, tmp_path, systems=2)
    streaming = replace(config.streaming, store=StoreTier.DISK)
    with pytest.raises(OpenwaferError, match=r"the parameter store is on disk"):
        Session(replace(config, streaming=streaming), console=quiet()).plan()


LLAMA = TransformersModel("llama", config={"hidden_size": 32, "num_hidden_layers": 1})


@pytest.mark.slow
def test_a_model_without_experts_has_no_way(data: TinyData, tmp_path: Path) -> None:
    config = owned_config(data, tmp_path, ExpertsWay.AUTO, systems=2, model=LLAMA)
    assert Session(config, console=quiet()).plan().expert_traffic is None


def test_a_model_without_experts_has_no_owners_of_them(data: TinyData, tmp_path: Path) -> None:
    config = owned_config(data, tmp_path, systems=2, model=LLAMA)
    with pytest.raises(OpenwaferError, match=r"\[experts-owners\].*: no weight holds experts"):
        Session(config, console=quiet()).plan()


@pytest.mark.slow
def test_a_loss_that_is_not_finite_leaves_the_steps_before_it_in_a_checkpoint(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    config = owned_config(data, tmp_path, clip_norm=None)
    optimizer = replace(config.optimizer, learning_rate=1e30)
    with pytest.raises(OpenwaferError, match=r"are safe in .*step-0000000"):
        pool.train(replace(config, optimizer=optimizer), 2)


@pytest.mark.slow
def test_systems_keep_to_the_memory_that_their_plan_foretells(
    data: TinyData, tmp_path: Path, pool: FollowerPool
) -> None:
    evaluating = EvaluateConfig(every=1, batches=1)
    config = owned_config(data, tmp_path, evaluate=evaluating)
    peak_bytes = Session(replace(config, systems=3), console=quiet()).plan().predicted_peak_bytes
    # Above its budget a device of a run refuses to hold anything.
    assert pool.train(replace(config, device_memory=peak_bytes), 3).is_complete
