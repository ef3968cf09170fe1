"""Processes become the ranks of a run: they meet at a store of keys, and connect in groups.

A process that ends leaves its connections as they are, however many messages are under way. The
library's destructor waits for messages that lost ranks never send, until they have timed out, and
meanwhile the other ranks wait for this process. The operating system closes connections of a
process that has ended, and those ranks are told at once.
"""

import atexit
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from ctypes import py_object, pythonapi
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Thread
from typing import Final, cast
from weakref import WeakSet

from torch import distributed as dist

from openwafer.diagnostics import error
from openwafer.training.collectives.group import (
    FIRST_RANK,
    FirstLoss,
    Group,
    Rank,
    Waiting,
    connection_says,
    telling,
)
from openwafer.training.torch_private import PrefixStore, Store, TCPStore

_LEFT_AT_EXIT: WeakSet[dist.ProcessGroupGloo] = WeakSet()


def leave_at_exit(connections: dist.ProcessGroupGloo) -> None:
    """Do not destroy connections that are still there when the interpreter ends."""
    _LEFT_AT_EXIT.add(connections)


@atexit.register
def _leave() -> None:
    for connections in _LEFT_AT_EXIT:
        pythonapi.Py_IncRef(py_object(connections))


RANK: Final = "RANK"
WORLD_SIZE: Final = "WORLD_SIZE"
MASTER_ADDR: Final = "MASTER_ADDR"
MASTER_PORT: Final = "MASTER_PORT"
# Of the elastic launcher, which has a store of its own at that address.
AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
RESTARTS: Final = "TORCHELASTIC_RESTART_COUNT"
TIMEOUT_KEY: Final = "openwafer/timeout"
POLL_SECONDS: Final = 0.01


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Meeting:
    """Processes meet at a store of keys; this one has a number.

    Attributes:
        store: keys and values that all processes reach.
        rank: number of this process.
        size: number of processes.
        timeout_seconds: longest wait for another process, here and in every message.
        check: called while this process waits here; raises where another one cannot come any more.
        start_seconds: longest wait for one that is there and has not met anybody yet, where that is
            longer: how fast a process starts says nothing of how soon a silent one is lost.
    """

    store: Store
    rank: int
    size: int
    timeout_seconds: float
    check: Callable[[], None] = _nothing
    start_seconds: float = 0.0

    def groups(self, names: Sequence[str], members: Sequence[int] | None = None) -> list[Group]:
        """Connect processes, once for each name; all of them call this with the same names.

        Args:
            names: other ones in each call, and for other members.
            members: their ranks, rising, this one's among them; ``None`` connects all.

        Raises:
            OpenwaferError: ``rank-missing`` where one of them does not come, ``rank-lost`` where it
                has come and does not connect.
        """
        members = range(self.size) if members is None else members
        ranks = self.meet("/".join(names), members)
        limit = timedelta(seconds=self.timeout_seconds)
        index = members.index(self.rank)
        losses = FirstLoss(self.store)
        waiting = Waiting(
            ranks[index], "the other ranks", "to connect", self.timeout_seconds, losses
        )
        joined = []
        for name in names:
            store = PrefixStore(name, self.store)
            with waiting.naming_the_lost():
                processes = dist.ProcessGroupGloo(store, index, len(members), limit)
            leave_at_exit(processes)
            as_group = cast("dist.ProcessGroup", processes)
            joined.append(Group(as_group, ranks, self.timeout_seconds, losses))
        return joined

    def two_way_groups(self, names: Sequence[str]) -> list[Group]:
        """Groups of all processes, and for each one of what goes against its stream."""
        groups = self.groups(names)
        for group, other in zip(groups, self.groups([f"{n}-back" for n in names]), strict=True):
            group.return_by(other)
        return groups

    def timed_by_first(self) -> "Meeting":
        """The same with what rank 0 waits at most; all processes call this.

        Raises:
            OpenwaferError: ``rank-missing``.
        """
        if self.rank == FIRST_RANK:
            self.store.set(TIMEOUT_KEY, f"{self.timeout_seconds!r} {self.start_seconds!r}")
        timeout, start = map(float, self._told(TIMEOUT_KEY, FIRST_RANK).split())
        return replace(self, timeout_seconds=timeout, start_seconds=start)

    def meet(self, name: str, members: Sequence[int]) -> list[Rank]:
        """Wait until all of them are about to do something of that name; returns who they are.

        Raises:
            OpenwaferError: ``rank-missing``.
        """
        with _waiting_for(FIRST_RANK, self.rank, self.size):
            self.store.set_timeout(timedelta(seconds=self.timeout_seconds))
            self.store.set(_host_key(name, self.rank), socket.gethostname())
        return [Rank(rank, self._told(_host_key(name, rank), rank)) for rank in members]

    def _told(self, key: str, rank: int) -> str:
        """What a rank writes there; signals are heard, which the library's own wait keeps back."""
        seconds = max(self.timeout_seconds, self.start_seconds)
        limit = time.monotonic() + seconds
        with _waiting_for(rank, self.rank, self.size):
            while not self.store.check([key]):
                if time.monotonic() > limit:
                    raise RuntimeError(f"nothing has come in {seconds:g} s")
                self.check()
                time.sleep(POLL_SECONDS)
            return self.store.get(key).decode()


