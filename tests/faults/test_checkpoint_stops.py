"""A process that ends anywhere in a save leaves the old checkpoint or the new one."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_save_stopped_at_any_system_call_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.faults.stopped_checkpoint", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    found = re.fullmatch(r"earlier: (\d+) calls\nnothing: (\d+) calls\n", done.stdout)
    assert found, done.stdout + done.stderr
    assert min(int(found[1]), int(found[2])) > 5
