"""A checkpoint folder gives its model back; what is missing or damaged in it is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import CheckpointFolder, Task, TransformersModel, build

TINY = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
CONFIG, WEIGHTS = "config.json", "model.safetensors"
LOAD_WITHOUT_NETWORK = """
import sys
from pathlib import Path
from openwafer.training.models import CheckpointFolder, build

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise SystemExit(f"{event} {arguments}")

sys.addaudithook(refuse)
build(CheckpointFolder(Path(sys.argv[1])), seed=0)
"""


@pytest.fixture
def model() -> nn.Module:
    return build(TransformersModel("llama", config=TINY), seed=3)


@pytest.fixture
def folder(tmp_path: Path, model: nn.Module) -> Path:
    assert isinstance(model, transformers.PreTrainedModel)
    model.save_pretrained(tmp_path)
    return tmp_path


def same(first: nn.Module, second: nn.Module) -> bool:
    mine, yours = first.state_dict(), second.state_dict()
    return mine.keys() == yours.keys() and all(torch.equal(mine[n], yours[n]) for n in mine)


def refusal(description: CheckpointFolder) -> str:
    with pytest.raises(OpenwaferError, match="error") as caught:
        build(description, seed=0)
    return str(caught.value)


def edit(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def test_the_saved_model_comes_back_in_training_mode(folder: Path, model: nn.Module) -> None:
    loaded = build(CheckpointFolder(folder), seed=0)
    assert same(loaded, model)
    assert loaded.training


def test_shards_are_read(tmp_path: Path, model: nn.Module) -> None:
    assert isinstance(model, transformers.PreTrainedModel)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert not (tmp_path / WEIGHTS).exists()
    assert same(build(CheckpointFolder(tmp_path), seed=0), model)


def test_half_precision_weights_become_float32(tmp_path: Path, model: nn.Module) -> None:
    assert isinstance(model, transformers.PreTrainedModel)
    model.bfloat16().save_pretrained(tmp_path)
    loaded = build(CheckpointFolder(tmp_path), seed=0)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert same(loaded, model.float())


def test_a_task_puts_a_new_head_drawn_by_the_seed_on_the_model(folder: Path) -> None:
    new_head = CheckpointFolder(folder, task=Task.SEQUENCE_CLASSIFICATION)
    first, again, other = (build(new_head, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(first["score.weight"], again["score.weight"])
    assert not torch.equal(first["score.weight"], other["score.weight"])


@pytest.mark.slow
def test_loading_opens_no_connection(folder: Path) -> None:
    online = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    command = [sys.executable, "-c", LOAD_WITHOUT_NETWORK, str(folder)]
    done = subprocess.run(command, env=online, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_no_folder_is_not_a_download(tmp_path: Path) -> None:
    text = refusal(CheckpointFolder(tmp_path / "gpt2"))
    assert f"no folder {tmp_path / 'gpt2'}" in text
    assert "nothing is downloaded" in text


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_missing_file_is_named_with_what_was_expected(folder: Path, name: str) -> None:
    (folder / name).unlink()
    text = refusal(CheckpointFolder(folder))
    assert f"{folder} holds no {name}" in text
    assert "expected: config.json, and model.safetensors or its shards" in text
    assert "found: " in text


def test_a_missing_shard_is_named(tmp_path: Path, model: nn.Module) -> None:
    assert isinstance(model, transformers.PreTrainedModel)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    shard = min(tmp_path.glob("model-*.safetensors"))
    shard.unlink()
    assert f"{tmp_path} holds no {shard.name}" in refusal(CheckpointFolder(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{,", "config.json: not JSON: "), ("[1]", "config.json: expected an object, found list [1]")],
)
def test_a_damaged_config_is_refused(folder: Path, text: str, message: str) -> None:
    (folder / CONFIG).write_text(text)
    assert message in refusal(CheckpointFolder(folder))


def test_an_unknown_model_type_is_told_the_closest(folder: Path) -> None:
    edit(folder / CONFIG, model_type="lama")
    text = refusal(CheckpointFolder(folder))
    assert "has the model type 'lama'" in text
    assert "did you mean 'llama'?" in text


def test_a_config_without_class_asks_for_a_task(folder: Path) -> None:
    edit(folder / CONFIG, architectures=None)
    assert "does not name the class of the model" in refusal(CheckpointFolder(folder))


def test_a_config_with_impossible_values_is_refused(folder: Path) -> None:
    edit(folder / CONFIG, hidden_size="wide")
    text = refusal(CheckpointFolder(folder))
    assert f"the library refuses {folder / CONFIG}" in text
    assert "hidden_size" in text


def test_truncated_weights_are_refused(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])
    assert f"cannot read the weights in {folder}" in refusal(CheckpointFolder(folder))


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    edit(folder / CONFIG, vocab_size=40)
    text = refusal(CheckpointFolder(folder))
    assert f"the weights in {folder} do not fit its config.json" in text


def test_missing_weights_are_listed(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights["model.norm.weight"]
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    text = refusal(CheckpointFolder(folder))
    assert "lacks 1 of the weights of LlamaForCausalLM" in text
    assert "model.norm.weight" in text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_listed(folder: Path, value: float) -> None:
    weights = load_file(folder / WEIGHTS)
    weights["model.norm.weight"][3] = value
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    text = refusal(CheckpointFolder(folder))
    assert "1 of the weights in" in text
    assert "= note: model.norm.weight" in text


def test_loading_prints_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build(CheckpointFolder(folder), seed=0)
    assert capfd.readouterr() == ("", "")
