"""A streamed muP run has the bits of a plain loop with a group for each parameter."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data import prepare
from openwafer.training.methods.mup import Parametrization
from openwafer.training.models import GptConfig, build
from openwafer.training.models.build import with_vocab_size
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.building import tokenizer_of
from openwafer.training.session.config_sections import BatchConfig, OptimizerConfig, ScheduleConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    make_tiny_data,
    plain_loop,
    plain_step,
    quiet,
    saved_parameters,
    tiny_config,
    train_quietly,
)

# Four times as wide as the base, in powers of two: every factor is exact.
GPT = GptConfig(
    hidden_size=32, num_layers=2, num_heads=2, mlp_size=64, context_length=16, dropout=0.1
)
BASE = {"hidden_size": 8, "mlp_size": 16}
BASE_HEAD, HEAD = 4, 16
# Learning rates of embeddings and norms, of hidden matrices, and of an untied head.
RATES = {"adamw": (1.0, 0.25, 1.0), "sgd": (4.0, 1.0, 4.0)}
# Adam's eps is divided by the width, as all gradients are.
OPTIONS = {"adamw": {"eps": 1e-8 / 4}, "sgd": {}}
RATE, DECAY = 1 / 64, 1 / 8
CONSTANT = ScheduleConfig("constant", {"num_warm_up_steps": 1})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TinyData:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


def config_of(data: TinyData, folder: Path, gpt: GptConfig, optimizer: str) -> RunConfig:
    return replace(
        tiny_config(data, folder, StoreTier.DISK),
        model=gpt,
        parametrization=Parametrization.MUP,
        base=BASE,
        optimizer=OptimizerConfig(optimizer, RATE, DECAY),
        batch=BatchConfig(size=6, sequence_length=12, micro_batches=3),
    )


def is_hidden(name: str) -> bool:
    return name.startswith("layers.") and "norm" not in name


def quarter(_module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0] * 0.25,)


def wide_model(config: RunConfig, vocab_size: int) -> Any:
    """The model with what the paper says, by hand."""
    model: Any = build(with_vocab_size(config.model, vocab_size), config.seed)
    model.head.register_forward_pre_hook(quarter)
    for layer in model.layers:
        layer.attention.scaling = BASE_HEAD**-0.5 * BASE_HEAD / HEAD
    for name, parameter in model.named_parameters():
        if is_hidden(name):
            parameter.data *= 0.5
    return model


def group(name: str, parameter: nn.Parameter, optimizer: str) -> dict[str, Any]:
    vector, hidden, head = RATES[optimizer]
    factor = hidden if is_hidden(name) else head if name.startswith("head") else vector
    decay = DECAY / factor if parameter.ndim > 1 else 0.0
    own = {"lr": RATE * factor, "weight_decay": decay, **OPTIONS[optimizer]}
    return {"params": [parameter], **own}


def plain_mup_loop(
    config: RunConfig,
    model_of: Callable[[RunConfig, int], Any] = wide_model,
    group_of: Callable[[str, nn.Parameter, str], dict[str, Any]] = group,
) -> Mapping[str, Tensor]:
    """The weights of a run's model after its steps, by torch's own optimizer in memory."""
    preparation = config.data.preparation(config.batch, config.seed, tokenizer_of(config))
    assert config.data.folder is not None
    dataset = prepare(preparation, config.data.folder)
    model = model_of(config, dataset.tokenizer.vocab_size)
    kinds: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    name = config.optimizer.name
    groups = [group_of(each, p, name) for each, p in model.named_parameters()]
    optimizer = kinds[name](groups, fused=True)
    peaks = [each["lr"] for each in optimizer.param_groups]
    schedule, scaler = config.schedule.build(config.steps), torch.amp.GradScaler(enabled=False)
    for step in range(config.steps):
        for each, peak in zip(optimizer.param_groups, peaks, strict=True):
            each["lr"] = peak * schedule(step)
        batches = dataset.micro_batches(step, config.batch.num_micro_batches)
        plain_step(model, optimizer, batches, config, step, scaler)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


# Of AdamW and tied weights is the run that stops.
@pytest.mark.parametrize(
    ("optimizer", "is_tied"),
    [
        case(optimizer, is_tied, by_default=(optimizer, is_tied) == ("sgd", False))
        for optimizer, is_tied in product(RATES, (True, False))
    ],
)
def test_a_streamed_run_under_mup_equals_the_plain_loop(
    data: TinyData, tmp_path: Path, is_tied: bool, optimizer: str
) -> None:
    config = config_of(data, tmp_path, replace(GPT, has_tied_embeddings=is_tied), optimizer)
    assert differing(saved_parameters(train_quietly(config)), plain_mup_loop(config)) == []


@pytest.mark.slow
def test_a_run_of_the_base_widths_is_the_one_without_mup(data: TinyData, tmp_path: Path) -> None:
    config = config_of(data, tmp_path, GPT, "adamw")
    config = replace(config, optimizer=OptimizerConfig("adamw", RATE))
    same = replace(config, base={"hidden_size": 32, "mlp_size": 64})
    standard = replace(config, parametrization=Parametrization.STANDARD, base={})
    found, expected = saved_parameters(train_quietly(same)), plain_loop(standard)
    assert differing(found, {name: expected[name] for name in found}) == []


@pytest.fixture(scope="module")
def stopped(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """Of a run that has done half of its steps."""
    tied = replace(GPT, has_tied_embeddings=True)
    config = config_of(data, tmp_path_factory.mktemp("stopped"), tied, "adamw")
    config = replace(config, schedule=CONSTANT)
    train_quietly(replace(config, steps=config.steps // 2))
    return config


@pytest.mark.slow
def test_a_run_that_stopped_goes_on_as_the_plain_loop(stopped: RunConfig) -> None:
    resumed = Session(stopped.path, [f"steps={stopped.steps}"], console=quiet()).resume()
    found, expected = saved_parameters(resumed), plain_mup_loop(stopped)
    assert differing(found, {name: expected[name] for name in found}) == []


def test_a_run_does_not_go_on_under_another_base(stopped: RunConfig) -> None:
    with pytest.raises(OpenwaferError) as refused:
        Session(stopped.path, ["steps=6", "base.hidden_size=16"], console=quiet()).resume()
    assert "was begun with base: {'hidden_size': 8, 'mlp_size': 16}, and" in str(refused.value)
