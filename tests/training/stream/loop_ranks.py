"""Processes that run programs of :mod:`tests.training.stream.loop_programs` as a launcher's would.

Each runs one program after the other.
"""

import gc
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from openwafer.diagnostics import OpenwaferError
from tests import forked
from tests.training.stream import loop_programs

TIMEOUT_SECONDS = 600.0
NUM_RANKS = 3
Program = Callable[[], Any]


def _store(port: int, *, is_master: bool) -> TCPStore:
    hour = timedelta(hours=1)
    return TCPStore("localhost", port, is_master=is_master, timeout=hour, wait_for_workers=False)


class LoopRanks:
    """Processes that wait for programs.

    Args:
        folder: where they leave what programs return.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_runs = 0
        self._store = _store(0, is_master=True)
        port = self._store.port
        self._processes = [
            forked.start(_run_programs, port, rank, folder) for rank in range(NUM_RANKS)
        ]
        # They are as far as each other when a program begins.
        self.run(loop_programs.rank, NUM_RANKS)

    def run(self, program: Program, size: int = 2) -> list[Any]:
        """What a program returns on each rank; an error is its text."""
        run, self._num_runs = self._num_runs, self._num_runs + 1
        torch.save(program, self._folder / f"{run}.program")
        self._store.set(str(run), str(size))
        for rank in range(size):
            self._store.wait([f"{run}/{rank}"], timedelta(seconds=TIMEOUT_SECONDS))
        return [
            torch.load(self._folder / f"{run}.{rank}", weights_only=False) for rank in range(size)
        ]

    def close(self) -> None:
        """End the processes, which end without an error."""
        self._store.set(str(self._num_runs), "0")
        codes = forked.exit_codes(self._processes)
        assert codes == [0] * NUM_RANKS, codes


def outcome(program: Program) -> Any:
    """What a program returns, or the text of the error that it ends in."""
    try:
        return program()
    except OpenwaferError as found:
        return str(found)
    except (AssertionError, RuntimeError):
        return traceback.format_exc()


def _run_programs(port: int, rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    gc.freeze()
    store, run = _store(port, is_master=False), 0
    while size := int(store.get(str(run))):
        gc.collect()  # of connections, whose threads wake a hundred times a second
        if rank < size:
            os.environ |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": str(run),
            }
            program = torch.load(folder / f"{run}.program", weights_only=False)
            torch.save(outcome(program), folder / f"{run}.{rank}")
            store.set(f"{run}/{rank}", "")
        run += 1
