"""Measurements that need a process of their own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def integers_of(module: str, *arguments: object) -> tuple[int, ...]:
    """The integers that a module of the tests prints when it runs as a program."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(map(int, done.stdout.split()))
