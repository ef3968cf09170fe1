"""Processes that take part in the runs of a test; run as a script, one of them.

Each follows one run after the other, so that torch is imported once.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
from torch._C._distributed_c10d import PrefixStore, TCPStore

from openwafer.training.collectives.joining import Meeting
from openwafer.training.session import RunConfig, Session, TrainResult
from openwafer.training.session.following import follow
from openwafer.training.session.systems import Systems
from tests.training.session.tiny_runs import quiet

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 180.0
NUM_FOLLOWERS = 3


HOUR = timedelta(hours=1)


def _store(port: int, *, is_master: bool) -> TCPStore:
    return TCPStore("localhost", port, is_master=is_master, timeout=HOUR, wait_for_workers=False)


def _size(store: TCPStore, run: int) -> int:
    """Of a run, once it begins; systems that met before have left their own timeout."""
    store.set_timeout(HOUR)
    return int(store.get(str(run)))


def _systems(store: TCPStore, run: int, rank: int, size: int) -> Systems:
    return Systems(Meeting(PrefixStore(f"run-{run}", store), rank, size, TIMEOUT_SECONDS))


class FollowerPool:
    """Followers that wait for runs."""

    def __init__(self, num_followers: int = NUM_FOLLOWERS) -> None:
        self._num_runs = 0
        self._store = _store(0, is_master=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.training.session.follower_pool"]
        self._followers = [
            subprocess.Popen(
                [*command, str(self._store.port), str(rank)], cwd=ROOT, env=environment
            )
            for rank in range(1, num_followers + 1)
        ]

    @contextmanager
    def systems(self, size: int) -> Iterator[Systems]:
        """Context in which so many systems run something that this process leads."""
        run = self._num_runs
        self._num_runs += 1
        self._store.set(str(run), str(size))
        yield _systems(self._store, run, 0, size)

    def train(self, config: RunConfig, size: int) -> TrainResult:
        """Begin a run and train to its end."""
        with self.systems(size) as systems:
            return Session(config, console=quiet(), systems=systems).train()

    def close(self) -> None:
        """End the followers, which end without an error."""
        self._store.set(str(self._num_runs), "0")
        codes = [follower.wait(TIMEOUT_SECONDS) for follower in self._followers]
        assert codes == [0] * len(codes), codes


def _main(port: int, rank: int) -> None:
    torch.set_num_threads(1)
    store, run = _store(port, is_master=False), 0
    while size := _size(store, run):
        if rank < size:
            follow(_systems(store, run, rank, size))
        run += 1


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
