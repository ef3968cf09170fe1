"""A run that goes back to earlier weights and is killed goes on to the bits of the unbroken one."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import CheckpointConfig
from openwafer.training.sparsity.masks.schedules import EverySteps
from openwafer.training.sparsity.options import AlgorithmName, SparsityGroup
from openwafer.training.stream.plan.placement import StoreTier
from tests.tables import case
from tests.training.kill.killed_runs import (
    NUM_STEPS,
    final_arrays,
    kill_at,
    random_moment,
    run_to_the_end,
)
from tests.training.session.tiny_runs import GPT, TinyData, differing, tiny_config

# Kept behind step 2; rounds at 4, 8 and 12.
PRUNING = SparsityGroup(0.75, AlgorithmName.IMP, update=EverySteps(4), rewind_step=2)


@pytest.fixture(scope="module", params=[case(StoreTier.DISK, by_default=False), StoreTier.DRAM])
def unbroken(
    request: pytest.FixtureRequest, data: TinyData, tmp_path_factory: pytest.TempPathFactory
) -> RunConfig:
    config = tiny_config(data, tmp_path_factory.mktemp("unbroken"), request.param)
    checkpoint = CheckpointConfig(every=1, keep=3)
    config = replace(config, model=GPT, steps=NUM_STEPS, sparsity=PRUNING, checkpoint=checkpoint)
    run_to_the_end(config)
    return config


def killed_run_is_whole(unbroken: RunConfig, folder: Path, number: int) -> bool:
    config = replace(unbroken, folder=folder)
    kill_at(config, random_moment(number, NUM_STEPS))
    run_to_the_end(config)
    return differing(final_arrays(config), final_arrays(unbroken)) == []


@pytest.mark.slow
def test_a_killed_run_that_rewinds_goes_on_bit_for_bit(unbroken: RunConfig, tmp_path: Path) -> None:
    assert killed_run_is_whole(unbroken, tmp_path, 3)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_a_run_that_rewinds_may_be_killed_at_any_moment(
    unbroken: RunConfig, tmp_path: Path, number: int
) -> None:
    assert killed_run_is_whole(unbroken, tmp_path, number)
