"""A run that is killed at any moment goes on to the bits of the unbroken one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from openwafer.training.session import RunConfig, Weights
from openwafer.training.store import list_checkpoints
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.kill.killed_runs import (
    Moment,
    first_steps,
    kill_at,
    random_moment,
    run_to_the_end,
)
from tests.training.session.tiny_runs import TinyData, differing, make_tiny_data, tiny_config

NUM_STEPS = 12
KINDS = {"clipped, in bf16": (0.1, Weights.BF16), "not clipped": (None, Weights.FP32)}
# An update that waits for its step's norm is committed one step later.
MAX_LOST_STEPS = {0.1: 2, None: 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TinyData:
    return make_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", params=list(KINDS.values()), ids=list(KINDS))
def unbroken(
    request: pytest.FixtureRequest, data: TinyData, tmp_path_factory: pytest.TempPathFactory
) -> RunConfig:
    """The config of a run from disk that nothing disturbed."""
    config = tiny_config(data, tmp_path_factory.mktemp("unbroken"), StoreTier.DISK)
    clip_norm, weights = request.param
    config = replace(config, steps=NUM_STEPS, clip_norm=clip_norm, weights=weights)
    run_to_the_end(config)
    return config


def final_arrays(config: RunConfig) -> Mapping[str, torch.Tensor]:
    last = list_checkpoints(config.path / "checkpoints")[-1]
    return {k: v for path in last.glob("*.safetensors") for k, v in load_file(path).items()}


def kill_and_resume(config: RunConfig, moment: Moment) -> int:
    """Kill a run at a moment, bring it to its end, and return how many steps were lost."""
    num_told = kill_at(config, moment)
    run_to_the_end(config)
    began = first_steps(config.path)
    return num_told - began[1] if len(began) > 1 else 0


def test_a_killed_run_goes_on_bit_for_bit(unbroken: RunConfig, tmp_path: Path) -> None:
    config = replace(unbroken, folder=tmp_path)
    lost = kill_and_resume(config, Moment(6, random_moment(2, 1).delay_seconds / 4))
    assert differing(final_arrays(config), final_arrays(unbroken)) == []
    assert lost <= MAX_LOST_STEPS[unbroken.clip_norm]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(50))
def test_a_run_killed_at_any_random_moment_goes_on_bit_for_bit(
    unbroken: RunConfig, tmp_path: Path, number: int
) -> None:
    config = replace(unbroken, folder=tmp_path)
    lost = kill_and_resume(config, random_moment(number, NUM_STEPS))
    assert differing(final_arrays(config), final_arrays(unbroken)) == []
    assert lost <= MAX_LOST_STEPS[unbroken.clip_norm]
