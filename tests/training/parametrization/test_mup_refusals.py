"""What muP cannot do right is refused by name, and never left as it was."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from openwafer import config as yaml_config
from openwafer.diagnostics import OpenwaferError, render
from openwafer.source import SourceText
from openwafer.training.methods.mup import Parametrization, mup_of
from openwafer.training.models import GptConfig, ModelConfig, TransformersModel, UserModule
from openwafer.training.session import RunConfig
from openwafer.training.session.building import build_model, make_optimizers
from openwafer.training.session.config_sections import OptimizerConfig
from tests.training.parametrization.wide_models import DATA, MIXTRAL, SHALLOW, VOCABULARY, WIDTHS

HIDDEN = {"hidden_size": 32}
SIZE = {"size": 8}


def run_of(model: ModelConfig, base: dict[str, int]) -> RunConfig:
    return RunConfig(
        steps=3, data=DATA, model=model, parametrization=Parametrization.MUP, base=base
    )


def library(name: str, **config: object) -> TransformersModel:
    return TransformersModel(name, config={**SHALLOW, **config})


def own(name: str) -> UserModule:
    return UserModule(f"tests.training.parametrization.partial_widths:{name}", {"size": 32})


REFUSED: list[tuple[ModelConfig, dict[str, int], str]] = [
    (library("llama", **WIDTHS), {"hiden_size": 32}, "no field 'hiden_size'"),
    (library("llama", **WIDTHS), {"hidden_size": 256}, "base.hidden_size is 256, more than"),
    (library("llama", **WIDTHS), {"pad_token_id": 3}, "pad_token_id is None, no width"),
    (
        library("llama", **WIDTHS, num_key_value_heads=2),
        {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2},
        "'model.layers.0.self_attn.k_proj.weight' maps a width to attention of a size",
    ),
    (
        own("ScaledFeatures"),
        SIZE,
        "the forward divides activations in the model itself by a number that follows",
    ),
    (own("HalfScaledTable"), SIZE, "multiplies activations in the model itself by a number"),
    (
        TransformersModel("bloom", config={"hidden_size": 64, "n_layer": 1, "n_head": 2}),
        HIDDEN,
        "BloomAttention has no attribute 'scaling' to set",
    ),
    (library("mamba", hidden_size=64), HIDDEN, "'backbone.layers.0.mixer.A_log' are not drawn"),
    (
        library("llama", **WIDTHS),
        {"hidden_size": 32, "num_attention_heads": 2},
        "'model.layers.0.mlp.gate_proj.weight' maps a width to a size that no width in base",
    ),
    (own("SummingModel"), SIZE, "takes a sum over a width in the model itself"),
    (own("ComputedWeight"), SIZE, "no attribute with the size of a head to set"),
    (own("PartlyWide"), SIZE, "dim 0 of 'up.weight' is 11 at the base widths and 19 at twice"),
    (own("IdleModel"), SIZE, "'idle.weight', which has no part in the forward"),
    (own("OwnTable"), SIZE, "'table.weight' is a table of embeddings and an output as well"),
    (own("OrthogonalModel"), SIZE, "'turn.weight' are not drawn from one normal or uniform"),
    (
        GptConfig(hidden_size=64, num_layers=1, num_heads=2),
        {"hidden_size": 8},
        "is 64 in the base model and 192 in the model, and no width in base decides on it",
    ),
]


@pytest.mark.parametrize(("model", "base", "expected"), REFUSED)
def test_a_model_without_a_rule_is_refused(
    model: ModelConfig, base: dict[str, int], expected: str
) -> None:
    with pytest.raises(OpenwaferError) as refused:
        mup_of(run_of(model, base), base, VOCABULARY)
    assert expected in str(refused.value)
    assert "help:" in str(refused.value)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (OptimizerConfig("adafactor"), "no rule for the learning rates of adafactor"),
        (OptimizerConfig("adam", weight_decay=0.1), "adam adds weight decay to the gradient"),
        (OptimizerConfig("sgd"), "by that of 'model.layers.0.mlp.gate.weight', and SGD's"),
    ],
)
def test_an_optimizer_without_a_rule_is_refused(
    optimizer: OptimizerConfig, expected: str, tmp_path: Path
) -> None:
    config = replace(MIXTRAL.config(optimizer), clip_norm=1.0)
    model = build_model(config, VOCABULARY, tmp_path)
    with pytest.raises(OpenwaferError) as refused:
        make_optimizers(model, config, VOCABULARY)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    "sparsity",
    [
        {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 10}},
        {"sparsity": 0.5, "init_method": "topk"},
    ],
)
def test_masks_that_are_not_random_throughout_are_refused(sparsity: dict[str, object]) -> None:
    text = f"steps: 100\ndata: {{source: {{kind: text, paths: [a]}}}}\nsparsity: {sparsity}\n"
    config = replace(
        yaml_config.parse(SourceText("run.yaml", text), RunConfig),
        model=library("llama", **WIDTHS),
        parametrization=Parametrization.MUP,
        base={"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2},
    )
    with pytest.raises(OpenwaferError) as refused:
        mup_of(config, config.base, VOCABULARY)
    assert "random masks keep throughout" in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("parametrization: mup\n", "mup scales from a base model, and no widths"),
        ("base: {hidden_size: 8}\n", "the standard parametrization has no base model"),
        ("parametrization: mup\nbase: {hidden_size: 0}\n", "at least 1 for hidden_size, found 0"),
        (
            "parametrization: mup\nbase: {hidden_size: 8}\nmodel: {kind: checkpoint, path: a}\n",
            "those of a saved model are there already",
        ),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(lines: str, expected: str) -> None:
    text = "steps: 3\ndata: {source: {kind: text, paths: [a]}}\n" + lines
    with pytest.raises(OpenwaferError) as refused:
        yaml_config.parse(SourceText("run.yaml", text), RunConfig)
    assert expected in str(refused.value)


def test_a_model_as_wide_as_its_base_is_remarked_on() -> None:
    config = run_of(GptConfig(hidden_size=64, num_heads=2), {"hidden_size": 64})
    assert "so that muP scales nothing" in remarks_on(config)
    assert remarks_on(replace(config, base={"hidden_size": 32})) == ""


def remarks_on(config: RunConfig) -> str:
    [method] = config.methods()
    return "".join(render(remark) for remark in method.remarks(nn.Module()) if remark)
