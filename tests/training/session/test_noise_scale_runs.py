"""Runs that measure their gradient noise scale: what they find, and that their bits stay."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import TokenDataset, prepare
from openwafer.training.methods.noise_scale import DECAY
from openwafer.training.methods.seam import RunParts
from openwafer.training.metrics import METRICS_FORMAT, StepMetrics, read_lines
from openwafer.training.models import ModelConfig, TransformersModel, UserModule, build, loss_of
from openwafer.training.models.build import with_vocab_size
from openwafer.training.noise_scale import Watched
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.building import tokenizer_of
from openwafer.training.session.config_sections import (
    BatchConfig,
    Precision,
    ScheduleConfig,
    StreamingConfig,
)
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.step import LossScaling
from tests.tables import case
from tests.training.session.tiny_runs import (
    GPT,
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_parameters,
    tiny_config,
    train_quietly,
)

PLACED = UserModule("tests.training.session.placed_model:PlacedModel")
TIED = replace(GPT, has_tied_embeddings=True, dropout=0.0)
GPT2 = TransformersModel(
    "gpt2", config={"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12}
)
STREAMED = {each.value: StreamingConfig("cpu", activations=each) for each in Activations}
RESIDENT = StreamingConfig("cpu", mode=Mode.RESIDENT)
WAYS = {"resident": RESIDENT, **{k: replace(v, mode=Mode.STREAMED) for k, v in STREAMED.items()}}


def config_of(
    data: TinyData, folder: Path, *, num_micro_batches: int = 2, model: ModelConfig = TIED
) -> RunConfig:
    return replace(
        tiny_config(data, folder),
        model=model,
        batch=BatchConfig(size=6, sequence_length=12, micro_batches=num_micro_batches),
        noise_scale=Watched.ALL,
    )


def rows_of(config: RunConfig) -> tuple[StepMetrics, ...]:
    return read_lines(config.path / "metrics.jsonl", METRICS_FORMAT).rows


def dataset_of(config: RunConfig) -> TokenDataset:
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    assert config.data.folder is not None
    return prepare(preparation, config.data.folder)


def gradients_of_examples(config: RunConfig) -> list[Mapping[str, torch.Tensor]]:
    """Of each sample of the first step by itself, by an ordinary loop."""
    dataset = dataset_of(config)
    model = build(with_vocab_size(config.model, dataset.tokenizer.vocab_size), config.seed)
    [batch] = dataset.micro_batches(0, 1)
    found = []
    for input_ids, labels in zip(batch.input_ids, batch.labels, strict=True):
        model.zero_grad(set_to_none=True)
        loss_of(model(input_ids=input_ids[None], labels=labels[None])).backward()
        found.append(gradients_of(model))
    return found


def gradients_of(model: nn.Module) -> Mapping[str, torch.Tensor]:
    return {name: w.grad.double() for name, w in model.named_parameters() if w.grad is not None}


def sample_covariance(config: RunConfig, *, norms_only: bool) -> tuple[float, float]:
    """Unbiased |G|^2 and tr(Sigma), by numpy's word for it: squares around the mean over B - 1."""
    noise = signal = 0.0
    examples = gradients_of_examples(config)
    for name in examples[0]:
        if norms_only and "norm" not in name:
            continue
        g_BN = torch.stack([each[name].flatten() for each in examples])
        noise += g_BN.var(0, correction=1).sum().item()
        signal += g_BN.mean(0).square().sum().item()
    return signal - noise / len(examples), noise


@pytest.mark.parametrize(
    ("way", "num_micro_batches", "watched"),
    # Each number of micro-batches meets each way to watch; ways to train come in turn.
    [
        case(
            way,
            number,
            watched,
            by_default=(place + turn) % 4 == 0 and turn in (0, 3),
            id=f"{name}-{number}-{watched}",
        )
        for turn, (number, watched) in enumerate(product([1, 2, 6], Watched))
        for place, (name, way) in enumerate(WAYS.items())
    ],
)
def test_a_run_finds_signal_and_noise_of_its_samples(
    data: TinyData, tmp_path: Path, way: StreamingConfig, num_micro_batches: int, watched: Watched
) -> None:
    config = config_of(data, tmp_path, num_micro_batches=num_micro_batches)
    config = replace(config, streaming=way, noise_scale=watched, steps=1)
    train_quietly(config)
    signal, noise = sample_covariance(config, norms_only=watched is Watched.NORMS)
    [row] = rows_of(config)
    assert (row.gradient_signal, row.gradient_noise) == pytest.approx((signal, noise), rel=1e-4)
    scale = noise / signal if signal > 0 else None
    assert row.noise_scale == pytest.approx(scale, rel=1e-3)


MODELS = {"gpt": replace(TIED, dropout=0.1), "gpt2": GPT2}


