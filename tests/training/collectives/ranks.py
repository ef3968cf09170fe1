"""Ranks that are threads of this process, joined by real connections."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar, cast

from torch import distributed as dist
from torch._C._distributed_c10d import HashStore

from openwafer.training.collectives.group import Group, Rank

TIMEOUT_SECONDS = 120.0
T = TypeVar("T")


def on_ranks(size: int, run: Callable[[Group], T], timeout: float = TIMEOUT_SECONDS) -> list[T]:
    """What a function returns on each rank; raises what the first one has raised."""
    store = HashStore()
    ranks = [Rank(index, f"host-{index}") for index in range(size)]
    # None of them ends before all have connected.
    are_joined = threading.Barrier(size, timeout=TIMEOUT_SECONDS)

    def run_on(index: int) -> T:
        limit = timedelta(seconds=TIMEOUT_SECONDS)
        processes = dist.ProcessGroupGloo(store, index, size, limit)
        group = Group(cast("dist.ProcessGroup", processes), ranks, timeout)
        are_joined.wait()
        return run(group)

    with ThreadPoolExecutor(size) as threads:
        return [one.result() for one in [threads.submit(run_on, i) for i in range(size)]]
