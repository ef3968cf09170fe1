"""Kill systems of a run, again and again; run as a script, it prints how often it did.

Each time the command goes on with another number of systems, and any one of its processes gets a
SIGKILL at a random moment of training: in a step, a commit or a checkpoint.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_SECONDS = 1.5
LIMIT_SECONDS = 120.0
LAST_LIMIT_SECONDS = 1200.0
"""Of the command that trains what the kills have left, which is most of the steps."""


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """A command in a group of its own processes, whose output comes line by line."""
    command = [sys.executable, "-c", "from openwafer.cli import main; main()", *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def systems_of(command: subprocess.Popen[str]) -> list[int]:
    """Process ids of a command's systems, itself first."""
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    return [command.pid, *map(int, children)]


def trial(arguments: Sequence[str], chance: random.Random) -> str:
    """Run a command and kill one of its systems after its first step; returns what is wrong."""
    command = start(arguments)
    assert command.stdout is not None
    told = []
    for line in command.stdout:
        told.append(line)
        if line.startswith("step "):
            time.sleep(chance.uniform(0, MAX_SECONDS))
            killed = chance.choice(systems_of(command))
            os.kill(killed, signal.SIGKILL)
            break
    text = "".join([*told, command.communicate(timeout=LIMIT_SECONDS)[0]])
    is_told = "rank-lost" in text and "system-ended" in text
    return "" if is_told or command.returncode in (0, -signal.SIGKILL) else text


def main(config: Path, run: Path, num_kills: int, seed: int, sizes: Sequence[int]) -> None:
    """Train a config to its end, through so many kills."""
    chance = random.Random(seed)
    arguments = ["train", str(config)]
    for kill in range(num_kills):
        size = sizes[kill % len(sizes)]
        sys.stdout.write(trial([*arguments, "--systems", str(size)], chance))
        if (run / "config.yaml").exists():
            arguments = ["resume", str(run)]
    last = start([*arguments, "--systems", "2"])
    told = last.communicate(timeout=LAST_LIMIT_SECONDS)[0]
    sys.stdout.write(f"{num_kills} kills\n" if last.returncode == 0 else told)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
        tuple(map(int, sys.argv[5:])),
    )
