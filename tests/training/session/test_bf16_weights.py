"""Runs whose weights are bf16: their fp32 masters are those of a loop written by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from openwafer.training.metrics.run_record import load_run
from openwafer.training.metrics.step_lines import measured_peaks
from openwafer.training.models import build
from openwafer.training.models.build import with_vocab_size
from openwafer.training.plan_record import Mode
from openwafer.training.session import ExportFormat, Precision, RunConfig, Session, Weights
from openwafer.training.session.config_sections import (
    BatchConfig,
    OptimizerConfig,
    ScheduleConfig,
    StreamingConfig,
)
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.session.master_loop import master_loop, saved_masters
from tests.training.session.test_averages import PlainAverage
from tests.training.session.tiny_runs import (
    MODEL,
    TinyData,
    differing,
    quiet,
    saved_arrays,
    saved_parameters,
    tiny_config,
    train_quietly,
)
from tests.training.stream.axes import TIERS


def config_of(data: TinyData, folder: Path, tier: StoreTier = StoreTier.DRAM) -> RunConfig:
    return replace(
        tiny_config(data, folder, tier),
        weights=Weights.BF16,
        steps=20,
        clip_norm=0.5,
        batch=BatchConfig(size=4, sequence_length=12, micro_batches=2),
        optimizer=OptimizerConfig(learning_rate=0.01),
        schedule=ScheduleConfig("constant", {"num_warm_up_steps": 1}),
    )


@pytest.mark.slow
def test_masters_and_weights_are_those_of_the_loop(data: TinyData, tmp_path: Path) -> None:
    config = config_of(data, tmp_path)
    result, masters = train_quietly(config), master_loop(config)
    weights = {name: master.to(torch.bfloat16) for name, master in masters.items()}
    assert differing(saved_masters(result), masters) == []
    assert differing(saved_parameters(result), weights) == []


BESIDE_ADAMW = ("lion", "muon", "adafactor", "lamb", "nadam")


@pytest.mark.parametrize("optimizer", [case(o, by_default=o == "muon") for o in BESIDE_ADAMW])
def test_every_rule_updates_the_masters(data: TinyData, tmp_path: Path, optimizer: str) -> None:
    config = replace(
        config_of(data, tmp_path, StoreTier.DISK),
        steps=4,
        optimizer=OptimizerConfig(optimizer, 0.01),
    )
    assert differing(saved_masters(train_quietly(config)), master_loop(config)) == []


@pytest.mark.slow
def test_resident_weights_are_those_of_the_loop(data: TinyData, tmp_path: Path) -> None:
    streaming = StreamingConfig(device="cpu", mode=Mode.RESIDENT)
    config = replace(config_of(data, tmp_path), streaming=streaming)
    assert differing(saved_masters(train_quietly(config)), master_loop(config)) == []


def test_masters_begin_as_the_fp32_weights_of_the_same_seed(data: TinyData, tmp_path: Path) -> None:
    optimizer = OptimizerConfig("sgd", learning_rate=0.0, weight_decay=0.0)
    config = replace(config_of(data, tmp_path), steps=1, optimizer=optimizer)
    first = build(with_vocab_size(config.model, 280), config.seed)
    masters = saved_masters(train_quietly(config))
    assert differing(masters, dict(first.named_parameters())) == []


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_masters(data: TinyData, tmp_path: Path) -> None:
    config = replace(config_of(data, tmp_path / "cut", StoreTier.DISK), steps=6)
    train_quietly(replace(config, steps=3))
    resumed = Session(config, console=quiet()).resume()
    unbroken = train_quietly(replace(config, folder=tmp_path / "whole"))
    assert differing(saved_arrays(resumed), saved_arrays(unbroken)) == []


# By default masters meet averages in test_covering_runs.
@pytest.mark.slow
def test_the_average_is_that_of_the_masters(data: TinyData, tmp_path: Path) -> None:
    config = replace(config_of(data, tmp_path), ema=0.9)
    train_quietly(config)
    average = PlainAverage()
    master_loop(config, average)
    form = ExportFormat(torch.float32, uses_average=True)
    folder = Session(config, console=quiet()).export(tmp_path / "average", form)
    assert differing(load_file(folder / "model.safetensors"), average.weights()) == []


@pytest.mark.parametrize("tier", TIERS)
def test_an_export_holds_the_weights_or_on_request_the_masters(
    data: TinyData, tmp_path: Path, tier: StoreTier
) -> None:
    config = replace(config_of(data, tmp_path, tier), steps=2)
    result = train_quietly(config)
    session = Session(config, console=quiet())
    plain = session.export(tmp_path / "plain")
    exact = session.export(tmp_path / "exact", ExportFormat(torch.float32))
    assert differing(load_file(plain / "model.safetensors"), saved_parameters(result)) == []
    assert differing(load_file(exact / "model.safetensors"), saved_masters(result)) == []


def test_a_step_moves_half_the_bytes_within_the_planned_peak(
    data: TinyData, tmp_path: Path
) -> None:
    model = replace(MODEL, kwargs={"size": 128})
    config = replace(config_of(data, tmp_path), model=model, steps=2)
    run = load_run(train_quietly(config).folder)
    fp32 = Session(replace(config, weights=Weights.FP32)).plan().step_bytes
    moved, planned = run.metrics.rows[-1], run.plan.step_bytes
    assert (moved.fetch_bytes, moved.push_bytes) == (planned.fetch, planned.push)
    assert planned.fetch == pytest.approx(fp32.fetch / 2, rel=0.03)
    assert planned.push == pytest.approx(fp32.push / 2, rel=0.03)
    peak = max(measured_peaks(run.metrics.rows).values())
    assert peak == pytest.approx(run.plan.predicted_peak_bytes, rel=0.05)


def test_masters_under_autocast_are_those_of_the_loop(data: TinyData, tmp_path: Path) -> None:
    config = replace(config_of(data, tmp_path), steps=2, precision=Precision.BF16)
    assert differing(saved_masters(train_quietly(config)), master_loop(config)) == []
