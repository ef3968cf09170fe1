"""Activations stay as they are over widths under muP, and grow without it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import TokenizerTraining
from openwafer.training.methods.coordinates import (
    CoordinateCheck,
    Growth,
    check_coordinates,
    check_depths,
    growth_of,
    slope_of,
)
from openwafer.training.models import TransformersModel
from openwafer.training.session import RunConfig
from openwafer.training.session.building import build_model
from openwafer.training.session.config_sections import BatchConfig, OptimizerConfig
from tests.tables import case
from tests.training.parametrization.wide_models import DATA, WIDE_MODELS

NUM_TOKENS = 360
WIDTHS = (64, 128, 256)
BASES = {
    "gpt2": {"n_embd": 64, "n_inner": 256, "n_head": 4},
    "llama": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4},
    "bert": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4},
    "t5": {"d_model": 64, "d_ff": 256, "num_heads": 8},
    "mixtral": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
ADAMW = OptimizerConfig(learning_rate=0.003)


def config_of(name: str, optimizer: OptimizerConfig = ADAMW) -> RunConfig:
    return replace(
        WIDE_MODELS[name].config(optimizer),
        base=BASES[name],
        batch=BatchConfig(size=4, sequence_length=32),
        data=replace(DATA, tokenizer=TokenizerTraining(vocab_size=NUM_TOKENS)),
    )


def deep_config_of(name: str, optimizer: OptimizerConfig = ADAMW) -> RunConfig:
    layers = "n_layer" if name == "gpt2" else "num_hidden_layers"
    config = config_of(name, optimizer)
    model = TransformersModel(name, config={**BASES[name], layers: 4, "vocab_size": NUM_TOKENS})
    return replace(config, model=model, base={layers: 4, **BASES[name]})


def bent(growths: tuple[Growth, ...]) -> list[tuple[str, tuple[float, ...]]]:
    return [(growth.module, growth.slopes) for growth in growths if not growth.is_flat]


def head(growths: tuple[Growth, ...]) -> Growth:
    [found] = [growth for growth in growths if growth.module == "lm_head"]
    return found


@pytest.fixture(scope="module")
def gpt2() -> CoordinateCheck:
    return check_coordinates(config_of("gpt2"), WIDTHS)


def test_activations_are_flat_under_mup_alone(gpt2: CoordinateCheck) -> None:
    assert bent(gpt2.mup) == []
    assert bent(gpt2.standard) != []
    assert max(growth.slopes[-1] for growth in gpt2.standard) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", [case(n, by_default=n == "mixtral") for n in BASES if n != "gpt2"])
def test_activations_of_other_models_are_flat_under_mup_alone(name: str) -> None:
    found = check_coordinates(config_of(name), WIDTHS)
    assert bent(found.mup) == []
    assert bent(found.standard) != []
    assert max(growth.slopes[-1] for growth in found.standard) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.1), ("muon", 0.01), ("lion", 0.0005)])
def test_activations_are_flat_under_other_optimizers(
    name: str, optimizer: str, rate: float
) -> None:
    config = config_of(name, OptimizerConfig(optimizer, rate))
    found = check_coordinates(config, (64, 128, 256, 512))
    assert bent(found.mup) == []
    assert bent(found.standard) != []


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_activations_are_flat_where_heads_grow(name: str) -> None:
    config = config_of(name)
    base = {key: width for key, width in config.base.items() if "head" not in key}
    if name == "t5":
        base["d_kv"] = 8
    found = check_coordinates(replace(config, base=base), (64, 128, 256, 512), num_seeds=2)
    assert bent(found.mup) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", case("llama", by_default=False)])
def test_changes_are_flat_over_depths_under_mup_alone(name: str) -> None:
    found = check_depths(deep_config_of(name), (2, 8), num_steps=3)
    assert bent(found.mup) == []
    [layers] = [growth for growth in found.standard if growth.module.endswith((".h.*", "layers.*"))]
    assert layers.slopes[-1] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
@pytest.mark.parametrize(
    ("optimizer", "rate"), [("adamw", 0.003), ("sgd", 0.1), ("muon", 0.003), ("lion", 0.0005)]
)
def test_changes_are_flat_over_depths_under_other_optimizers(
    name: str, optimizer: str, rate: float
) -> None:
    config = deep_config_of(name, OptimizerConfig(optimizer, rate))
    found = check_depths(config, (2, 4, 8, 16, 32), num_seeds=2)
    assert bent(found.mup) == []
    assert bent(found.standard) != []


def test_what_a_layer_adds_counts_as_often_as_there_are_layers() -> None:
    """With weights as they are, sums of twice as many layers; with muP's, of the same size."""
    found = check_depths(deep_config_of("llama"), (2, 4), num_steps=1)
    ends = {growth.module: growth.slopes[0] for growth in found.standard}
    assert ends["model.layers.*.mlp.down_proj"] == pytest.approx(1.0, abs=0.2)
    assert ends["model.layers.*.mlp.up_proj"] == pytest.approx(0.0, abs=0.05)


