"""A saved model is pruned at once: which weights stay, what they are, and what is written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from openwafer.training.data.tokenizer import load_tokenizer
from openwafer.training.models import CheckpointFolder
from openwafer.training.session import (
    Calibration,
    Pruning,
    PruningMethod,
    RunConfig,
    Session,
    sparsify,
)
from openwafer.training.sparsity.masks.one_shot import InitMethod, initial_mask, random_mask
from openwafer.training.sparsity.options import SparsityGroup
from tests.tables import case, checkerboard
from tests.training.session.plain_pruning import hidden_weights, plainly_pruned
from tests.training.session.tiny_runs import GPT, TinyData, quiet, tiny_config
from tests.training.session.tiny_saved_models import POSITIONS, SIZES, save_model

METHODS = list(PruningMethod)


@pytest.fixture(scope="module", params=SIZES)
def saved(request: pytest.FixtureRequest, data: TinyData, tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("saved") / request.param
    return save_model(request.param, data, folder, torch.float32)


@pytest.fixture(scope="module")
def llama(data: TinyData, tmp_path_factory: Any) -> Path:
    return save_model("llama", data, tmp_path_factory.mktemp("one") / "llama", torch.float32)


def texts(data: TinyData) -> Calibration:
    return Calibration((str(data.source),), num_samples=3)


def model_of(folder: Path) -> Any:
    """Load a model that must find all its weights and use all those in the file."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(info.values())
    return model


def first_samples(data: TinyData) -> list[Tensor]:
    tokenizer = load_tokenizer(data.tokenizer)
    written = [path.read_text() for path in sorted(data.source.iterdir())]
    ids = [i for text in written for i in (*tokenizer.encode(text), tokenizer.end_of_text_id)]
    return [torch.tensor(ids[n * POSITIONS : (n + 1) * POSITIONS]) for n in range(3)]


def pruned_weights(source: Path, target: Path, pruning: Pruning, data: TinyData) -> dict[str, Any]:
    """All weights of the pruned model, and under "pruned" the names of those that are sparse."""
    found = sparsify(source, target, pruning, texts(data), console=quiet())
    return {**model_of(target).state_dict(), "pruned": [each.name for each in found.weights]}


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_each_layer_is_pruned_by_what_the_pruned_layers_before_it_give(
    saved: Path, data: TinyData, tmp_path: Path, method: str
) -> None:
    pruning = Pruning(0.6, PruningMethod(method))
    found = pruned_weights(saved, tmp_path / "out", pruning, data)
    expected = plainly_pruned(model_of(saved), first_samples(data), method, 0.6)
    for name in found.pop("pruned"):
        assert torch.equal(found[name] == 0, expected[name] == 0), name
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6)


def test_by_magnitude_the_largest_stay_as_they_are(
    saved: Path, data: TinyData, tmp_path: Path
) -> None:
    found = pruned_weights(saved, tmp_path / "out", Pruning(0.7), data)
    dense = model_of(saved).state_dict()
    names = found.pop("pruned")
    assert names == [name for held in hidden_weights(model_of(saved)).values() for name in held]
    for name, weight in found.items():
        smallest = sorted(dense[name].abs().flatten().tolist())
        number = weight.numel() - int(0.3 * weight.numel() + 1e-9) if name in names else 0
        expected = dense[name] * (dense[name].abs() >= smallest[number])
        assert torch.equal(weight, expected), name


def test_random_masks_depend_on_the_seed_and_the_name(
    llama: Path, data: TinyData, tmp_path: Path
) -> None:
    found = pruned_weights(
        llama, tmp_path / "out", Pruning(0.5, PruningMethod.RANDOM, seed=4), data
    )
    dense = model_of(llama).state_dict()
    for name in found.pop("pruned"):
        mask = random_mask(tuple(dense[name].shape), 0.5, name, 4)
        assert torch.equal(found[name], dense[name] * mask)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "structure"), checkerboard(METHODS, (None, "2:4")))
def test_masks_of_the_largest_weights_find_the_survivors(
    saved: Path, data: TinyData, tmp_path: Path, method: PruningMethod, structure: str | None
) -> None:
    pruning = Pruning(0.5 if structure else 0.83, method, structure)
    found = pruned_weights(saved, tmp_path / "out", pruning, data)
    for name in found.pop("pruned"):
        sparsity = pruning.sparsity or 0.0
        mask = initial_mask(InitMethod.TOPK, found[name], sparsity, name, seed=0)
        assert torch.equal(mask, found[name] != 0), name


@pytest.mark.parametrize("method", METHODS)
def test_of_every_four_inputs_of_an_output_two_stay(
    saved: Path, data: TinyData, tmp_path: Path, method: PruningMethod
) -> None:
    found = pruned_weights(saved, tmp_path / "out", Pruning(None, method, "2:4"), data)
    for name in found.pop("pruned"):
        by_output = found[name].T if "gpt2" in saved.name else found[name]
        kept = (by_output.reshape(-1, 4) != 0).sum(dim=1)
        assert kept.tolist() == [2] * len(kept), name


def test_formats_configs_and_the_tokenizer_stay_as_they_were(
    data: TinyData, tmp_path: Path
) -> None:
    source = save_model("gpt2", data, tmp_path / "bf16", torch.bfloat16)
    sparsify(source, tmp_path / "out", Pruning(0.5), console=quiet())
    beside = {path.name for path in source.iterdir()} - {"model.safetensors"}
    for name in beside:
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes(), name
    written = load_file(tmp_path / "out/model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}
    assert written.keys() == load_file(source / "model.safetensors").keys()


def test_a_filter_names_what_becomes_sparse(llama: Path, data: TinyData, tmp_path: Path) -> None:
    pruning = Pruning(0.5, PruningMethod.WANDA, filters=("*.mlp.down_proj.*", "lm_head.weight"))
    names = pruned_weights(llama, tmp_path / "out", pruning, data)["pruned"]
    layers = [f"model.layers.{n}.mlp.down_proj.weight" for n in range(2)]
    assert names == [*layers, "lm_head.weight"]


@pytest.fixture(scope="module")
def trained(data: TinyData, tmp_path_factory: Any) -> RunConfig:
    config = replace(tiny_config(data, tmp_path_factory.mktemp("runs")), model=GPT)
    Session(config, console=quiet()).train()
    return config


def trained_on(config: RunConfig, pruned: Path, folder: Path) -> Any:
    """The pruned model behind the steps of a sparse run."""
    group = SparsityGroup(0.73, init_method=InitMethod.TOPK)
    config = replace(
        config, name="on", folder=folder, model=CheckpointFolder(pruned), sparsity=group
    )
    session = Session(config, console=quiet())
    session.train()
    return model_of(session.export(folder / "trained"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [case(one, by_default=one is PruningMethod.SPARSEGPT) for one in METHODS]
)
def test_a_pruned_run_is_trained_on_with_the_same_zeros(
    trained: RunConfig, tmp_path: Path, method: PruningMethod
) -> None:
    sparsify(trained.path, tmp_path / "out", Pruning(0.73, method), console=quiet())
    before = model_of(tmp_path / "out")
    after = trained_on(trained, tmp_path / "out", tmp_path)
    for name in (name for names in hidden_weights(before).values() for name in names):
        old, new = before.get_parameter(name), after.get_parameter(name)
        assert torch.equal(old != 0, new != 0)
        assert not torch.equal(old, new)
