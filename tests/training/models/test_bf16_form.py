"""The bf16 form of a model has the dtypes that its library or torch gives it."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from openwafer.training.models.hollow import take_bf16_form

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}
LLAMA = transformers.LlamaConfig(**SIZES, intermediate_size=16)


def dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    return {
        name: tensor.dtype for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }


@pytest.mark.parametrize("kept", [None, ["input_layernorm"]])
def test_a_model_of_the_library_has_the_dtypes_of_from_pretrained(
    tmp_path: Path, kept: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = transformers.LlamaForCausalLM
    monkeypatch.setattr(kind, "_keep_in_fp32_modules_strict", kept)
    model = kind(LLAMA)
    model.save_pretrained(tmp_path)
    take_bf16_form(model)
    assert dtypes(model) == dtypes(kind.from_pretrained(tmp_path, dtype=torch.bfloat16))


def test_a_module_of_a_users_own_has_the_dtypes_of_torch() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    take_bf16_form(model)
    assert dtypes(model) == dtypes(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).bfloat16())


def test_parameters_take_no_memory() -> None:
    model = nn.Linear(1000, 1000)
    take_bf16_form(model)
    assert model.weight.untyped_storage().nbytes() == 2
