"""What cannot be pruned is refused by name, before anything is written."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.methods.one_shot import calls_by_layer
from openwafer.training.session import Calibration, Pruning, PruningMethod, Session, sparsify
from tests.training.session.tiny_runs import TinyData, quiet, tiny_config
from tests.training.session.tiny_saved_models import save_model

WANDA = Pruning(0.5, PruningMethod.WANDA)


@pytest.fixture
def llama(data: TinyData, tmp_path: Path) -> Path:
    return save_model("llama", data, tmp_path / "llama", torch.float32)


def refused(match: str, *arguments: Any) -> None:
    """Try to prune a model, and see that nothing is left of it."""
    source, target = arguments[:2]
    before = sorted(target.parent.iterdir())
    with pytest.raises(OpenwaferError, match=match):
        sparsify(source, target, *arguments[2:], console=quiet())
    assert sorted(target.parent.iterdir()) == before


def test_a_folder_without_model_is_refused(tmp_path: Path) -> None:
    refused(r"holds neither a run \(config.yaml\) nor a model", tmp_path, tmp_path / "out", WANDA)


def test_a_folder_that_is_there_is_not_written_over(llama: Path) -> None:
    refused("exists and is no empty folder", llama, llama, WANDA)


def test_a_model_without_data_needs_texts(llama: Path, tmp_path: Path) -> None:
    refused("--calibration TEXTS", llama, tmp_path / "out", WANDA)


def test_texts_shorter_than_a_sample_are_refused(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    texts = Calibration((str(tmp_path / "short.txt"),))
    refused(
        r"the texts have \d+ tokens, and a sample takes 24", llama, tmp_path / "out", WANDA, texts
    )


def test_a_filter_that_matches_nothing_is_refused(llama: Path, tmp_path: Path) -> None:
    refused(
        r"'\*.mpl.\*' .* matches none", llama, tmp_path / "out", Pruning(0.5, filters=("*.mpl.*",))
    )


def test_an_embedding_is_refused_by_name(llama: Path, tmp_path: Path) -> None:
    pruning = Pruning(0.5, filters=("*.embed_tokens.*",))
    refused("'model.embed_tokens.weight' belongs to a Embedding", llama, tmp_path / "out", pruning)


def test_a_tied_head_is_refused_with_its_names(data: TinyData, tmp_path: Path) -> None:
    gpt2 = save_model("gpt2", data, tmp_path / "gpt2", torch.float32)
    pruning = Pruning(0.5, filters=("*.wte.*",))
    refused(r"used in 2 places: .*wte.weight, lm_head.weight", gpt2, tmp_path / "out", pruning)


def test_eight_bit_weights_are_refused(llama: Path, tmp_path: Path) -> None:
    path = llama / "model.safetensors"
    weights = load_file(path)
    weights["scale"] = torch.zeros(4, dtype=torch.float8_e4m3fn)
    save_file(weights, path, metadata={"format": "pt"})
    refused("1 tensors of eight bits, such as scale", llama, tmp_path / "out", Pruning(0.5))


def test_a_run_of_a_users_own_module_is_refused(data: TinyData, tmp_path: Path) -> None:
    config = replace(tiny_config(data, tmp_path), steps=1)
    Session(config, console=quiet()).train()
    with pytest.raises(OpenwaferError, match=r"a module of your own, tests.*\n.*init_method: topk"):
        sparsify(config.path, tmp_path / "out", WANDA, console=quiet(), trusts_code=True)


def test_blocks_are_not_for_methods_that_rank_single_weights() -> None:
    with pytest.raises(
        InvalidFieldError, match="wanda ranks single weights and cannot keep blocks"
    ):
        Pruning(0.5, PruningMethod.WANDA, "4x4")


ALBERT = {"embedding_size": 8, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}


def test_a_model_that_shares_its_layers_is_refused(data: TinyData, tmp_path: Path) -> None:
    config = transformers.AlbertConfig(vocab_size=300, **ALBERT)
    folder, texts = tmp_path / "albert", Calibration((str(data.source),), num_samples=2)
    transformers.AlbertForMaskedLM(config).save_pretrained(folder)
    shutil.copytree(data.tokenizer, folder, dirs_exist_ok=True)
    pruning = replace(WANDA, filters=("*.ffn.*",))
    refused("comes to the layer .* more than once", folder, tmp_path / "out", pruning, texts)


def test_a_classifier_is_not_pruned_by_what_texts_do_in_it(data: TinyData, tmp_path: Path) -> None:
    folder, texts = tmp_path / "classes", Calibration((str(data.source),), num_samples=2)
    config = transformers.AlbertConfig(vocab_size=300, **ALBERT)
    transformers.AlbertForSequenceClassification(config).save_pretrained(folder)
    message = r"holds AlbertForSequenceClassification, .*\n.*choose the method magnitude"
    refused(message, folder, tmp_path / "out", replace(WANDA, filters=("*.ffn.*",)), texts)


def test_a_model_that_cannot_begin_to_write_is_refused_by_its_key(
    data: TinyData, tmp_path: Path
) -> None:
    folder, texts = tmp_path / "t5", Calibration((str(data.source),), num_samples=2)
    config = transformers.T5Config(
        vocab_size=300, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    shutil.copytree(data.tokenizer, folder, dirs_exist_ok=True)
    message = r"decoder_start_token_id is not set(.|\n)*config.json"
    refused(message, folder, tmp_path / "out", WANDA, texts)


class Chooses(nn.Module):
    """Sends inputs through one of two layers, or through none."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.ReLU(inplace=True)])

    def forward(self, number: int) -> Tensor:
        x = torch.ones(1, 2)
        return self.layers[number](x) if number < 2 else x


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 1), "some passes come to layers.0, others to layers.1"),
        ((2, 2), "2 passes end and have not come to layers.0"),
        ((0, 2), "1 passes end and have not come to layers.0"),
    ],
)
def test_passes_of_different_layers_are_refused(numbers: tuple[int, int], message: str) -> None:
    model = Chooses()
    passes: list[Callable[[], object]] = [lambda n=n: model(n) for n in numbers]  # type: ignore[misc]
    with pytest.raises(OpenwaferError, match=message):
        list(calls_by_layer(model, ["layers.0", "layers.1"], passes))
    assert "forward" not in vars(model.layers[0])


def test_a_layer_that_changes_its_inputs_is_refused() -> None:
    model = Chooses()
    [[call]] = calls_by_layer(model, ["layers.1"], [lambda: model(1)])
    with pytest.raises(OpenwaferError, match=r"layers\.1, a ReLU, changes its inputs in place"):
        call.run()
