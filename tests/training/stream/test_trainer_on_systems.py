"""The Trainer of transformers under torchrun against a plain one in one process, bit for bit."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("accelerate", reason="the Trainer of transformers asks for accelerate")

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 300
MODULE = "tests.training.stream.trainer_program"
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", MODULE)


class Logged(NamedTuple):
    """What a run leaves."""

    weights: dict[str, Tensor]
    history: list[dict[str, float]]


def trained(folder: Path, launcher: tuple[str, ...], *given: str) -> Logged:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *launcher, str(folder), *given]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=TIMEOUT_SECONDS)
    return Logged(*torch.load(folder / "left.pt"))


def check_equal(found: Logged, expected: Logged) -> None:
    weights = expected.weights
    assert [n for n, value in weights.items() if not torch.equal(found.weights[n], value)] == []
    assert found.history[:-1] == expected.history[:-1]


@pytest.mark.slow
def test_a_trainer_on_two_systems_equals_one_that_accumulates(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", (MODULE,), "plain", "2")
    whole = trained(tmp_path / "whole", TORCHRUN, "streamed", "1")
    check_equal(whole, plain)
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "rest" / "checkpoint-2")
    saved = str(tmp_path / "rest" / "checkpoint-2")
    check_equal(trained(tmp_path / "rest", TORCHRUN, "streamed", "1", saved), plain)
