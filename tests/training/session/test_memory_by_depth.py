"""On the disk tier, a deeper model takes no more host memory."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def train(folder: Path, num_layers: int) -> tuple[int, int]:
    """Largest resident set of the run, and the bytes it trains."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.training.session.deep_run", str(folder)]
    done = subprocess.run(
        [*command, str(num_layers)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    resident_bytes, trained_bytes = map(int, done.stdout.split())
    return resident_bytes, trained_bytes


@pytest.mark.slow
def test_four_times_the_depth_adds_5_percent_of_host_memory_at_most(tmp_path: Path) -> None:
    shallow, deep = (train(tmp_path / str(depth), depth) for depth in (8, 32))
    allowed = shallow[0] * 5 // 100
    assert deep[1] - shallow[1] > 10 * allowed
    assert deep[0] - shallow[0] <= allowed
