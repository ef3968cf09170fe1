"""A checkpoint folder larger than memory is read with a few tensors in it, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from openwafer.training.models import CheckpointFolder, Task, build
from openwafer.training.models.build import build_without_weights
from openwafer.training.store.deferred_memory import DeferredMemory
from tests.own_process import integers_of
from tests.tables import case, checkerboard
from tests.training.architectures import ARCHITECTURES
from tests.training.models.large_checkpoint import save_llama

ROWS = {row.name: row for row in ARCHITECTURES}


def saved(name: str, folder: Path, dtype: torch.dtype) -> Any:
    """A folder in shards, and its class."""
    model: Any = ROWS[name].build(seed=1)
    model.to(dtype).save_pretrained(folder, max_shard_size="20KB")
    return type(model)


@pytest.mark.parametrize(
    ("name", "dtype"), checkerboard(("llama", "gpt2", "mixtral"), (torch.float32, torch.bfloat16))
)
def test_a_deferred_folder_has_the_bits_of_from_pretrained(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    model_class = saved(name, tmp_path / "saved", dtype)
    with DeferredMemory(tmp_path, resident_bytes=0, min_bytes=64):
        found = build(CheckpointFolder(tmp_path / "saved"), seed=0).state_dict()
    expected = model_class.from_pretrained(tmp_path / "saved", dtype=torch.float32).state_dict()
    assert found.keys() == expected.keys()
    assert [key for key in expected if not torch.equal(found[key], expected[key])] == []


def test_a_new_head_is_drawn_as_from_pretrained_draws_it(tmp_path: Path) -> None:
    saved("llama", tmp_path / "saved", torch.bfloat16)
    described = CheckpointFolder(tmp_path / "saved", task=Task.SEQUENCE_CLASSIFICATION)
    with DeferredMemory(tmp_path, resident_bytes=0, min_bytes=64):
        found = build(described, seed=7).get_parameter("score.weight")
    torch.manual_seed(7)
    library: Any = transformers.AutoModelForSequenceClassification
    model = library.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    assert torch.equal(found, model.score.weight)


def test_a_folder_without_its_weights_tells_all_but_them(tmp_path: Path) -> None:
    saved("llama", tmp_path, torch.float32)
    whole = build(CheckpointFolder(tmp_path), seed=0)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    hollow = build_without_weights(CheckpointFolder(tmp_path), seed=0)
    assert hollow is not None
    assert {n: p.shape for n, p in hollow.named_parameters()} == {
        n: p.shape for n, p in whole.named_parameters()
    }
    assert all(map(torch.equal, hollow.buffers(), whole.buffers()))


def test_a_folder_whose_files_hold_buffers_too_is_not_told_without_them(tmp_path: Path) -> None:
    saved("resnet", tmp_path, torch.float32)
    described = CheckpointFolder(tmp_path, task=Task.IMAGE_CLASSIFICATION)
    assert build_without_weights(described, seed=0) is None


@pytest.mark.parametrize(
    "dtype",
    [
        case(torch.float32, by_default=False, id="mapped"),
        case(torch.bfloat16, by_default=True, id="converted"),
    ],
)
def test_a_large_folder_is_read_with_a_few_tensors_in_memory(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    save_llama(small, 1, dtype)
    save_llama(large, 8, dtype)
    raised, weights = integers_of("tests.training.models.large_checkpoint", small, large)
    assert raised < 32 << 20 < weights // 3
