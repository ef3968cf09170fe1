"""Sparsity without a filter leaves routers dense, and experts that are one weight, and says so."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import TransformersModel, build
from openwafer.training.session import Pruning, Session, sparsify
from openwafer.training.sparsity.options import SparsityGroup
from openwafer.training.stream.plan.experts import routers
from tests.training.models.mixtures import MIXTURES
from tests.training.session.mixture_runs import MIXTRAL
from tests.training.session.plain_sparse_loop import PlainSparsity, plain_sparse_loop
from tests.training.session.test_sparse_runs import sparse_config
from tests.training.session.tiny_runs import TinyData, differing, quiet

LAYER = "model.layers.*."
BY_HAND = {
    "mixtral": "mlp.gate.weight",
    "qwen2-moe": "mlp.gate.weight mlp.shared_expert_gate.weight",
    "jetmoe": "mlp.router.layer.weight self_attention.experts.router.layer.weight",
    "hunyuan-moe": "mlp.gate.wg.weight",
    "llama4": "feed_forward.router.weight",
    "jamba": "feed_forward.router.weight",
    "mamba": "",
}


class Listed(nn.Module):
    """A mixture whose experts are modules."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 8)) for _ in "1234"
        )


class Stacked(nn.Module):
    """A mixture whose experts are one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.out = nn.Linear(8, 4), nn.Linear(8, 8)
        self.experts = nn.Parameter(torch.zeros(4, 8, 8))


@pytest.mark.parametrize("name", BY_HAND)
def test_routers_of_the_library_are_found(name: str) -> None:
    [row] = [row for row in MIXTURES if row.name == name]
    model = build(TransformersModel(row.model_class, config=row.config), seed=0)
    found = {re.sub(r"\b\d+\b", "*", one) for one in routers(model)}
    assert found == {LAYER + one for one in BY_HAND[name].split()}


def test_routers_of_ones_own_are_found() -> None:
    model = nn.ModuleDict({"listed": Listed(), "stacked": Stacked(), "plain": nn.Linear(8, 4)})
    assert routers(model) == {"listed.gate.weight", "stacked.router.weight"}


@pytest.mark.slow
def test_a_mixture_trains_as_the_loop_with_sparse_attention(data: TinyData, tmp_path: Path) -> None:
    config = replace(sparse_config(data, tmp_path, 0.75), model=MIXTRAL, steps=3)
    out = io.StringIO()
    session = Session(config, console=Console(file=out))
    session.train()
    saved: dict[str, Tensor] = load_file(session.export(tmp_path / "out") / "model.safetensors")
    plain = plain_sparse_loop(config, PlainSparsity("static", {0: 0.75}), r".*\.self_attn\.")
    assert differing(saved, plain) == []
    assert "warning[sparsity-dense]: 4 parameters with 7" in out.getvalue()
    assert "model.layers.*.mlp.experts.gate_up_proj, of a MixtralExperts" in out.getvalue()


def test_experts_that_a_filter_names_are_refused_by_the_key(data: TinyData, tmp_path: Path) -> None:
    group = SparsityGroup(0.75, param_filter="*.mlp.experts.*")
    config = replace(sparse_config(data, tmp_path, group), model=MIXTRAL)
    message = r"gate_up_proj' belongs to a MixtralExperts(.|\n)*name in sparsity.param_filter"
    with pytest.raises(OpenwaferError, match=message):
        Session(config, console=quiet()).train()


@pytest.mark.slow
def test_a_mixture_is_pruned_but_for_routers_and_experts(data: TinyData, tmp_path: Path) -> None:
    config = replace(sparse_config(data, tmp_path, 0.5), model=MIXTRAL, steps=1)
    Session(replace(config, sparsity=None), console=quiet()).train()
    out = io.StringIO()
    pruned = sparsify(config.path, tmp_path / "out", Pruning(0.5), console=Console(file=out))
    assert {weight.name.split(".")[3] for weight in pruned.weights} == {"self_attn"}
    assert "sparsity-dense" in out.getvalue()
