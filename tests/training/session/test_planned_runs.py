"""A plan without a run: nothing is created, and what cannot fit is refused with numbers."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.metrics import load_run
from openwafer.training.metrics.run_record import PLAN
from openwafer.training.models import GptConfig
from openwafer.training.plan_record import (
    Activations,
    Home,
    Limit,
    Mode,
    PlanRecord,
)
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import BatchConfig, StreamingConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import GPT, TinyData, tiny_config, train_quietly


def plan(config: RunConfig) -> PlanRecord:
    return Session(config).plan()


def test_a_plan_creates_nothing(data: TinyData, tmp_path: Path) -> None:
    plan(tiny_config(data, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_fits_is_resident(data: TinyData, tmp_path: Path) -> None:
    config = replace(tiny_config(data, tmp_path), streaming=StreamingConfig(device="cpu"))
    assert plan(config).mode is Mode.RESIDENT


def test_the_plan_before_a_run_is_the_plan_of_the_run(data: TinyData, tmp_path: Path) -> None:
    config = replace(tiny_config(data, tmp_path, StoreTier.DISK), model=GPT)
    before = asdict(plan(config))
    during = asdict(PLAN.read(train_quietly(config).folder))
    # Times are measured, if only once a process, and so is what the process holds.
    for key in ("predicted_step_seconds", "step_limit", "predicted_host_bytes"):
        del before[key], during[key]
    assert before == during


@pytest.mark.slow
def test_a_step_of_several_micro_batches_takes_the_device_bytes_that_were_planned(
    data: TinyData, tmp_path: Path
) -> None:
    batch = BatchConfig(size=6, sequence_length=12, micro_batches=3)
    run = load_run(
        train_quietly(replace(tiny_config(data, tmp_path), model=GPT, batch=batch)).folder
    )
    metered = {row.device_bytes_peak for row in run.metrics.rows} - {None}
    assert metered == {run.plan.predicted_peak_bytes}


def test_a_step_of_a_resident_model_takes_the_device_bytes_that_were_planned(
    data: TinyData, tmp_path: Path
) -> None:
    config = replace(tiny_config(data, tmp_path), streaming=StreamingConfig(device="cpu"))
    run = load_run(train_quietly(config).folder)
    metered = max(filter(None, (row.device_bytes_peak for row in run.metrics.rows)))
    # The plan has the states as the store keeps them, in whole pages.
    assert 0.95 * run.plan.predicted_peak_bytes < metered <= run.plan.predicted_peak_bytes


def test_the_disk_is_measured_for_a_store_on_disk(data: TinyData, tmp_path: Path) -> None:
    rate = plan(tiny_config(data, tmp_path, StoreTier.DISK)).disk_limit_bytes_per_second
    assert rate is not None
    assert rate > 0


def test_no_disk_is_measured_for_a_store_in_dram(data: TinyData, tmp_path: Path) -> None:
    planned = plan(tiny_config(data, tmp_path, StoreTier.DRAM))
    assert planned.disk_limit_bytes_per_second is None
    assert planned.step_limit is Limit.COMPUTE


def test_a_model_beyond_memory_is_planned_without_its_weights(
    data: TinyData, tmp_path: Path
) -> None:
    large = GptConfig(hidden_size=8192, num_layers=2, num_heads=64, vocab_size=50_000)
    config = replace(
        tiny_config(data, tmp_path), model=large, streaming=StreamingConfig(store=StoreTier.DISK)
    )
    planned = plan(replace(config, device_memory=8 << 30))
    assert planned.parameters > 2_000_000_000
    assert {layer.states_tier for layer in planned.layers} == {Home.DISK}


def test_a_device_that_is_too_small_is_refused_with_numbers(data: TinyData, tmp_path: Path) -> None:
    config = replace(tiny_config(data, tmp_path), device_memory=50_000)
    with pytest.raises(
        OpenwaferError,
        match=r"needs ([\d,]+) bytes on the device, and the budget is 50,000 bytes \([\d,]+ short",
    ):
        plan(config)


def test_a_store_that_is_too_large_is_refused_with_numbers(data: TinyData, tmp_path: Path) -> None:
    config = tiny_config(data, tmp_path)
    config = replace(config, streaming=replace(config.streaming, host_memory=10_000))
    with pytest.raises(OpenwaferError, match=r"need ([\d,]+) bytes.*may use 10,000 bytes of host"):
        plan(config)


def test_a_device_that_torch_has_no_name_for_is_refused(data: TinyData, tmp_path: Path) -> None:
    config = replace(tiny_config(data, tmp_path), streaming=StreamingConfig(device="gpu"))
    with pytest.raises(OpenwaferError, match=r"torch knows no device 'gpu'\n.*write auto, cpu, "):
        plan(config)


def test_activations_of_a_layer_that_is_none_are_refused(data: TinyData, tmp_path: Path) -> None:
    streaming = StreamingConfig(device="cpu", activations={"layers.7": Activations.KEEP})
    config = replace(tiny_config(data, tmp_path), streaming=streaming)
    with pytest.raises(
        OpenwaferError, match=r"for 'layers.7', which is none of .* 2 layers\n.*did"
    ):
        plan(config)
