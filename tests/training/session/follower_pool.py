"""Processes that take part in the runs of a test, one run after the other.

Until the connections of a run are collected, they have threads that wake a hundred times a second.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, TCPStore

from openwafer.training.collectives.joining import Meeting
from openwafer.training.collectives.network_rates import NetworkRates
from openwafer.training.session import RunConfig, Session, TrainResult
from openwafer.training.session.following import follow
from openwafer.training.session.systems import Systems
from tests import forked
from tests.training.session.tiny_runs import quiet

TIMEOUT_SECONDS = 600.0
NUM_FOLLOWERS = 3
RUNS_COLLECTED = 4
HOUR = timedelta(hours=1)
# A measurement takes as long as a run does, and differs from one to the next.
NETWORK = NetworkRates(weights=1e9, gradients=1e9, turn_seconds=1e-4)


def _store(port: int, *, is_master: bool) -> TCPStore:
    return TCPStore("localhost", port, is_master=is_master, timeout=HOUR, wait_for_workers=False)


def _size(store: TCPStore, run: int) -> int:
    """Of a run, once it begins; systems that met before have left their own timeout."""
    store.set_timeout(HOUR)
    return int(store.get(str(run)))


def _systems(store: TCPStore, run: int, rank: int, size: int) -> Systems:
    meeting = Meeting(PrefixStore(f"run-{run}", store), rank, size, TIMEOUT_SECONDS)
    return Systems(meeting, NETWORK)


def _ended(run: int, rank: int) -> str:
    """Key of what a follower says at a run's end: nobody waits for a message any more."""
    return f"{run}/{rank}"


class FollowerPool:
    """Followers that wait for runs."""

    def __init__(self, num_followers: int = NUM_FOLLOWERS) -> None:
        self._num_runs = 0
        self._store = _store(0, is_master=True)
        port = self._store.port
        self._followers = [
            forked.start(_follow_runs, port, rank) for rank in range(1, num_followers + 1)
        ]

    def pid(self, rank: int) -> int:
        """Of the process that is this system in all runs; this one leads."""
        return self._followers[rank - 1].pid or 0 if rank else os.getpid()

    @contextmanager
    def systems(self, size: int) -> Iterator[Systems]:
        """Context in which so many systems run something that this process leads."""
        run = self._num_runs
        self._num_runs += 1
        self._store.set(str(run), str(size))
        yield _systems(self._store, run, 0, size)
        ended = [_ended(run, rank) for rank in range(1, size)]
        self._store.wait(ended, timedelta(seconds=TIMEOUT_SECONDS))
        if run % RUNS_COLLECTED == 0:
            gc.collect()

    def train(self, config: RunConfig, size: int) -> TrainResult:
        """Begin a run and train to its end."""
        with self.systems(size) as systems:
            return Session(config, console=quiet(), systems=systems).train()

    def close(self) -> None:
        """End the followers, which end without an error."""
        self._store.set(str(self._num_runs), "0")
        codes = forked.exit_codes(self._followers)
        assert codes == [0] * len(codes), codes


def _follow_runs(port: int, rank: int) -> None:
    torch.set_num_threads(1)
    gc.freeze()
    store, run = _store(port, is_master=False), 0
    while size := _size(store, run):
        if run % RUNS_COLLECTED == 0:
            gc.collect()
        if rank < size:
            follow(_systems(store, run, rank, size))
            store.set(_ended(run, rank), "")
        run += 1
