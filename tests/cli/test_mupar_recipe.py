"""The recipe of S-muPar has the standard deviations and the rates of its rule, arXiv 2405.15743.

Hidden weights: variance and Adam's rate divided by the width times the density, in units of those
of the dense model. Embedding and head as that model has them, logits divided by the width. The
same again scaled by hand, in a model whose library has multipliers to set.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from openwafer.training.session import RunConfig, load_config
from openwafer.training.session.building import build_model, make_optimizers
from openwafer.training.sparsity.packed_linear import rooms_of
from tests.cli.command import EXAMPLES

DENSE_WIDTH, DENSE_STD, DENSE_RATE = 512, 0.02, 0.001
TABLES = ("model.embed_tokens.weight", "lm_head.weight")
VOCABULARY = 300
BY_HAND = Path(__file__).parent / "mupar_by_hand.yaml"


def recipe(*values: str, path: Path = EXAMPLES / "sparse-mupar.yaml") -> RunConfig:
    return load_config(path, ("model.config.num_hidden_layers=1", *values))


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
    (optimizer,) = make_optimizers(model, config, VOCABULARY)
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


def test_embedding_and_head_begin_and_learn_as_in_the_dense_model(model: Any) -> None:
    found = rates(model, recipe())
    for name in TABLES:
        assert model.get_parameter(name).std().item() == pytest.approx(DENSE_STD, rel=0.01)
        assert found[name] == DENSE_RATE


def losses(config: RunConfig, scratch: Path) -> Iterator[float]:
    """Of three plain steps on the same tokens."""
    model: Any = build_model(config, VOCABULARY, scratch)
    (optimizer,) = make_optimizers(model, config, VOCABULARY)
    tokens = torch.arange(64).reshape(2, 32) % 29
    for _ in range(3):
        loss = model(tokens, labels=tokens).loss
        yield loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.slow
def test_the_recipe_trains_as_the_one_that_is_scaled_by_hand(tmp_path: Path) -> None:
    automatic = recipe("optimizer.weight_decay=0", "sparse_products=dense")
    by_hand = recipe("sparse_products=dense", path=BY_HAND)
    expected = pytest.approx(list(losses(by_hand, tmp_path)), rel=1e-4)
    assert list(losses(automatic, tmp_path)) == expected
