"""Methods that look at more leave a model that predicts held-out text better."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from openwafer.training.data import DataSource, SourceKind, TokenizerTraining, prepare
from openwafer.training.models import GptConfig
from openwafer.training.session import Pruning, PruningMethod, RunConfig, Session, sparsify
from openwafer.training.session.building import tokenizer_of
from openwafer.training.session.config_sections import BatchConfig, OptimizerConfig, TokensConfig
from openwafer.training.session.opened_model import held_out
from tests.training.session.tiny_runs import TinyData, quiet, tiny_config

SOURCE = DataSource(SourceKind.STANDARD_LIBRARY, ("json/*.py", "asyncio/*.py", "email/*.py"))


@pytest.fixture(scope="module")
def trained(data: TinyData, tmp_path_factory: Any) -> RunConfig:
    """A GPT of three layers that has read Python's own modules."""
    model = GptConfig(
        hidden_size=64, num_layers=3, num_heads=4, context_length=64, has_tied_embeddings=False
    )
    config = replace(
        tiny_config(data, tmp_path_factory.mktemp("runs")),
        steps=300,
        data=TokensConfig(SOURCE, tokenizer=TokenizerTraining(512), validation_share=0.15),
        model=model,
        batch=BatchConfig(size=8, sequence_length=64),
        optimizer=OptimizerConfig(learning_rate=4e-3),
    )
    Session(config, console=quiet()).train()
    return config


@torch.no_grad()
def held_out_loss(folder: Path, config: RunConfig) -> float:
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    dataset = held_out(prepare(preparation, config.path / "data"))
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    losses = [
        float(model(input_ids=batch.input_ids, labels=batch.labels).loss)
        for batch in islice(dataset.once(), 24)
    ]
    return sum(losses) / len(losses)


def losses_at(sparsity: float, config: RunConfig, folder: Path) -> dict[str, float]:
    """Losses of the dense model and of the pruned ones, by method."""
    losses = {"dense": held_out_loss(Session(config.path).export(folder / "dense"), config)}
    for method in PruningMethod:
        sparsify(config.path, folder / method, Pruning(sparsity, method), console=quiet())
        losses[method] = held_out_loss(folder / method, config)
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("sparsity", [0.5, 0.6])
def test_the_more_a_method_looks_at_the_better_is_what_it_leaves(
    trained: RunConfig, tmp_path: Path, sparsity: float
) -> None:
    losses = losses_at(sparsity, trained, tmp_path)
    assert sorted(losses, key=losses.__getitem__) == [
        "dense",
        "sparsegpt",
        "wanda",
        "magnitude",
        "random",
    ]


@pytest.mark.slow
def test_at_three_quarters_sparsegpt_is_best_and_random_worst(
    trained: RunConfig, tmp_path: Path
) -> None:
    losses = losses_at(0.75, trained, tmp_path)
    assert sorted(losses, key=losses.__getitem__)[:2] == ["dense", "sparsegpt"]
    assert max(losses, key=losses.__getitem__) == "random"