def _host_key(name: str, rank: int) -> str:
    return f"openwafer/host/{name}/{rank}"


def _waiting_for(rank: int, here: int, size: int) -> AbstractContextManager[None]:
    return telling(
        "rank-missing",
        f"rank {here} of {size}",
        f"rank {rank}, which is not there",
        "see what that process said, that it reaches this host, and that systems_timeout is longer "
        "than it takes to start",
    )


def launched_rank(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Rank and number of ranks that a launcher gave this process; ``None`` without one."""
    if not {RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT} <= environment.keys():
        return None
    return int(environment[RANK]), int(environment[WORLD_SIZE])


def meet_launched(timeout_seconds: float) -> Meeting:
    """Meet the other processes of a launcher, by torch's environment variables.

    Raises:
        OpenwaferError: ``rank-missing`` where nobody is at the address of the first,
            ``port-in-use`` where the first cannot be there.
    """
    launched = launched_rank()
    assert launched is not None
    rank, size = launched
    is_host = rank == FIRST_RANK and os.environ.get(AGENT_STORE) != "True"
    with _opening() if is_host else _waiting_for(FIRST_RANK, rank, size):
        store = _store_of_first(size, timeout_seconds, is_host=is_host)
    # What an earlier attempt of the launcher left there is of other processes.
    attempt = PrefixStore(f"attempt-{os.environ.get(RESTARTS, '0')}", store)
    return Meeting(attempt, rank, size, timeout_seconds)


def _store_of_first(size: int, timeout_seconds: float, *, is_host: bool) -> TCPStore:
    host, port = _address()
    opened: Future[TCPStore] = Future()

    def open_store() -> None:
        limit = timedelta(seconds=timeout_seconds)
        try:
            opened.set_result(
                TCPStore(host, port, size, is_host, timeout=limit, wait_for_workers=False)
            )
        except RuntimeError as failure:
            opened.set_exception(failure)

    # The library waits for ever for the answer of a program that is no store, and for no signal.
    Thread(target=open_store, name="meeting", daemon=True).start()
    try:
        return opened.result(timeout_seconds)
    except (RuntimeError, TimeoutError) as failure:
        if is_host:
            raise
        raise RuntimeError(_who_listens(host, port)) from failure


def _who_listens(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError as failure:
        return f"nobody listens at {host}:{port} ({failure.strerror or failure})"
    return f"another program than rank {FIRST_RANK} listens at {host}:{port}"


def _address() -> tuple[str, int]:
    return os.environ[MASTER_ADDR], int(os.environ[MASTER_PORT])


@contextmanager
def _opening() -> Iterator[None]:
    try:
        yield
    except RuntimeError as failure:
        host, port = _address()
        raise error(
            "port-in-use",
            f"rank {FIRST_RANK} cannot wait for the others at {host}:{port}",
            notes=(connection_says(failure),),
            help="give the launcher another port, which is MASTER_PORT",
        ) from failure


def meet_here(size: int, timeout_seconds: float) -> tuple[Meeting, dict[str, str]]:
    """Begin a meeting on this host as rank 0; returns the variables by which the others find it."""
    store = TCPStore(
        "localhost",
        0,
        size,
        is_master=True,
        timeout=timedelta(seconds=timeout_seconds),
        wait_for_workers=False,
    )
    variables = {
        WORLD_SIZE: str(size),
        MASTER_ADDR: "localhost",
        MASTER_PORT: str(store.port),
        AGENT_STORE: "True",
    }
    attempt = PrefixStore("attempt-0", store)
    return Meeting(attempt, 0, size, timeout_seconds), variables
