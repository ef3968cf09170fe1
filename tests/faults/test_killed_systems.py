"""SIGKILL of any system at any moment: the run goes on, on any number of them, to the same bits."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.config import to_yaml
from openwafer.training.session import RunConfig
from openwafer.training.session.config import CheckpointConfig
from openwafer.training.session.data_config import BatchConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import (
    GPT,
    differing,
    make_tiny_data,
    saved_arrays,
    tiny_config,
)
from tests.training.session.tiny_runs import train_quietly as train_alone

ROOT = Path(__file__).parents[2]
STEPS_OF_KILL = 25


def config_of(folder: Path, num_steps: int) -> RunConfig:
    config = replace(
        tiny_config(make_tiny_data(folder), folder, StoreTier.DISK),
        model=GPT,
        steps=num_steps,
        log_every=1,
        batch=BatchConfig(size=4, sequence_length=12, micro_batches=4),
        checkpoint=CheckpointConfig(every=3),
    )
    (folder / "tiny.yaml").write_text(to_yaml(config))
    return config


def kill_systems(folder: Path, num_kills: int) -> None:
    config = config_of(folder, num_kills * STEPS_OF_KILL)
    command = [sys.executable, "-m", "tests.faults.killed_systems", str(folder / "tiny.yaml")]
    command += [str(config.path), str(num_kills), "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == f"{num_kills} kills\n"
    checkpoint = max((config.path / "checkpoints").iterdir())
    alone = train_alone(replace(config, name="alone"))
    assert alone.checkpoint is not None
    together = replace(alone, checkpoint=checkpoint)
    assert differing(saved_arrays(together), saved_arrays(alone)) == []


def test_a_run_whose_systems_are_killed_ends_as_if_unbroken(tmp_path: Path) -> None:
    kill_systems(tmp_path, 2)


@pytest.mark.slow
def test_a_run_whose_systems_are_killed_fifty_times_ends_as_if_unbroken(tmp_path: Path) -> None:
    kill_systems(tmp_path, 50)
