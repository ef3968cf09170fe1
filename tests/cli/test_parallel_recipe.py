"""The recipe of Sparse-Parallel keeps the weights of a dense model in branches that are summed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from openwafer.training.models import UserModule, build
from openwafer.training.session import load_config
from openwafer.training.session.building import build_model
from tests.cli.command import EXAMPLES

pytestmark = pytest.mark.usefixtures("in_examples")
SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
}
LINEARS = ("gate_proj", "up_proj", "down_proj")


def test_the_branches_keep_as_many_weights_as_the_dense_model_has(tmp_path: Path) -> None:
    values = tuple(f"model.kwargs.{name}={value}" for name, value in SIZES.items())
    config = load_config(EXAMPLES / "sparse-parallel.yaml", values)
    sparse: Any = build_model(config, SIZES["vocab_size"], tmp_path)
    dense = LlamaForCausalLM(LlamaConfig(**SIZES))
    for name in LINEARS:
        branches = sparse.model.layers[0].mlp.get_submodule(name).branches
        kept = sum(branch[0].weight.numel() for branch in branches)
        assert kept == dense.model.layers[0].mlp.get_submodule(name).weight.numel()


def test_a_linear_map_becomes_a_sum_of_normalized_branches() -> None:
    described = UserModule("sparse_parallel:parallel_llama", {"num_branches": 3, **SIZES})
    model: Any = build(described, seed=0)
    x_BD = torch.randn(5, SIZES["hidden_size"])
    up = model.model.layers[0].mlp.up_proj
    expected = torch.zeros(5, SIZES["intermediate_size"])
    for branch in up.branches:
        y_BE = functional.linear(x_BD, branch[0].weight)
        expected += y_BE / y_BE.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(up(x_BD), expected)
