"""Processes that are forks of one server, which has loaded torch and the tests' programs once."""

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Final

PRELOADED: Final = (
    "torch._dynamo",  # planning loads it late
    "tests.training.kill.killed_runs",
    "tests.training.session.follower_pool",
    "tests.training.stream.loop_ranks",
    "tests.first_run",
)
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(list(PRELOADED))


def start(work: Callable[..., None], *arguments: object) -> BaseProcess:
    """A process that does some work; it ends with this one."""
    process = _FORKS.Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def share() -> None:
    """Start the server now, for this process and for all that are forked from it."""
    forkserver.ensure_running()
    # It would look for its server among its children, where a fork has none.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]  # noqa: SLF001


def exit_codes(processes: Sequence[BaseProcess], seconds: float) -> list[int | None]:
    """Wait for processes to end; ``None`` is one that has not by then."""
    for process in processes:
        process.join(seconds)
    return [process.exitcode for process in processes]
