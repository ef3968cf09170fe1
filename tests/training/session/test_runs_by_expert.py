"""Runs whose experts stream one by one are saved, resumed and exported as other runs are."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from openwafer.training.session import Sampling, Session, TrainResult, Weights
from openwafer.training.session.config_sections import EvaluateConfig, StreamingConfig
from openwafer.training.session.saved_model import ExportFormat
from openwafer.training.store import read_checkpoint
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.mixture_runs import mixture_config
from tests.training.session.tiny_runs import (
    NUM_STEPS,
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_arrays,
    saved_parameters,
    train_quietly,
)

WEIGHT = "model.layers.0.mlp.experts.gate_up_proj"
RESIDENT = StreamingConfig(device="cpu")


@pytest.fixture(scope="module")
def unbroken(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train_quietly(mixture_config(data, tmp_path_factory.mktemp("unbroken")))


@pytest.fixture(scope="module")
def on_disk(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    config = mixture_config(data, tmp_path_factory.mktemp("on-disk"), StoreTier.DISK)
    return train_quietly(replace(config, evaluate=EvaluateConfig(every=100, batches=2)))


def session_of(result: TrainResult) -> Session:
    return Session(result.folder, console=quiet())


def test_a_run_learns_what_the_plain_loop_does(unbroken: TrainResult) -> None:
    parameters, plain = saved_parameters(unbroken), plain_loop(session_of(unbroken).config)
    assert parameters[WEIGHT].shape == (8, 96, 32)
    assert differing(parameters, {name: plain[name] for name in parameters}) == []


@pytest.mark.slow
def test_a_run_on_disk_learns_the_same(unbroken: TrainResult, on_disk: TrainResult) -> None:
    assert differing(saved_parameters(on_disk), saved_parameters(unbroken)) == []


@pytest.mark.slow
@pytest.mark.parametrize("is_first_resident", [True, False])
def test_a_checkpoint_of_one_form_is_gone_on_from_in_the_other(
    data: TinyData, tmp_path: Path, unbroken: TrainResult, is_first_resident: bool
) -> None:
    streamed = mixture_config(data, tmp_path)
    resident = replace(streamed, streaming=RESIDENT)
    first, second = (resident, streamed) if is_first_resident else (streamed, resident)
    train_quietly(replace(first, steps=NUM_STEPS // 2))
    result = Session(second, console=quiet()).resume()
    assert differing(saved_arrays(result), saved_arrays(unbroken)) == []


def test_updates_are_counted_for_the_whole_weight(unbroken: TrainResult) -> None:
    assert unbroken.checkpoint is not None
    counts = read_checkpoint(unbroken.checkpoint).num_updates
    assert counts[WEIGHT] == NUM_STEPS
    assert not any("[" in name for name in counts)


def test_the_export_has_the_weights_whole(unbroken: TrainResult, tmp_path: Path) -> None:
    exported = session_of(unbroken).export(tmp_path / "exported", ExportFormat())
    model = transformers.AutoModelForCausalLM.from_pretrained(exported)
    parameters = saved_parameters(unbroken)
    assert all(torch.equal(parameters[name], p) for name, p in model.named_parameters())


@pytest.mark.slow
def test_masters_of_one_form_are_gone_on_from_in_the_other(data: TinyData, tmp_path: Path) -> None:
    streamed = replace(mixture_config(data, tmp_path), weights=Weights.BF16, ema=None)
    resident = replace(streamed, streaming=RESIDENT)
    unbroken = train_quietly(replace(resident, name="unbroken"))
    train_quietly(replace(streamed, steps=NUM_STEPS // 2))
    result = Session(resident, console=quiet()).resume()
    assert differing(saved_arrays(result), saved_arrays(unbroken)) == []


@pytest.mark.slow
def test_a_run_on_disk_is_read_as_a_resident_one_is(on_disk: TrainResult) -> None:
    streamed = session_of(on_disk)
    resident = Session(replace(streamed.config, streaming=RESIDENT), console=quiet())
    assert streamed.evaluate() == resident.evaluate()
    few = Sampling(max_new_tokens=3)
    assert streamed.generate("3 squared", few) == resident.generate("3 squared", few)
