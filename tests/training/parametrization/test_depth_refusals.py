"""A depth that muP cannot follow is refused by name, and never left as it was."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.methods.mup import Parametrization, mup_of
from openwafer.training.models import GptConfig, ModelConfig, TransformersModel, UserModule
from openwafer.training.parametrization.roles import Role
from openwafer.training.session import RunConfig
from openwafer.training.session.building import build_model, make_optimizers
from openwafer.training.session.config_sections import OptimizerConfig
from tests.training.parametrization.wide_models import DATA, VOCABULARY

LAYERS = {"num_hidden_layers": 2}
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}


def run_of(model: ModelConfig, base: dict[str, int]) -> RunConfig:
    return RunConfig(
        steps=3, data=DATA, model=model, parametrization=Parametrization.MUP, base=base
    )


def library(name: str, **config: object) -> TransformersModel:
    return TransformersModel(name, config={**SMALL, "num_hidden_layers": 4, **config})


def own(name: str) -> UserModule:
    module = f"tests.training.parametrization.layered_modules:{name}"
    return UserModule(module, {"num_layers": 4})


REFUSED: list[tuple[ModelConfig, dict[str, int], str]] = [
    (library("BertForMaskedLM"), LAYERS, "as where norms follow the sum (post-norm)"),
    (
        library("gemma2", num_key_value_heads=2, head_dim=16),
        LAYERS,
        "'model.layers.0.input_layernorm.weight' ends with no weights that multiply all of it",
    ),
    (library("AlbertForMaskedLM"), LAYERS, "layers share their weights"),
    (library("diffllama"), LAYERS, "a number of the forward's own follows the layers, in 'model."),
    (library("llama"), {"num_hidden_layers": 8}, "base.num_hidden_layers is 8, more than the"),
    (own("Plain"), {"num_layers": 2}, "the forward has no sum h + branch(h) with weights"),
    (own("Gated"), {"num_layers": 2}, "'layers.0.0.bias' ends with no weights that multiply all"),
    (own("Averaging"), {"num_layers": 2}, "does not reach the next one as it is"),
    (own("Numbered"), {"num_layers": 2}, "a number of the forward's own follows the layers"),
    (own("Shared"), {"num_layers": 2}, "layers share their weights"),
    (own("Reused"), {"num_layers": 2}, "2 branches end with 'layers.0.1.weight'"),
    (own("Uneven"), {"num_layers": 2}, "the residual branches do not repeat as often as the"),
]


@pytest.mark.parametrize(("model", "base", "expected"), REFUSED)
def test_a_depth_without_a_rule_is_refused(
    model: ModelConfig, base: dict[str, int], expected: str
) -> None:
    with pytest.raises(OpenwaferError) as refused:
        mup_of(run_of(model, base), base, VOCABULARY)
    assert expected in str(refused.value)
    assert "help:" in str(refused.value)


def test_layers_in_a_sequence_of_a_users_own_are_found() -> None:
    base = {"num_layers": 2, "size": 4}
    mup = mup_of(run_of(own("Layered"), base), base, VOCABULARY)
    found = {name: (role.depth, role.ends_branch) for name, role in mup.roles.items()}
    outside = dict.fromkeys(("table.weight", "head.weight", "head.bias"), (1.0, False))
    in_layers = {"0.weight": False, "0.bias": False, "1.weight": True, "1.bias": True}
    inside = {f"layers.{n}.{name}": (2.0, e) for n in range(4) for name, e in in_layers.items()}
    assert found == outside | inside


def test_a_number_of_heads_as_large_as_that_of_layers_is_a_width() -> None:
    model = library("llama", hidden_size=64, num_attention_heads=4)
    base = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, **LAYERS}
    model = replace(model, config={**model.config, "intermediate_size": 128})
    mup = mup_of(run_of(model, base), base, 50)
    role: Role = mup.roles["model.layers.3.self_attn.o_proj.weight"]
    assert (role.fan_in, role.fan_out, role.depth, role.ends_branch) == (2, 2, 2, True)
    assert mup.attention == {}


def test_sgd_under_a_clip_is_refused_for_a_deep_model(tmp_path: Path) -> None:
    gpt = GptConfig(hidden_size=16, num_layers=2, num_heads=2, mlp_size=32)
    config = replace(
        run_of(gpt, {"num_layers": 1}), optimizer=OptimizerConfig("sgd"), clip_norm=1.0
    )
    model = build_model(config, VOCABULARY, tmp_path)
    with pytest.raises(OpenwaferError) as refused:
        make_optimizers(model, config, VOCABULARY)
    assert "grows with the depth by that of 'layers.0.attention.output" in str(refused.value)