def test_logits_begin_smaller_in_a_wider_model(gpt2: CoordinateCheck) -> None:
    """Sums of as many terms as the width, divided by it: its root is left."""
    assert head(gpt2.mup).slopes[0] == pytest.approx(-0.5, abs=0.05)
    assert head(gpt2.standard).slopes[0] == pytest.approx(0.5, abs=0.05)
    assert head(gpt2.mup).slopes[-1] > -0.4


def test_sizes_are_those_of_the_model(gpt2: CoordinateCheck, tmp_path: Path) -> None:
    model = TransformersModel("gpt2", config={**BASES["gpt2"], "n_layer": 1})
    narrow: Any = build_model(replace(config_of("gpt2"), model=model), NUM_TOKENS, tmp_path)
    tokens = torch.randint(NUM_TOKENS, (4, 32), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    expected = narrow(input_ids=tokens).logits.abs().mean().item()
    assert head(gpt2.mup).sizes[0][64] == pytest.approx(expected, rel=1e-5)


def test_both_have_the_sizes_of_the_narrowest_model(gpt2: CoordinateCheck) -> None:
    for mup, standard in zip(gpt2.mup, gpt2.standard, strict=True):
        assert [s[64] for s in mup.sizes] == [s[64] for s in standard.sizes], mup.module


def test_a_power_of_the_width_has_its_exponent_as_slope() -> None:
    assert slope_of({64: 2.0, 128: 4.0, 512: 16.0}) == pytest.approx(1.0)
    assert slope_of({64: 8.0, 256: 4.0}) == pytest.approx(-0.5)


def test_what_overflows_is_not_flat() -> None:
    grown = growth_of("head", [{64: [1.0], 128: [math.inf]}], is_output=False)
    assert not grown.is_flat


def test_a_deeper_model_may_begin_smaller_but_its_changes_may_not() -> None:
    series = [{2: [2.0], 8: [1.0]}, {2: [2.0], 8: [2.0]}]
    assert growth_of("layers", series, is_output=False, is_of_change=True).is_flat
    assert not growth_of("layers", series[::-1], is_output=False, is_of_change=True).is_flat
    assert not growth_of("layers", series, is_output=False).is_flat


def test_only_outputs_may_shrink() -> None:
    series = [{64: [2.0, 8.0], 256: [2.0]}]
    assert growth_of("head", series, is_output=True).is_flat
    assert not growth_of("hidden", series, is_output=False).is_flat


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        ((64,), "expected at least 2 different widths above 0, found [64]"),
        ((64, 72), "at 72, n_head would be 4.5"),
    ],
)
def test_widths_that_cannot_be_are_refused(widths: tuple[int, ...], expected: str) -> None:
    with pytest.raises(OpenwaferError) as refused:
        check_coordinates(config_of("gpt2"), widths)
    assert expected in str(refused.value)


def test_a_base_without_a_number_of_layers_has_no_depths() -> None:
    with pytest.raises(OpenwaferError) as refused:
        check_depths(config_of("gpt2"), (2, 4))
    assert "base has no number of layers to vary" in str(refused.value)
