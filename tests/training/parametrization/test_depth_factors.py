"""Factors of depth are those of the table, by number, on top of those of width."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from torch import nn

from openwafer.training.models import TransformersModel
from openwafer.training.session import RunConfig
from openwafer.training.session.building import build_hollow_model, build_model, make_optimizers
from openwafer.training.session.config_sections import OptimizerConfig
from tests.tables import case
from tests.training.parametrization.wide_models import (
    GPT2,
    LLAMA,
    MIXTRAL,
    T5,
    VOCABULARY,
    WideModel,
)

DEEPER = 4
EPS = 1e-8


@dataclass(frozen=True)
class DeepModel:
    """A model of four layers, of one in its base, and which of its tensors are where, by hand.

    Attributes:
        wide: the same with one layer, and its table of factors of width.
        layers: the fields of its config with the number of layers.
        ends: endings of the names of those whose products are added to the residual.
        outside: beginnings of the names of those that are in no branch, or shared by all.
    """

    wide: WideModel
    layers: tuple[str, ...]
    ends: tuple[str, ...]
    outside: tuple[str, ...]

    def config(self, optimizer: OptimizerConfig) -> RunConfig:
        described = self.wide.model
        own = {**described.config, **dict.fromkeys(self.layers, DEEPER)}
        base = {**self.wide.base, **dict.fromkeys(self.layers, 1)}
        config = self.wide.config(optimizer)
        model = TransformersModel(described.architecture, config=own)
        return replace(config, model=model, base=base)

    def factors(self, end: float, inside: float, names: list[str]) -> Mapping[str, float]:
        return {
            name: end
            if name.endswith(self.ends)
            else 1
            if name.startswith(self.outside)
            else inside
            for name in names
        }


DEEP_MODELS = {
    "gpt2": DeepModel(
        GPT2,
        ("n_layer",),
        ("c_proj.weight", "c_proj.bias"),
        ("transformer.wte", "transformer.wpe", "transformer.ln_f"),
    ),
    "llama": DeepModel(
        LLAMA,
        ("num_hidden_layers",),
        ("o_proj.weight", "down_proj.weight"),
        ("model.embed_tokens", "model.norm", "lm_head"),
    ),
    "mixtral": DeepModel(
        MIXTRAL,
        ("num_hidden_layers",),
        ("o_proj.weight", "experts.down_proj"),
        ("model.embed_tokens", "model.norm", "lm_head"),
    ),
    "t5": DeepModel(
        T5,
        ("num_layers", "num_decoder_layers"),
        ("Attention.o.weight", "wo.weight"),
        (
            "shared",
            "encoder.final_layer_norm",
            "decoder.final_layer_norm",
            # All layers add the bias of the first to their scores.
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
            "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        ),
    ),
}
# By optimizer, what multiplies the rate of what ends a branch, and of the others in it.
RATES = {"adamw": (1 / DEEPER, 1), "lion": (1 / DEEPER, 1), "sgd": (1 / DEEPER, DEEPER)}


# Of a module: what muP has found out of a model serves its tests one after the other.
@pytest.fixture(
    scope="module", params=[case(name, by_default=name != "llama") for name in DEEP_MODELS]
)
def deep(request: pytest.FixtureRequest) -> DeepModel:
    return DEEP_MODELS[request.param]


def groups(
    deep: DeepModel, optimizer: OptimizerConfig, folder: Path
) -> dict[str, dict[str, float]]:
    """The settings of each parameter."""
    config = deep.config(optimizer)
    model: nn.Module = build_hollow_model(config, VOCABULARY, folder)
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    return {
        name_of[parameter]: {**group, "is_muons": type(built).__name__ == "Muon"}
        for built in make_optimizers(model, config, VOCABULARY)
        for group in built.param_groups
        for parameter in group["params"]
    }


@pytest.mark.parametrize("optimizer", [case(o, by_default=o != "lion") for o in RATES])
def test_rates_are_those_of_width_times_those_of_depth(
    deep: DeepModel, optimizer: str, tmp_path: Path
) -> None:
    found = groups(deep, OptimizerConfig(optimizer, 1.0), tmp_path)
    depth = deep.factors(*RATES[optimizer], [*found])
    for name, settings in found.items():
        row = deep.wide.expected(name)
        width = row.sgd if optimizer == "sgd" else row.adam
        assert settings["lr"] == pytest.approx(width * depth[name]), name


def test_rates_of_muon_shrink_where_a_branch_ends(deep: DeepModel, tmp_path: Path) -> None:
    found = groups(deep, OptimizerConfig("muon", 1.0), tmp_path)
    depth = deep.factors(1 / DEEPER, 1, [*found])
    for name, settings in found.items():
        row = deep.wide.expected(name)
        width = row.muon if settings["is_muons"] else row.adam
        assert width is not None
        assert settings["lr"] == pytest.approx(width * depth[name]), name


def test_eps_shrinks_in_a_branch_but_not_where_it_ends(deep: DeepModel, tmp_path: Path) -> None:
    found = groups(deep, OptimizerConfig("adamw", 1.0), tmp_path)
    depth = deep.factors(1, 1 / DEEPER, [*found])
    for name, settings in found.items():
        row = deep.wide.expected(name)
        expected = EPS * row.adam / row.sgd * depth[name]
        assert settings["eps"] == pytest.approx(expected, abs=0), name


def test_rate_times_weight_decay_stays_as_it_is(deep: DeepModel, tmp_path: Path) -> None:
    found = groups(deep, OptimizerConfig("adamw", 1.0, weight_decay=0.5), tmp_path)
    products = {settings["lr"] * settings["weight_decay"] for settings in found.values()}
    assert {round(product, 9) for product in products} == {0.0, 0.5}


def test_what_ends_a_branch_is_drawn_smaller_than_in_the_base(
    deep: DeepModel, tmp_path: Path
) -> None:
    """In GPT-2, than in the base: at its own depth it draws with 1 / sqrt(2 n_layer) already."""
    drawn = build_model(deep.config(OptimizerConfig()), VOCABULARY, tmp_path)
    depth = deep.factors(1 / DEEPER, 1, [name for name, _ in drawn.named_parameters()])
    for name, parameter in drawn.named_parameters():
        width = deep.wide.expected(name).std
        if width is None:
            continue
        error = 5 / (2 * parameter.numel()) ** 0.5
        found = parameter.square().mean().sqrt().item()
        assert found == pytest.approx(width * depth[name], rel=error), name
