"""Models that cannot learn from batches of tokens are refused before there is a run."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration, ViTConfig

from openwafer.config import to_yaml
from openwafer.diagnostics import OpenwaferError
from openwafer.training.models import (
    CheckpointFolder,
    ModelConfig,
    Task,
    TransformersModel,
    UserModule,
)
from openwafer.training.session import Session, TrainResult
from openwafer.training.session.run_folder import RunFolder
from tests.training.session.tiny_model import TinyModel
from tests.training.session.tiny_runs import TinyData, quiet, tiny_config
from tests.training.session.tiny_saved_models import save_model

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2}
T5 = UserModule(f"{__name__}:make_t5")


def make_t5() -> nn.Module:
    """A library's model by a factory, of which a config says nothing."""
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    sizes["max_position_embeddings"] = 4
    model: nn.Module = T5ForConditionalGeneration(
        T5Config(vocab_size=300, decoder_start_token_id=0, **sizes)
    )
    return model


class Blind(nn.Module):
    """Takes no labels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, input_ids: Tensor) -> Tensor:
        """Nothing to learn."""
        return self.weight


class Detached(TinyModel):
    """Its loss has forgotten the parameters."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """As its parent, without gradients."""
        return {
            name: tensor.detach() for name, tensor in super().forward(input_ids, labels).items()
        }


def train(data: TinyData, folder: Path, model: ModelConfig, **changes: Any) -> TrainResult:
    config = replace(tiny_config(data, folder), model=model, steps=1, **changes)
    return Session(config, console=quiet()).train()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            TransformersModel("vit", Task.IMAGE_CLASSIFICATION, config={**SIZES, **HEADS}),
            "model describes ViTForImageClassification (model type vit): a run on texts trains ",
        ),
        (
            TransformersModel("bert", Task.MASKED_LM, config={**SIZES, **HEADS}),
            "model describes BertForMaskedLM (model type bert): a run on texts trains causal",
        ),
        (
            UserModule(f"{__name__}:Blind"),
            "batches hold input_ids and labels, and the forward of Blind takes: input_ids",
        ),
        (UserModule(f"{__name__}:Detached"), "no parameter of Detached has a part in its loss"),
        (
            TransformersModel("gpt2", config={"n_embd": 16, "n_head": 2, "n_positions": 8}),
            "batch.sequence_length is 12, and transformer.wpe of the model has 8 positions",
        ),
        (
            TransformersModel("llama", Task.SEQUENCE_CLASSIFICATION, config={**SIZES, **HEADS}),
            "set model.task: causal-lm, which takes LlamaForCausalLM",
        ),
    ],
)
def test_a_model_that_does_not_fit_tokens_is_refused(
    data: TinyData, tmp_path: Path, model: ModelConfig, message: str
) -> None:
    with pytest.raises(OpenwaferError) as found:
        train(data, tmp_path, model)
    assert message in str(found.value)
    assert not (tmp_path / "tiny/config.yaml").exists()


def test_a_model_that_repeats_its_input_or_names_fewer_positions_is_warned_of(
    data: TinyData, tmp_path: Path
) -> None:
    out = io.StringIO()
    config = replace(tiny_config(data, tmp_path), model=T5, steps=1)
    Session(config, console=Console(file=out)).train()
    message = "warning[model-labels]: T5ForConditionalGeneration does not predict the next token: "
    assert message in out.getvalue()
    assert "max_position_embeddings 4; what loads an export may end" in " ".join(
        out.getvalue().split()
    )


@pytest.mark.slow
def test_a_model_of_two_texts_does_not_write(data: TinyData, tmp_path: Path) -> None:
    config = replace(tiny_config(data, tmp_path), model=T5, steps=1)
    session = Session(config, console=quiet())
    session.train()
    with pytest.raises(
        OpenwaferError, match=r"T5.* encodes one text and writes another(.|\n)*export"
    ):
        session.generate("3 squared")


def test_a_table_of_embeddings_too_small_for_the_tokens_is_told(
    data: TinyData, tmp_path: Path
) -> None:
    model = UserModule("tests.training.session.tiny_model:TinyModel", {"vocab_size": 200})
    with pytest.raises(OpenwaferError, match=r"input_ids has the .*, from \d+ to 2\d\d\n"):
        train(data, tmp_path, model)


def test_a_folder_of_images_is_told_at_its_key(data: TinyData, tmp_path: Path) -> None:
    folder, file = tmp_path / "vit", tmp_path / "run.yaml"
    ViTConfig(architectures=["ViTForImageClassification"]).save_pretrained(folder)
    source = f"data: {{source: {{kind: text, paths: [{data.source}]}}}}"
    file.write_text(f"steps: 1\n{source}\nmodel: {{path: {folder}}}\n")
    told = rf"model: {folder} holds ViT.*causal language models.*\n --> {file}:3:1"
    with pytest.raises(OpenwaferError, match=told):
        Session(file)


def test_a_run_whose_model_became_another_kind_is_not_opened(
    data: TinyData, tmp_path: Path
) -> None:
    folder = save_model("llama", data, tmp_path / "llama", torch.float32)
    config = replace(tiny_config(data, tmp_path), model=CheckpointFolder(folder))
    config.path.mkdir()
    RunFolder(config.path).config.write_text(to_yaml(config), encoding="utf-8")
    assert Session(config.path).config.model == config.model
    ViTConfig(architectures=["ViTForImageClassification"]).save_pretrained(folder)
    with pytest.raises(OpenwaferError, match=r"model: .* holds ViTForImageClassification"):
        Session(config.path)


@pytest.mark.slow
def test_a_run_whose_model_became_another_kind_does_not_write(
    data: TinyData, tmp_path: Path
) -> None:
    folder = save_model("llama", data, tmp_path / "llama", torch.float32)
    train(data, tmp_path, CheckpointFolder(folder))
    ViTConfig(architectures=["ViTForImageClassification"]).save_pretrained(folder)
    with pytest.raises(OpenwaferError, match=r"model: .* holds ViTForImageClassification"):
        Session(tmp_path / "tiny")
