"""Starts the other systems of a run on this host, or takes a place among launched ones.

A launcher such as torchrun starts the same command everywhere and says by environment variables who
is who. Without one, the process of the command is the first system, and starts the others.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
import typer

from openwafer.cli import EXIT_INTERRUPTED
from openwafer.config import parse
from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, error
from openwafer.source import SourceText
from openwafer.training.collectives.group import GOES_ON
from openwafer.training.collectives.joining import (
    RANK,
    RESTARTS,
    launched_rank,
    meet_here,
)
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.following import follow
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.shared_stores import require_led_here
from openwafer.training.session.systems import Systems, require_same_settings

NUM_LAST_LINES: Final = 12
SILENT: Final = {-signal.SIGKILL: "it was killed; a host that lacks memory does that"}
SECONDS_TO_START: Final = 600.0
"""For one that is alive, on a host that has much else to do."""
SECONDS_TO_END: Final = 30.0
SECONDS_TO_FAIL: Final = 5.0
"""For those that an error ends: one is lost to the others a moment before its process has ended."""


@contextmanager
def systems_of(
    run: Path, config: RunConfig | None, overrides: Sequence[str], settings: Mapping[str, str]
) -> Iterator[Systems | None]:
    """Context in which all systems of a run are there; ``None`` for one that is alone.

    A system that does not lead computes its share of the run in here, and leaves the command.

    Args:
        run: its folder.
        config: see :func:`config_on_this_host`.
        overrides: of the config, in the command.
        settings: that all systems are to have alike, by their keys.

    Raises:
        OpenwaferError: ``systems-launched``, ``rank-missing``, ``systems-config``,
            ``run-elsewhere``.
    """
    launched = launched_rank()
    if launched is not None:
        _check_launched(launched[1], overrides)
        seconds = RunConfig.systems_timeout if config is None else config.systems_timeout
        systems = Systems.launched(seconds)
        require_same_settings(systems, settings)
        if not systems.is_leader:
            follow(systems)
            raise typer.Exit(EXIT_INTERRUPTED if systems.interruption.has_ended_run else 0)
        with systems.interruption:
            require_led_here(RunFolder(run), systems)
            yield systems
        return
    assert config is not None
    size = config.systems
    if size == 1:
        yield None
        return
    threads = max(1, torch.get_num_threads() // size)
    torch.set_num_threads(threads)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="openwafer-systems-")))
        meeting, variables = meet_here(size, config.systems_timeout)
        variables["OMP_NUM_THREADS"] = str(threads)
        others = [_start(rank, variables, folder) for rank in range(1, size)]
        with _ending(others), _telling_last_words(others):
            check = partial(_require_alive, others)
            systems = Systems(replace(meeting, check=check, start_seconds=SECONDS_TO_START))
            require_same_settings(systems, settings)
            yield systems


def config_on_this_host(
    run: Path, overrides: Sequence[str], *, trusts_code: bool
) -> RunConfig | None:
    """The config of a run; ``None`` for a process of a launcher on a host that has not the run.

    Raises:
        OpenwaferError: as :class:`Session` does.
    """
    if launched_rank() is not None and not RunFolder(run).config.is_file():
        return None
    return Session(run, overrides, trusts_code=trusts_code).config


def is_restart() -> bool:
    """Whether a launcher has started this command before, and some process of it has failed."""
    return int(os.environ.get(RESTARTS, "0")) > 0


@dataclass(frozen=True)
class _Asked:
    """The keys of a config that a launcher decides, too."""

    systems: int | None = None


def _check_launched(size: int, overrides: Sequence[str]) -> None:
    # The config itself may be on another host.
    own = [override for override in overrides if override.startswith("systems=")]
    asked = parse(SourceText("--set", ""), _Asked, own).systems
    if asked is not None and asked != size:
        raise error(
            "systems-launched",
            f"the command asks for {asked} systems, and the launcher has started {size} processes",
            help="leave --systems out, and systems of --set: the launcher's number counts",
        )


@dataclass(frozen=True)
class _Other:
    """Another system on this host."""

    rank: int
    process: subprocess.Popen[bytes]
    words: Path


def _start(rank: int, variables: dict[str, str], folder: Path) -> _Other:
    words = folder / f"{rank}.txt"
    with words.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env={**os.environ, **variables, RANK: str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the system that leads, which ends the others after its step.
            start_new_session=True,
        )
    return _Other(rank, process, words)


def _require_alive(others: Sequence[_Other]) -> None:
    """Raise ``rank-missing`` where one has ended, whose last words follow the error."""
    for other in others:
        if other.process.poll() is not None:
            raise error(
                "rank-missing",
                f"system {other.rank} has ended before it met the others",
                help=f"see what it said last; {GOES_ON}",
            )


@contextmanager
def _ending(others: list[_Other]) -> Iterator[None]:
    """Context after which the others have ended: by themselves, unless it is left by an error."""
    seconds = 0.0
    try:
        yield
        seconds = SECONDS_TO_END
    finally:
        for other in others:
            try:
                other.process.wait(seconds)
            except subprocess.TimeoutExpired:
                other.process.kill()
                other.process.wait()


@contextmanager
def _telling_last_words(others: list[_Other]) -> Iterator[None]:
    try:
        yield
    except OpenwaferError as found:
        deadline = time.monotonic() + SECONDS_TO_FAIL
        told = [_last_words(other) for other in others if _has_failed(other, deadline)]
        if not told:
            raise
        raise OpenwaferError(*found.diagnostics, *told) from found


def _has_failed(other: _Other, deadline: float) -> bool:
    try:
        return other.process.wait(max(deadline - time.monotonic(), 0.0)) != 0
    except subprocess.TimeoutExpired:
        return False


def _last_words(other: _Other) -> Diagnostic:
    lines = other.words.read_text(errors="replace").splitlines()[-NUM_LAST_LINES:]
    return Diagnostic(
        Severity.ERROR,
        "system-ended",
        f"system {other.rank}, a process of this command, ended with code "
        f"{other.process.returncode}",
        notes=tuple(lines) or (SILENT.get(other.process.returncode, "it said nothing"),),
        help=f"mend what it says, or train on fewer systems; {GOES_ON}",
    )
