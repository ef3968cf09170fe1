"""Measurements that need a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

from openwafer.cli.environment import DEFAULTS

ROOT = Path(__file__).parents[1]


def integers_of(module: str, *arguments: object) -> tuple[int, ...]:
    """The integers that a module of the tests prints when it runs as the command line does."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {**DEFAULTS, **os.environ}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(map(int, done.stdout.split()))
