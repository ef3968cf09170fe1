"""SIGKILL, or a power failure, at any moment leaves the store at a committed step to the byte."""

import re
from pathlib import Path

import pytest

from tests.faults.killed_writer import STEPS_BEFORE
from tests.own_process import text_of


def report_of_kills(folder: Path, num_kills: int, seed: int, *options: str) -> str:
    return text_of("tests.faults.killed_writer", folder, num_kills, seed, *options)


def test_a_killed_process_leaves_a_committed_step(tmp_path: Path) -> None:
    report = report_of_kills(tmp_path / "store", 10, seed=1)
    survived = re.fullmatch(r"(\d+) steps survived 10 kills\n", report)
    assert survived, report
    assert int(survived[1]) > STEPS_BEFORE


def test_a_power_failure_leaves_a_committed_step(tmp_path: Path) -> None:
    report = report_of_kills(tmp_path / "store", 10, 1, "power")
    survived = re.fullmatch(r"(\d+) steps survived 10 kills\n", report)
    assert survived, report
    assert int(survived[1]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("power",)])
@pytest.mark.parametrize("seed", range(3))
def test_many_kills_leave_a_committed_step(
    tmp_path: Path, seed: int, options: tuple[str, ...]
) -> None:
    report = report_of_kills(tmp_path / "store", 300, seed, *options)
    assert re.fullmatch(r"\d+ steps survived 300 kills\n", report), report
