"""Adam's eps under muP stays as small beside gradients as in the base model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from openwafer.training.models import TransformersModel
from openwafer.training.session import RunConfig
from openwafer.training.session.building import build_hollow_model, build_model, make_optimizers
from openwafer.training.session.config_sections import GroupConfig, OptimizerConfig
from tests.tables import checkerboard
from tests.training.parametrization.wide_models import LLAMA, VOCABULARY, WIDE_MODELS, WideModel

DEFAULT = 1e-8
ADAMW = OptimizerConfig("adamw", 1e-2)
NARROW, WIDE = 32, 512


def eps_of(config: RunConfig, folder: Path) -> dict[str, float | None]:
    """By parameter."""
    model = build_hollow_model(config, VOCABULARY, folder)
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    return {
        name_of[parameter]: group.get("eps")
        for built in make_optimizers(model, config, VOCABULARY)
        for group in built.param_groups
        for parameter in group["params"]
    }


@pytest.mark.parametrize(("wide", "optimizer"), checkerboard(WIDE_MODELS, ("adamw", "nadam")))
def test_eps_is_as_gradients_are_in_the_table(
    wide: WideModel, optimizer: str, tmp_path: Path
) -> None:
    """SGD's update is rate times gradient, Adam's the rate: gradients are the ratio of the two."""
    config = wide.config(OptimizerConfig(optimizer, 1.0, weight_decay=0.0))
    found = eps_of(config, tmp_path)
    rows = {name: wide.expected(name) for name in found}
    expected = {name: DEFAULT * row.adam / row.sgd for name, row in rows.items()}
    assert found == pytest.approx(expected, abs=0)


def llama_of(width: int) -> RunConfig:
    """All widths in proportion, heads of 16 features."""
    sizes = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": width // 16,
        "num_key_value_heads": width // 16,
    }
    model = TransformersModel("llama", config={**sizes, "num_hidden_layers": 2})
    base = {name: size * NARROW // width for name, size in sizes.items()}
    return replace(LLAMA.config(ADAMW), model=model, base=base)


def test_where_all_widths_are_in_proportion_eps_is_divided_by_it(tmp_path: Path) -> None:
    """Embeddings, norms, hidden weights and head alike: arXiv 2505.01618."""
    found = set(eps_of(llama_of(WIDE), tmp_path).values())
    assert found == {DEFAULT * NARROW / WIDE}


def test_the_base_model_has_the_options_it_was_given(tmp_path: Path) -> None:
    assert set(eps_of(llama_of(NARROW), tmp_path).values()) == {DEFAULT}


def test_an_eps_of_the_config_and_of_its_groups_is_scaled(tmp_path: Path) -> None:
    groups = (GroupConfig(("lm_head.*",), options={"eps": 4e-6}),)
    optimizer = replace(ADAMW, options={"eps": 8e-6}, groups=groups)
    found = eps_of(replace(llama_of(2 * NARROW), optimizer=optimizer), tmp_path)
    assert found.pop("lm_head.weight") == 2e-6
    assert set(found.values()) == {4e-6}


@pytest.mark.parametrize("optimizer", ["lion", "sgd"])
def test_optimizers_without_an_eps_get_none(optimizer: str, tmp_path: Path) -> None:
    config = replace(llama_of(WIDE), optimizer=OptimizerConfig(optimizer, 1.0))
    assert set(eps_of(config, tmp_path).values()) == {None}


def gradients(config: RunConfig, folder: Path) -> dict[str, float]:
    """Root mean squares in the fourth step on the same tokens."""
    torch.manual_seed(0)
    model: Any = build_model(config, VOCABULARY, folder)
    optimizers = make_optimizers(model, config, VOCABULARY)
    tokens = torch.randint(VOCABULARY, (8, 16), generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        model(tokens, labels=tokens).loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    model(tokens, labels=tokens).loss.backward()
    return {name: p.grad.square().mean().sqrt().item() for name, p in model.named_parameters()}


@pytest.mark.slow
def test_gradients_shrink_as_eps_does(tmp_path: Path) -> None:
    """Of 16 times the width, gradients are a sixteenth, within a factor of two and a half."""
    narrow, wide = (gradients(llama_of(width), tmp_path) for width in (NARROW, WIDE))
    ratios = {name: wide[name] / narrow[name] * WIDE / NARROW for name in narrow}
    assert {name: r for name, r in ratios.items() if not 0.4 < r < 2.5} == {}
