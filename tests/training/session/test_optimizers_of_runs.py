"""Every optimizer of a config trains as torch's does, across a stop, on either tier."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Mode
from openwafer.training.session import ExportFormat, RunConfig, Session
from openwafer.training.session.config_sections import (
    GroupConfig,
    OptimizerConfig,
    ScheduleConfig,
    StreamingConfig,
)
from openwafer.training.session.optimizers import build_optimizers
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.session.test_averages import DECAY, ROUTED, PlainAverage
from tests.training.session.tiny_model import TinyModel
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    plain_loop,
    quiet,
    saved_parameters,
    tiny_config,
    train_quietly,
)
from tests.training.stream.axes import TIERS

OPTIONS: dict[str, dict[str, object]] = {
    "lamb": {},
    "adagrad": {"initial_accumulator_value": 0.25, "lr_decay": 0.1},
    "adadelta": {},
    "adamax": {"betas": [0.8, 0.9]},
    "nadam": {},
    "radam": {"decoupled_weight_decay": True},
    "rmsprop": {"centered": True, "momentum": 0.5},
    "asgd": {"t0": 1},
    "rprop": {},
}


def config_of(data: TinyData, folder: Path, tier: StoreTier, name: str) -> RunConfig:
    """Its learning rates do not depend on the number of steps; gradients are clipped."""
    return replace(
        tiny_config(data, folder, tier),
        clip_norm=0.1,
        optimizer=OptimizerConfig(name, 0.01, options=OPTIONS[name]),
        schedule=ScheduleConfig("constant", {"num_warm_up_steps": 1}),
    )


@pytest.mark.parametrize(
    ("name", "tier"),
    [
        case(name, tier, by_default=(name, tier) == ("rprop", StoreTier.DISK))
        for name, tier in product(OPTIONS, TIERS)
    ],
)
def test_a_run_that_stopped_and_went_on_equals_the_plain_loop(
    data: TinyData, tmp_path: Path, name: str, tier: StoreTier
) -> None:
    config = config_of(data, tmp_path, tier, name)
    train_quietly(replace(config, steps=2))
    resumed = Session(config, console=quiet()).resume()
    assert differing(saved_parameters(resumed), plain_loop(config)) == []


@pytest.mark.parametrize("name", ["asgd", case("lamb", by_default=False)])
def test_a_streamed_run_goes_on_resident(data: TinyData, tmp_path: Path, name: str) -> None:
    config = config_of(data, tmp_path, StoreTier.DISK, name)
    train_quietly(replace(config, steps=2))
    streaming = StreamingConfig(device="cpu", mode=Mode.RESIDENT)
    resumed = Session(replace(config, streaming=streaming), console=quiet()).resume()
    assert differing(saved_parameters(resumed), plain_loop(config)) == []


def test_averages_move_beside_lamb_while_layers_rest(data: TinyData, tmp_path: Path) -> None:
    config = replace(
        config_of(data, tmp_path, StoreTier.DISK, "lamb"), model=ROUTED, ema=DECAY, steps=8
    )
    train_quietly(config)
    average = PlainAverage()
    plain_loop(config, average)
    folder = Session(config, console=quiet()).export(
        tmp_path / "average", ExportFormat(uses_average=True)
    )
    assert differing(load_file(folder / "model.safetensors"), average.weights()) == []


def test_adagrad_begins_all_its_sums_alike() -> None:
    group = GroupConfig(("head.*",), options={"initial_accumulator_value": 0.5})
    with pytest.raises(
        OpenwaferError, match=r"one initial_accumulator_value, found \['0', '0.5'\]"
    ):
        build_optimizers(TinyModel(16), OptimizerConfig("adagrad", groups=(group,)))


def test_adagrad_makes_no_states_beside_those_of_the_store() -> None:
    model = TinyModel(16)
    config = OptimizerConfig("adagrad")
    optimizers = build_optimizers(model, config)
    assert not any(optimizer.state for optimizer in optimizers)
    held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}
    assert not any(isinstance(p, torch.nn.Parameter) and p.is_meta for p in held)
