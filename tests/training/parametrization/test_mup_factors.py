"""Initial values, learning rates and multipliers are those of the paper's table, by number."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from openwafer.training.methods.mup import mup_of
from openwafer.training.session.building import build_hollow_model, build_model, make_optimizers
from openwafer.training.session.config_sections import OptimizerConfig
from tests.training.parametrization.wide_models import VOCABULARY, WIDE_MODELS, WideModel

ADAMW = OptimizerConfig(weight_decay=0.5, learning_rate=1.0)


# Of a module: what muP has found out of a model serves its tests one after the other.
@pytest.fixture(scope="module", params=WIDE_MODELS)
def wide(request: pytest.FixtureRequest) -> WideModel:
    return WIDE_MODELS[request.param]


@pytest.fixture
def model(wide: WideModel, tmp_path: Path) -> nn.Module:
    return build_hollow_model(wide.config(ADAMW), VOCABULARY, tmp_path)


def groups(
    model: nn.Module, wide: WideModel, optimizer: OptimizerConfig
) -> dict[str, tuple[str, float, float]]:
    """By parameter, the class of its optimizer, learning rate and weight decay."""
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    return {
        name_of[parameter]: (type(built).__name__, group["lr"], group["weight_decay"])
        for built in make_optimizers(model, wide.config(optimizer), VOCABULARY)
        for group in built.param_groups
        for parameter in group["params"]
    }


def test_initial_standard_deviations_are_those_of_the_table(
    wide: WideModel, tmp_path: Path
) -> None:
    drawn = build_model(wide.config(ADAMW), VOCABULARY, tmp_path)
    for name, parameter in drawn.named_parameters():
        expected = wide.expected(name).std
        if expected is None:
            assert bool((parameter == parameter.flatten()[0]).all()), name
            continue
        error = 5 / (2 * parameter.numel()) ** 0.5
        assert parameter.square().mean().sqrt().item() == pytest.approx(expected, rel=error), name


@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_rates_of_adam_and_lion_are_those_of_the_table(
    wide: WideModel, model: nn.Module, optimizer: str
) -> None:
    found = groups(model, wide, OptimizerConfig(optimizer, 1.0))
    rates = {name: rate for name, (_, rate, _) in found.items()}
    assert rates == pytest.approx({name: wide.expected(name).adam for name in rates})


def test_rates_of_sgd_are_those_of_the_table(wide: WideModel, model: nn.Module) -> None:
    found = groups(model, wide, OptimizerConfig("sgd", 1.0))
    rates = {name: rate for name, (_, rate, _) in found.items()}
    assert rates == pytest.approx({name: wide.expected(name).sgd for name in rates})


def test_rates_of_muon_keep_the_spectral_norm_of_updates(wide: WideModel, model: nn.Module) -> None:
    for name, (kind, rate, _) in groups(model, wide, OptimizerConfig("muon", 1.0)).items():
        expected = wide.expected(name)
        is_muons = kind == "Muon"
        assert is_muons == (expected.muon is not None), name
        assert rate == pytest.approx(expected.muon if is_muons else expected.adam), name


def test_rate_times_weight_decay_stays_as_it_is(wide: WideModel, model: nn.Module) -> None:
    found = groups(model, wide, ADAMW)
    products = {name: rate * decay for name, (_, rate, decay) in found.items()}
    expected = {
        name: 0.5 if parameter.ndim >= 2 else 0.0 for name, parameter in model.named_parameters()
    }
    assert products == pytest.approx(expected)


def test_outputs_are_multiplied_as_in_the_table(wide: WideModel) -> None:
    config = wide.config(ADAMW)
    mup = mup_of(config, config.base, VOCABULARY)
    assert mup.multipliers == pytest.approx(wide.multipliers)


def test_the_logits_of_a_wide_model_are_multiplied(tmp_path: Path) -> None:
    wide = WIDE_MODELS["llama"]
    model = build_model(wide.config(ADAMW), VOCABULARY, tmp_path).eval()
    tokens = torch.arange(8).reshape(1, 8)
    states = model(tokens, output_hidden_states=True).hidden_states[-1]
    expected = (states / 4) @ model.get_parameter("lm_head.weight").T
    assert torch.allclose(model(tokens).logits, expected, rtol=1e-4, atol=1e-6)


def test_muon_takes_matrices_as_wide_as_a_table_has_rows(tmp_path: Path) -> None:
    wide = WIDE_MODELS["bert"]
    rows = {"max_position_embeddings": wide.base["hidden_size"] * 4}
    wide = replace(wide, model=replace(wide.model, config={**wide.model.config, **rows}))
    model = build_hollow_model(wide.config(ADAMW), VOCABULARY, tmp_path)
    found = groups(model, wide, OptimizerConfig("muon", 1.0))
    assert {found[name][0] for name in found if name.endswith("self.query.weight")} == {"Muon"}


def test_the_weight_decay_that_an_optimizer_has_by_itself_is_scaled_too(tmp_path: Path) -> None:
    wide = WIDE_MODELS["llama"]
    model = build_hollow_model(wide.config(ADAMW), VOCABULARY, tmp_path)
    found = groups(model, wide, OptimizerConfig("adamw", 1.0))
    _, rate, decay = found["model.layers.0.mlp.down_proj.weight"]
    assert (rate, decay) == pytest.approx((1 / 6, 0.01 * 6))
