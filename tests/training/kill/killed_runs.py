"""Runs in processes of their own that are ended by SIGKILL and begun again."""

import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from openwafer.training.session import RunConfig, Session
from openwafer.training.store import list_checkpoints, read_checkpoint
from tests import forked
from tests.faults.power_loss import Disk
from tests.training.session.tiny_runs import quiet

NUM_STEPS = 12
POLL_SECONDS = 0.0005
MAX_DELAY_SECONDS = 0.05


@dataclass(frozen=True)
class Moment:
    """When to kill: so long after so many steps are in metrics.jsonl."""

    num_steps: int
    delay_seconds: float


def random_moment(number: int, num_steps: int) -> Moment:
    """A moment of a run of `num_steps`, its beginning and its end included."""
    drawn = random.Random(number)
    return Moment(drawn.randint(-1, num_steps), drawn.uniform(0.0, MAX_DELAY_SECONDS))


def train_or_resume(config: RunConfig) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    session = Session(config, console=quiet())
    if session.folder.config.exists():
        session.resume()
    else:
        session.train()


def train_keeping_flushes(config: RunConfig, disk: Disk) -> None:
    """As :func:`train_or_resume`, keeping what the process makes durable."""
    disk.keep_flushes()
    train_or_resume(config)


def final_arrays(config: RunConfig) -> Mapping[str, torch.Tensor]:
    last = list_checkpoints(config.path / "checkpoints")[-1]
    shards = [load_file(last / shard) for shard in read_checkpoint(last).shards]
    return {name: array for arrays in shards for name, array in arrays.items()}


def run_to_the_end(config: RunConfig) -> None:
    process = forked.start(train_or_resume, config)
    assert forked.exit_codes([process]) == [0]


def kill_at(config: RunConfig, moment: Moment, disk: Disk | None = None) -> int:
    """Start a run, kill it, and return how many steps it had told of."""
    process = (
        forked.start(train_or_resume, config)
        if disk is None
        else forked.start(train_keeping_flushes, config, disk)
    )
    deadline = time.monotonic() + forked.PATIENCE_SECONDS
    while num_rows(config.path) < moment.num_steps and process.is_alive():
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)
    time.sleep(moment.delay_seconds)
    process.kill()
    process.join()
    return max(num_rows(config.path), 0)


def num_rows(run: Path) -> int:
    """Whole rows of metrics.jsonl; -1 before there is such a file."""
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") - 1 if path.exists() else -1


def first_steps(run: Path) -> list[int]:
    """At which step each process of a run began, by its log."""
    log = (run / "log.txt").read_text()
    return [int(step) for step in re.findall(r"training from step (\d+)", log)]
