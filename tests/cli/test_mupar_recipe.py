"""The recipe of S-muPar has the standard deviations and the rates of its rule, arXiv 2405.15743.

Hidden weights: variance and Adam's rate divided by the width times the density, in units of those
of the dense model. Embedding and head as that model has them, logits divided by the width.
"""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from openwafer.training.session import RunConfig, load_config
from openwafer.training.session.building import build_model
from openwafer.training.session.parameter_groups import build_optimizers
from openwafer.training.sparsity.rooms import rooms_of
from tests.cli.command import EXAMPLES

DENSE_WIDTH, DENSE_STD, DENSE_RATE = 512, 0.02, 0.001
TABLES = ("model.embed_tokens.weight", "lm_head.weight")
VOCABULARY = 300
SMALL = (
    "model.config.hidden_size=64",
    "model.config.intermediate_size=96",
    "model.config.num_attention_heads=1",
)


def recipe(*values: str) -> RunConfig:
    return load_config(
        EXAMPLES / "sparse-mupar.yaml", ("model.config.num_hidden_layers=1", *values)
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One layer of the recipe's widths, as a run begins with it."""
    return build_model(recipe(), VOCABULARY, tmp_path_factory.mktemp("scratch"))


def products(model: Any) -> dict[str, float]:
    """Width times density of each hidden weight, in units of the dense model's."""
    width = model.config.hidden_size / DENSE_WIDTH
    parameters = dict(model.named_parameters())
    return {
        name: width * parameters[name].numel() / math.prod(room.shape)
        for name, room in rooms_of(model).items()
    }


def rates(model: nn.Module, config: RunConfig) -> dict[str, float]:
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    (optimizer,) = build_optimizers(model, config.optimizer)
    return {
        name_of[parameter]: group["lr"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def test_hidden_weights_begin_with_the_standard_deviation_of_the_rule(model: Any) -> None:
    found = {
        name: p.std().item() for name, p in model.named_parameters() if name in products(model)
    }
    expected = {name: DENSE_STD / product**0.5 for name, product in products(model).items()}
    assert len(found) == 7
    assert found == pytest.approx(expected, rel=0.01)


def test_hidden_weights_learn_at_the_rate_of_the_rule(model: Any) -> None:
    found = rates(model, recipe())
    for name, product in products(model).items():
        assert found[name] == pytest.approx(DENSE_RATE / product)


def test_norms_learn_at_the_rate_of_the_dense_model(model: Any) -> None:
    norms = {rate for name, rate in rates(model, recipe()).items() if "norm" in name}
    assert norms == {DENSE_RATE}


def test_embedding_and_head_multiply_as_if_drawn_as_in_the_dense_model(model: Any) -> None:
    embedding, head = (model.get_parameter(name).std().item() for name in TABLES)
    assert embedding * model.config.embedding_multiplier == pytest.approx(DENSE_STD, rel=0.01)
    width = model.config.hidden_size / DENSE_WIDTH
    assert head / model.config.logits_scaling == pytest.approx(DENSE_STD / width, rel=0.01)


def losses(model: Any, optimizer: torch.optim.Optimizer) -> Iterator[float]:
    """Of eight plain steps on the same tokens."""
    tokens = torch.arange(64).reshape(2, 32) % 29
    for _ in range(8):
        loss = model(tokens, labels=tokens).loss
        yield loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_embedding_and_head_learn_as_if_drawn_as_in_the_dense_model(tmp_path: Path) -> None:
    config = recipe(*SMALL, "sparsity=null")
    drawn = build_model(config, VOCABULARY, tmp_path)
    stated: Any = copy.deepcopy(drawn)
    stated.model.embedding_multiplier, stated.config.logits_scaling = 1.0, 2.0
    own = rates(stated, config) | dict.fromkeys(TABLES, DENSE_RATE)
    for name in TABLES:
        stated.get_parameter(name).data /= 2
    groups = [{"params": [p], "lr": own[name]} for name, p in stated.named_parameters()]
    plain = torch.optim.AdamW(groups, weight_decay=0.0)
    (optimizer,) = build_optimizers(drawn, config.optimizer)
    assert list(losses(drawn, optimizer)) == pytest.approx(list(losses(stated, plain)), rel=1e-4)
