"""The average of a run's weights is torch's, for layers that a step leaves alone, too."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from openwafer.training.models import UserModule
from openwafer.training.session import ExportFormat, RunConfig, Session
from openwafer.training.session.config_sections import ScheduleConfig, StreamingConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.session.tiny_runs import (
    TinyData,
    differing,
    plain_loop,
    quiet,
    tiny_config,
    train_quietly,
)
from tests.training.stream.axes import TIERS

NUM_STEPS = 20
DECAY = 0.9
ROUTED = UserModule("tests.training.session.tiny_model:RoutedModel")


class PlainAverage:
    """What torch averages over the steps of a plain loop."""

    def __init__(self) -> None:
        self.model: AveragedModel | None = None

    def __call__(self, model: nn.Module) -> None:
        if self.model is None:
            self.model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
        self.model.update_parameters(model)

    def weights(self) -> Mapping[str, torch.Tensor]:
        assert self.model is not None
        return self.model.module.state_dict()


def config_of(data: TinyData, folder: Path, tier: StoreTier) -> RunConfig:
    """Eight layers, of which each step trains one."""
    config = tiny_config(data, folder, tier)
    schedule = ScheduleConfig("constant", {"num_warm_up_steps": 1})
    return replace(config, model=ROUTED, steps=NUM_STEPS, ema=DECAY, schedule=schedule)


def expected(config: RunConfig) -> Mapping[str, torch.Tensor]:
    average = PlainAverage()
    plain_loop(config, average)
    return average.weights()


def exported(config: RunConfig) -> Mapping[str, torch.Tensor]:
    folder = Session(config, console=quiet()).export(
        config.folder / "average", ExportFormat(uses_average=True)
    )
    return load_file(folder / "model.safetensors")


# By default test_covering_runs resumes runs with averages, and this one layers that rest.
@pytest.mark.parametrize(
    ("tier", "clip_norm"),
    [
        case(tier, clip, by_default=(tier, clip) == (StoreTier.DISK, 0.1))
        for tier, clip in product(TIERS, (None, 0.1))
    ],
)
def test_the_average_is_torchs_after_save_and_resume(
    data: TinyData, tmp_path: Path, tier: StoreTier, clip_norm: float | None
) -> None:
    config = replace(config_of(data, tmp_path, tier), clip_norm=clip_norm)
    train_quietly(replace(config, steps=7))
    Session(config, console=quiet()).resume()
    assert differing(exported(config), expected(config)) == []


@pytest.mark.slow
def test_a_resident_run_goes_on_with_the_average_of_a_streamed_one(
    data: TinyData, tmp_path: Path
) -> None:
    config = config_of(data, tmp_path, StoreTier.DISK)
    train_quietly(replace(config, steps=7))
    resident = replace(config, streaming=StreamingConfig(device="cpu"))
    Session(resident, console=quiet()).resume()
    assert differing(exported(config), expected(config)) == []
