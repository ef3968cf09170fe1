"""SIGKILL of any system at any moment: the run goes on, on any number of them, to the same bits."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openwafer.training.session.config_sections import CheckpointConfig
from openwafer.training.stream.replicas.ownership import StoreSystems
from tests.faults.runs_of_systems import differing_from_alone, written_config

ROOT = Path(__file__).parents[2]
STEPS_OF_KILL = 25
SIZES = (3, 2, 1, 2, 3, 4)


def kill_systems(folder: Path, num_kills: int, sizes: Sequence[int], **changes: Any) -> None:
    num_steps = num_kills * STEPS_OF_KILL
    config = written_config(folder, num_steps, checkpoint=CheckpointConfig(every=3), **changes)
    command = [sys.executable, "-m", "tests.faults.killed_systems", str(folder / "tiny.yaml")]
    command += [str(config.path), str(num_kills), "1", *map(str, sizes)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == f"{num_kills} kills\n"
    assert differing_from_alone(config) == []


@pytest.mark.slow
def test_a_run_whose_systems_are_killed_ends_as_if_unbroken(tmp_path: Path) -> None:
    kill_systems(tmp_path, 1, (2, 1))


@pytest.mark.slow
def test_a_run_whose_systems_are_killed_fifty_times_ends_as_if_unbroken(tmp_path: Path) -> None:
    kill_systems(tmp_path, 50, SIZES)


@pytest.mark.slow
def test_a_run_with_one_store_is_killed_thirty_times_and_ends_as_if_unbroken(
    tmp_path: Path,
) -> None:
    kill_systems(tmp_path, 30, SIZES, store_systems=StoreSystems.FIRST)