@pytest.mark.parametrize(
    ("way", "watched", "model"),
    # Each way to train meets one way to watch one model.
    [
        case(
            *(way, watched, MODELS[model]),
            by_default=place == turn == 2,
            id=f"{name}-{watched}-{model}",
        )
        for turn, (watched, model) in enumerate(product(Watched, MODELS))
        for place, (name, way) in enumerate(WAYS.items())
    ],
)
def test_a_run_keeps_its_bits_while_its_noise_is_measured(
    data: TinyData, tmp_path: Path, way: StreamingConfig, watched: Watched, model: ModelConfig
) -> None:
    config = replace(config_of(data, tmp_path, model=model), streaming=way, noise_scale=watched)
    found, expected = saved_parameters(train_quietly(config)), plain_loop(config)
    assert differing(found, {name: expected[name] for name in found}) == []
    assert all(row.gradient_noise is not None for row in rows_of(config))


def test_micro_batches_tell_the_noise_of_a_model_with_layers_of_its_own(
    data: TinyData, tmp_path: Path
) -> None:
    """Three pairs of samples: tr(Sigma) of pairs' mean gradients is half that of samples."""
    config = replace(config_of(data, tmp_path, num_micro_batches=3, model=PLACED), steps=1)
    train_quietly(config)
    examples = gradients_of_examples(config)
    pairs = [
        torch.cat([(one[n] + other[n]).flatten() / 2 for n in one])
        for one, other in zip(examples[::2], examples[1::2], strict=True)
    ]
    noise = 2 * torch.stack(pairs).var(0, correction=1).sum().item()
    assert rows_of(config)[0].gradient_noise == pytest.approx(noise, rel=1e-4)


@pytest.mark.slow
def test_a_loss_scale_is_taken_off(data: TinyData, tmp_path: Path) -> None:
    config = replace(config_of(data, tmp_path), steps=1)
    train_quietly(config)
    train_quietly(
        half := replace(
            config, name="half", precision=Precision.FP16, loss_scale=LossScaling(1024.0)
        )
    )
    found = [row.gradient_noise for run in (config, half) for row in rows_of(run)]
    assert found[1] == pytest.approx(found[0], rel=0.01)


@pytest.mark.slow
def test_a_step_that_overflows_leaves_the_noise_as_it_was(data: TinyData, tmp_path: Path) -> None:
    scaling = LossScaling(initial_scale=1e38, backoff_factor=1e-36)
    config = replace(config_of(data, tmp_path), precision=Precision.FP16, loss_scale=scaling)
    train_quietly(config)
    first, *others = rows_of(config)
    assert (first.gradient_noise, first.noise_scale) == (None, None)
    assert all(row.gradient_noise is not None for row in others)


@pytest.fixture(scope="module")
def whole(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run that has been trained to its end."""
    config = config_of(data, tmp_path_factory.mktemp("whole"))
    config = replace(config, schedule=ScheduleConfig("constant"))
    train_quietly(config)
    return config


@pytest.mark.slow
def test_smoothed_signal_and_noise_go_on_where_a_run_is_resumed(
    whole: RunConfig, tmp_path: Path
) -> None:
    config = replace(whole, folder=tmp_path)
    train_quietly(replace(config, steps=2))
    Session(config, console=quiet()).resume()
    resumed = rows_of(config)
    assert [row.noise_scale for row in resumed] == [row.noise_scale for row in rows_of(whole)]


def test_the_noise_scale_is_the_ratio_of_smoothed_means(whole: RunConfig) -> None:
    signal = noise = math.nan
    for row in rows_of(whole):
        found = [row.gradient_signal or 0.0, row.gradient_noise or 0.0]
        if row.step:
            before = (signal, noise)
            found = [DECAY * a + (1 - DECAY) * b for a, b in zip(before, found, strict=True)]
        signal, noise = found
        expected = noise / signal if signal > 0 else None
        assert row.noise_scale == pytest.approx(expected)


@pytest.mark.slow
def test_a_run_without_it_has_no_noise_scale(data: TinyData, tmp_path: Path) -> None:
    config = replace(config_of(data, tmp_path), noise_scale=None, steps=1)
    train_quietly(config)
    [row] = rows_of(config)
    assert (row.noise_scale, row.noise_scale_tokens, row.gradient_noise) == (None, None, None)


def test_several_systems_are_refused(data: TinyData, tmp_path: Path) -> None:
    config = replace(config_of(data, tmp_path), systems=2)
    parts = RunParts(nn.LayerNorm(4), dataset_of(config), RunFolder(config.path), {})
    with pytest.raises(OpenwaferError, match=r"noise-scale-systems.* each of 2 systems sees"):
        config.methods()[0].begin(parts)


def test_a_model_without_layers_to_measure_is_refused(data: TinyData, tmp_path: Path) -> None:
    config = config_of(data, tmp_path, model=PLACED, num_micro_batches=1)
    with pytest.raises(OpenwaferError, match=r"noise-scale-layers.* belong to other modules"):
        train_quietly(config)


def test_one_sample_a_step_is_refused(data: TinyData, tmp_path: Path) -> None:
    config = config_of(data, tmp_path)
    with pytest.raises(InvalidFieldError, match="one sample a step does not tell noise"):
        replace(config, batch=BatchConfig(size=1, sequence_length=12))


def test_all_gradients_of_a_sparse_model_are_refused(data: TinyData, tmp_path: Path) -> None:
    config = config_of(data, tmp_path)
    with pytest.raises(InvalidFieldError, match="products that skip zeros do not tell"):
        replace(config, sparsity=0.5)
