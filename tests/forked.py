"""Processes that are forks of one server, which has loaded torch and the tests' programs once."""

import multiprocessing
import os
import socket
from collections.abc import Callable, Sequence
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, Final, NoReturn

PRELOADED: Final = (
    "torch._dynamo",  # planning loads it late
    "tests.training.kill.killed_runs",
    "tests.training.session.follower_pool",
    "tests.training.stream.loop_ranks",
    "tests.first_run",
)
PATIENCE_SECONDS: Final = 600.0
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(list(PRELOADED))


def start(work: Callable[..., None], *arguments: object) -> BaseProcess:
    """A process that does some work; it ends with this one."""
    process = _FORKS.Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def share() -> None:
    """Make the server a fork of this process, for it and for all that are forked from it.

    It has loaded what this one has; by itself it would take ten seconds for that.
    """
    resource_tracker.ensure_running()
    address: str = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        end, alive = os.pipe()
        if (number := os.fork()) == 0:
            os.close(alive)
            _serve(listener.fileno(), end)
        os.close(end)
    server: Any = forkserver._forkserver  # noqa: SLF001
    server._forkserver_address, server._forkserver_alive_fd = address, alive  # noqa: SLF001
    server._forkserver_pid = number  # noqa: SLF001
    # It would look for its server among its children, where a fork has none.
    server.ensure_running = lambda: None


def _serve(listener: int, end: int) -> NoReturn:
    """Fork who is asked for, until all that may ask have ended."""
    try:
        forkserver.main(listener, end, [])
    finally:
        os._exit(0)


def exit_codes(processes: Sequence[BaseProcess]) -> list[int | None]:
    """Wait for processes to end; ``None`` is one that has not after ten minutes."""
    for process in processes:
        process.join(PATIENCE_SECONDS)
    return [process.exitcode for process in processes]
