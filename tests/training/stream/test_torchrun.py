"""The program of the guide under torchrun itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training.stream.loop_programs import Loop, plainly

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 240


@pytest.mark.slow
def test_a_program_under_torchrun_equals_the_plain_loop(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = ["--nproc-per-node", "2", "-m", "tests.training.stream.torchrun_loop"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    saved = tmp_path / "weights.pt"
    subprocess.run(
        [*launcher, *program, str(saved)],
        cwd=ROOT,
        env=environment,
        check=True,
        timeout=TIMEOUT_SECONDS,
    )
    expected = plainly(Loop(num_steps=2, clip="torch", decay=1.0), 2).weights
    found = torch.load(saved)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
