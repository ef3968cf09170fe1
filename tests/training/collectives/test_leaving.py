"""A rank that ends while messages are under way does so at once, and the others are told."""

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from openwafer.diagnostics import OpenwaferError
from openwafer.training.collectives.group import Group
from openwafer.training.collectives.joining import Meeting

ROOT = Path(__file__).parents[3]
LIMIT_SECONDS = 240.0
SCRIPT = "tests.training.collectives.test_leaving"


def met(store: TCPStore, rank: int) -> Group:
    [group] = Meeting(store, rank, 2, LIMIT_SECONDS).groups(["messages"])
    return group


@pytest.mark.slow
def test_a_rank_does_not_wait_at_its_end_for_what_never_comes() -> None:
    limit = timedelta(seconds=LIMIT_SECONDS)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=limit)
    command = [sys.executable, "-m", SCRIPT, str(store.port)]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}) as other:
        group = met(store, 0)
        start = time.monotonic()
        with pytest.raises(OpenwaferError, match=r"rank-lost.*for rank 1"):
            group.receive(torch.zeros(1), 1, 0, "its word").wait()
        assert time.monotonic() - start < LIMIT_SECONDS / 2
    assert other.returncode == 0


def with_a_message_under_way(port: int) -> Group:
    limit = timedelta(seconds=LIMIT_SECONDS)
    store = TCPStore("localhost", port, is_master=False, wait_for_workers=False, timeout=limit)
    group = met(store, 1)
    group.broadcast(torch.zeros(1), 0, "what never comes")
    # Until the thread that carries it waits.
    time.sleep(0.5)
    return group


if __name__ == "__main__":
    # There until the interpreter ends, as what stands in a traceback is.
    kept = with_a_message_under_way(int(sys.argv[1]))
