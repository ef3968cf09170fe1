"""A model trained under muP is exported so that other programs compute the same with it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from openwafer.diagnostics import OpenwaferError
from openwafer.training.methods.mup import Parametrization
from openwafer.training.models import GptConfig, ModelConfig, UserModule
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.building import build_hollow_model
from tests.tables import case
from tests.training.parametrization.wide_models import BERT, GPT2, LLAMA
from tests.training.session.tiny_runs import (
    TinyData,
    make_tiny_data,
    quiet,
    saved_parameters,
    tiny_config,
)

GPT = GptConfig(hidden_size=32, num_layers=1, num_heads=4, mlp_size=64, context_length=16)
GPT_BASE = {"hidden_size": 8, "mlp_size": 16, "num_heads": 1}
BERT_DECODER = replace(
    BERT.model, architecture="BertLMHeadModel", config={**BERT.model.config, "is_decoder": True}
)
CASES: dict[str, tuple[ModelConfig, dict[str, int]]] = {
    "tied reference": (GPT, GPT_BASE),
    "deep reference": (replace(GPT, num_layers=4), {**GPT_BASE, "num_layers": 1}),
    "untied reference": (replace(GPT, has_tied_embeddings=False), GPT_BASE),
    "gpt2": (GPT2.model, GPT2.base),
    "llama": (LLAMA.model, LLAMA.base),
    "decoder of bert": (BERT_DECODER, BERT.base),
}
BY_DEFAULT = ("deep reference", "decoder of bert")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TinyData:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


def run_of(data: TinyData, folder: Path, model: ModelConfig, base: dict[str, int]) -> RunConfig:
    config = replace(tiny_config(data, folder), steps=1, model=model)
    return replace(config, parametrization=Parametrization.MUP, base=base)


def trained_model(config: RunConfig, folder: Path) -> Any:
    """The model of a run in memory, which has the multipliers in its forward."""
    session = Session(config, console=quiet())
    weights = saved_parameters(session.train())
    model: Any = build_hollow_model(config, 280, folder)
    for name, parameter in model.named_parameters():
        parameter.data = weights[name]
    return model.eval()


@pytest.mark.parametrize("name", [case(name, by_default=name in BY_DEFAULT) for name in CASES])
def test_an_exported_model_computes_what_the_run_does(
    data: TinyData, tmp_path: Path, name: str
) -> None:
    config = run_of(data, tmp_path / "runs", *CASES[name])
    own = trained_model(config, tmp_path)
    folder = Session(config.path, console=quiet()).export(tmp_path / "exported")
    described = transformers.AutoConfig.from_pretrained(folder)
    kind: Any = getattr(transformers, described.architectures[0])
    exported = kind.from_pretrained(folder).eval()
    tokens = torch.arange(12).reshape(1, 12)
    found, expected = exported(tokens, labels=tokens).logits, own(tokens, labels=tokens).logits
    assert expected.std() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_larger_heads_are_not_exported(data: TinyData, tmp_path: Path) -> None:
    config = run_of(data, tmp_path, GPT, {"hidden_size": 8, "mlp_size": 16})
    Session(config, console=quiet()).train()
    with pytest.raises(OpenwaferError) as refused:
        Session(config.path, console=quiet()).export(tmp_path / "exported")
    assert "'layers.0.attention' divides by the size of a head" in str(refused.value)


def test_a_tied_head_without_a_norm_before_it_is_not_exported(
    data: TinyData, tmp_path: Path
) -> None:
    model = UserModule("tests.training.parametrization.tied_module:TiedModule", {"size": 32})
    config = run_of(data, tmp_path, model, {"size": 8})
    Session(config, console=quiet()).train()
    with pytest.raises(OpenwaferError) as refused:
        Session(config.path, console=quiet(), trusts_code=True).export(tmp_path / "exported")
    assert "the input of 'head' is multiplied by 0.25" in str(refused.value)
