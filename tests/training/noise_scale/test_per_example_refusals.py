"""Where examples' gradients cannot be told apart, the model is refused, by the name of the part."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import OPTConfig, OPTForCausalLM

from openwafer.diagnostics import OpenwaferError, render
from openwafer.training.noise_scale import PerExampleNorms, Watched
from tests.training.noise_scale.per_example_models import batch_for, library

IDS_BT = torch.arange(12).reshape(3, 4)


class Small(nn.Module):
    """A table, a map that is called a number of times, and something added by code."""

    def __init__(self, num_calls: int = 1, *, has_scale: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 5)
        self.map = nn.Linear(5, 5)
        self.num_calls = num_calls
        self.scale = nn.Parameter(torch.ones(5)) if has_scale else None

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD: Tensor = self.table(ids_BT)
        for _ in range(self.num_calls):
            x_BTD = self.map(x_BTD)
        return x_BTD if self.scale is None else x_BTD * self.scale


class Direct(Small):
    """Uses the map's weight without calling it."""

    def forward(self, ids_BT: Tensor) -> Tensor:
        return F.linear(self.table(ids_BT), self.map.weight, self.map.bias)


class Headed(Small):
    """Two maps share the table's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(5, 12, bias=False) for _ in range(2))
        for head in self.heads:
            head.weight = self.table.weight

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = super().forward(ids_BT)
        logits_BTV: Tensor = self.heads[0](x_BTD) + self.heads[1](x_BTD)
        return logits_BTV


class Gated(nn.RMSNorm):
    """What it normalises is not what it is given first."""

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(x if gate is None else x * gate)


class GatedModel(Small):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Gated(5, eps=1e-5)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = super().forward(ids_BT)
        normalised_BTD: Tensor = self.norm(x_BTD, x_BTD)
        return normalised_BTD


def refused(model: nn.Module, watched: Watched = Watched.ALL) -> str:
    with pytest.raises(OpenwaferError, match="noise-scale-") as found:
        measure(model, watched)
    return render(found.value.diagnostics[0])


def measure(model: nn.Module, watched: Watched) -> None:
    norms = PerExampleNorms(model, 3, watched)
    with norms.measuring() as examples:
        loss = model(IDS_BT).square().mean()
    loss.backward()
    examples.total(norms.names)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Small(has_scale=True), "'scale' belong to other modules than such"),
        (Small(num_calls=2), "'map' is called more than once in a forward"),
        (Direct(), "gradients of 'map.weight', 'map.bias' come from no call of a module"),
        (Headed(), "'table.weight' is shared by other modules than one table and one map"),
        (GatedModel(), "'norm' is called with 2 tensors"),
    ],
)
def test_a_model_whose_gradients_are_not_known_is_refused(model: nn.Module, told: str) -> None:
    assert told in refused(model)


def test_a_model_without_normalisation_layers_has_no_cheap_estimate() -> None:
    told = refused(Small(), Watched.NORMS)
    assert "error[noise-scale-layers]: Small has no normalisation layer with weights" in told
    assert "train without the noise scale" in told


def test_a_model_that_joins_its_examples_tokens_is_refused() -> None:
    model = library(OPTForCausalLM, OPTConfig, ffn_dim=48, dropout=0.0)()
    norms = PerExampleNorms(model, 4, Watched.NORMS)
    with (
        pytest.raises(OpenwaferError, match=r"shape \(48, 32\), whose first dim does not count"),
        norms.measuring(),
    ):
        model(**batch_for(model))


def test_a_batch_of_another_size_is_refused() -> None:
    model = Small()
    norms = PerExampleNorms(model, 4, Watched.ALL)
    with (
        pytest.raises(OpenwaferError, match=r"\(3, 4\), whose first dim does not count the 4"),
        norms.measuring(),
    ):
        model(IDS_BT)
