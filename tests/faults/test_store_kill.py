"""SIGKILL at any moment leaves the store at a committed step, byte for byte."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def report_of_kills(folder: Path, num_kills: int, seed: int) -> str:
    command = [sys.executable, "-m", "tests.faults.killed_writer", str(folder)]
    command += [str(num_kills), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout + done.stderr


def test_a_killed_process_leaves_a_committed_step(tmp_path: Path) -> None:
    report = report_of_kills(tmp_path / "store", 20, seed=1)
    survived = re.fullmatch(r"(\d+) steps survived 20 kills\n", report)
    assert survived, report
    assert int(survived[1]) > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_many_kills_leave_a_committed_step(tmp_path: Path, seed: int) -> None:
    report = report_of_kills(tmp_path / "store", 300, seed)
    assert re.fullmatch(r"\d+ steps survived 300 kills\n", report), report
