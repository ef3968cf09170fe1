"""The described files, written out, load in the transformers library as the same function."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from openwafer.training.models import GptConfig, TransformersModel, build
from openwafer.training.models.export import SAFETENSORS_METADATA, hugging_face_files
from tests.training.architectures import Architecture, family_rows

GPT = GptConfig(vocab_size=50, context_length=32, hidden_size=32, num_layers=2, num_heads=4)


def write(model: nn.Module, folder: Path) -> Path:
    files, state = hugging_face_files(model), model.state_dict()
    tensors = {name: state[own].contiguous() for own, name in files.names.items()}
    save_file(tensors, folder / "model.safetensors", metadata=SAFETENSORS_METADATA)
    for name, content in files.json_files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def load(model_class: Any, folder: Path) -> nn.Module:
    """Load a model that must find all its weights and use all those in the file."""
    model, info = model_class.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    loaded: nn.Module = model
    return loaded


@pytest.mark.parametrize(
    "config",
    [GPT, replace(GPT, has_tied_embeddings=False), replace(GPT, num_kv_heads=2, rope_theta=5e5)],
    ids=["tied", "untied", "grouped"],
)
def test_the_reference_gpt_loads_as_a_causal_lm(tmp_path: Path, config: GptConfig) -> None:
    model = build(config, seed=2)
    loaded = load(transformers.AutoModelForCausalLM, write(model, tmp_path))
    ids = torch.randint(50, (2, 20), generator=torch.Generator().manual_seed(0))
    ours, theirs = model(ids, ids), loaded(ids, labels=ids)
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-6, atol=0)


def test_the_exported_reference_gpt_generates(tmp_path: Path) -> None:
    model = build(GPT, seed=2)
    loaded: Any = load(transformers.AutoModelForCausalLM, write(model, tmp_path))
    ids = torch.tensor([[7, 3, 9]])
    text = loaded.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False
    )
    for end in range(3, 8):
        assert model(text[:, :end]).logits[0, -1].argmax() == text[0, end]


@family_rows
def test_a_model_of_the_library_loads_with_every_weight(tmp_path: Path, row: Architecture) -> None:
    model = row.build(seed=2)
    loaded = load(getattr(transformers, row.model_class), write(model, tmp_path)).state_dict()
    state = model.state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], state[name]) for name in state)


@family_rows
def test_the_config_is_what_the_library_writes(tmp_path: Path, row: Architecture) -> None:
    model: Any = row.build()
    ours = hugging_face_files(model).json_files
    model.save_pretrained(tmp_path)
    for name, content in ours.items():
        theirs = json.loads((tmp_path / name).read_text())
        assert without_cache(theirs) == without_cache(content)


def without_cache(content: Any) -> Any:
    """Drop what training switches off and an export leaves to the default."""
    if not isinstance(content, dict):
        return content
    return {key: without_cache(v) for key, v in content.items() if key != "use_cache"}


def test_an_exported_model_uses_its_cache_again(tmp_path: Path) -> None:
    model = build(TransformersModel("GPT2LMHeadModel", config={"n_embd": 12, "n_layer": 1}), seed=0)
    loaded: Any = load(transformers.AutoModelForCausalLM, write(model, tmp_path))
    assert loaded(input_ids=torch.tensor([[1, 2]])).past_key_values is not None


def test_a_tied_weight_is_stored_once() -> None:
    names = hugging_face_files(build(GPT, seed=0)).names
    assert "model.embed_tokens.weight" in names.values()
    assert "lm_head.weight" not in names.values()
    untied = hugging_face_files(build(replace(GPT, has_tied_embeddings=False), seed=0)).names
    assert len(untied) == len(names) + 1


@family_rows
def test_names_are_those_of_named_parameters_and_need_no_weights(row: Architecture) -> None:
    files = hugging_face_files(row.build())
    with torch.device("meta"):
        hollow = row.build()
    assert hugging_face_files(hollow) == files
    assert {name for name, _ in hollow.named_parameters()} <= set(files.names)


def test_the_config_says_the_type_of_the_tensors() -> None:
    files = hugging_face_files(build(GPT, seed=0), torch.bfloat16)
    assert files.json_files["config.json"]["dtype"] == "bfloat16"


def test_a_users_module_keeps_its_names_and_has_no_config() -> None:
    files = hugging_face_files(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    assert list(files.names)[:2] == ["0.weight", "0.bias"]
    assert files.names["1.running_mean"] == "1.running_mean"
    assert files.json_files == {}
