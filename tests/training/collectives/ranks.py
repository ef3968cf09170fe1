"""Ranks that are threads of this process, joined by real connections."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import MappingProxyType
from typing import TypeVar, cast

from torch import distributed as dist
from torch._C._distributed_c10d import HashStore

from openwafer.training.collectives.group import Group, Rank

TIMEOUT_SECONDS = 120.0
PATIENT: Mapping[int, float] = MappingProxyType({})
T = TypeVar("T")


def on_ranks(
    size: int, run: Callable[[Group], T], limits: Mapping[int, float] = PATIENT
) -> list[T]:
    """What a function returns on each rank; raises what the first one has raised.

    Args:
        size: number of ranks.
        run: called on each.
        limits: how many seconds a rank waits for a message, by rank. Only one that waits for what
            never comes has a short one, since the others may be slow.
    """
    store = HashStore()
    ranks = [Rank(index, f"host-{index}") for index in range(size)]
    # None of them ends before all have connected.
    are_joined = threading.Barrier(size, timeout=TIMEOUT_SECONDS)

    def run_on(index: int) -> T:
        limit = timedelta(seconds=TIMEOUT_SECONDS)
        processes = dist.ProcessGroupGloo(store, index, size, limit)
        seconds = limits.get(index, TIMEOUT_SECONDS)
        group = Group(cast("dist.ProcessGroup", processes), ranks, seconds)
        are_joined.wait()
        return run(group)

    with ThreadPoolExecutor(size) as threads:
        return [one.result() for one in [threads.submit(run_on, i) for i in range(size)]]
