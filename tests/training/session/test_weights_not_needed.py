"""What was saved takes the place of initial weights, which are then neither drawn nor read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from openwafer.training.models import CheckpointFolder, UserModule
from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig, Sampling, Session
from openwafer.training.session.building import build_hollow_model, build_model
from openwafer.training.session.config_sections import ScheduleConfig, StreamingConfig
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_parameters,
    tiny_config,
)

GREEDY = Sampling(max_new_tokens=4, temperature=0.0)


@pytest.fixture
def config(data: TinyData, tmp_path: Path) -> RunConfig:
    """A run on a saved model."""
    folder = tmp_path / "saved"
    transformers.AutoTokenizer.from_pretrained(data.tokenizer).save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    llama = transformers.LlamaConfig(vocab_size=280, num_attention_heads=2, **sizes)
    model: Any = transformers.LlamaForCausalLM(llama)
    model.save_pretrained(folder)
    schedule = ScheduleConfig("constant", {"num_warm_up_steps": 1})
    return replace(tiny_config(data, tmp_path), model=CheckpointFolder(folder), schedule=schedule)


def test_a_run_goes_on_without_the_weights_that_it_began_with(config: RunConfig) -> None:
    config = replace(config, streaming=StreamingConfig(device="cpu", mode=Mode.RESIDENT))
    expected = plain_loop(replace(config, steps=2))
    Session(replace(config, steps=1), console=quiet()).train()
    assert isinstance(config.model, CheckpointFolder)
    (config.model.path / "model.safetensors").unlink()
    resumed = Session(config.path, ["steps=2"], console=quiet())
    assert differing(saved_parameters(resumed.resume()), expected) == []


@pytest.mark.slow
def test_a_run_is_read_without_the_weights_that_it_began_with(
    config: RunConfig, tmp_path: Path
) -> None:
    session = Session(config, console=quiet())
    session.train()
    before = session.generate("3 squared", GREEDY), session.evaluate(1)
    assert isinstance(config.model, CheckpointFolder)
    (config.model.path / "model.safetensors").unlink()
    assert (session.generate("3 squared", GREEDY), session.evaluate(1)) == before
    assert (session.export(tmp_path / "exported") / "model.safetensors").is_file()


def test_a_hollow_model_draws_nothing(data: TinyData, tmp_path: Path) -> None:
    config = replace(tiny_config(data, tmp_path), seed=11)
    model = build_hollow_model(config, 300, tmp_path)
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    build_hollow_model(config, 300, tmp_path)
    assert torch.equal(torch.rand(3), expected)
    assert {parameter.untyped_storage().nbytes() for parameter in model.parameters()} == {4}


def test_a_module_larger_than_the_host_memory_lies_in_a_file(
    data: TinyData, tmp_path: Path
) -> None:
    config = replace(
        tiny_config(data, tmp_path),
        model=UserModule("tests.training.session.tiny_model:TinyModel", {"size": 256}),
        streaming=StreamingConfig(host_memory=400_000),
    )
    weights = dict(build_model(config, 300, tmp_path).named_parameters())
    is_in_memory = {name: w.untyped_storage().resizable() for name, w in weights.items()}
    assert is_in_memory["embedding.weight"]
    assert not is_in_memory["layers.1.weight"]


def test_a_module_that_lies_in_a_file_trains_to_the_same_bits(
    data: TinyData, tmp_path: Path
) -> None:
    config = tiny_config(data, tmp_path)
    module = UserModule("tests.training.session.tiny_model:TinyModel", {"size": 128})
    config = replace(
        config, model=module, streaming=replace(config.streaming, host_memory=2_000_000)
    )
    result = Session(config, console=quiet()).train()
    assert differing(saved_parameters(result), plain_loop(config)) == []
