"""Runs on several systems that a launcher has started, and signals to some of their processes."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from openwafer.config import to_yaml
from openwafer.training.collectives.joining import MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE
from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.config_sections import CheckpointConfig, ScheduleConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.faults.hosts import COMMAND, ROOT
from tests.faults.runs_of_systems import differing_from_alone, written_config
from tests.training.session.tiny_runs import quiet

NUM_STEPS = 5000
"""More than a run makes before its signal."""
NUM_STEPS_AFTER = 3
GRACE_SECONDS = 30.0
"""Of torchrun, which kills after it."""
START_SECONDS = 120.0
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
TORCHRUN = (
    *("-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"),
    *("--rdzv-endpoint=localhost:0", "--no-python", sys.executable),
)
SAVED = re.compile(r"(SIG\w+): ended after step (\d+), which is saved")


class Launcher(StrEnum):
    """What starts the two systems."""

    TORCHRUN = "torchrun"
    PODS = "variables of the environment"
    COMMAND = "the command itself"


class Target(StrEnum):
    """Who gets the signal; the agent is what was started, and for pods the system that leads."""

    AGENT = "the agent"
    RANKS = "all ranks"
    ALL = "the agent and all ranks"
    LEADER = "the system that leads"
    FOLLOWER = "the one that follows"


@dataclass(frozen=True)
class Started:
    """Processes of a run, and what they say.

    Attributes:
        processes: that were started here.
        words: a file.
        launcher: what started the systems.
    """

    processes: Sequence[subprocess.Popen[bytes]]
    words: Path
    launcher: Launcher

    @property
    def said(self) -> str:
        """What they have said so far."""
        return self.words.read_text()

    def ranks(self) -> list[int]:
        """Process ids of the systems, in the order of their ranks as far as these have begun."""
        if self.launcher is Launcher.PODS:
            return [process.pid for process in self.processes]
        [parent] = self.processes
        path = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        children = path.read_text().split() if path.exists() else []
        own = [parent.pid] if self.launcher is Launcher.COMMAND else []
        return [*own, *map(int, children)]

    def tell(self, target: Target, number: signal.Signals) -> None:
        """Send a signal."""
        agent, ranks = self.processes[0].pid, self.ranks()
        pids = {
            Target.AGENT: [agent],
            Target.RANKS: ranks,
            Target.ALL: [agent, *(rank for rank in ranks if rank != agent)],
            Target.LEADER: ranks[:1],
            Target.FOLLOWER: ranks[1:],
        }[target]
        for pid in pids:
            os.kill(pid, number)

    def end(self) -> list[int]:
        """Wait for all; returns their exit codes. None may need longer than a launcher waits."""
        limit = time.monotonic() + GRACE_SECONDS
        return [process.wait(limit - time.monotonic()) for process in self.processes]


@contextmanager
def started(
    launcher: Launcher,
    arguments: Sequence[str],
    words: Path,
    program: Sequence[str] = ("-c", COMMAND),
) -> Iterator[Started]:
    """Context in which two systems run a program of Python, by default the command."""
    command = [sys.executable, *program, *arguments]
    each: list[dict[str, str]] = [{}]
    if launcher is Launcher.TORCHRUN:
        command[1:1] = TORCHRUN
    elif launcher is Launcher.COMMAND:
        command += ["--systems", "2"]
    else:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            meeting = {MASTER_ADDR: "localhost", MASTER_PORT: str(free.getsockname()[1])}
        each = [{**meeting, WORLD_SIZE: "2", RANK: str(rank)} for rank in range(2)]
    with words.open("wb") as out:
        processes = [
            subprocess.Popen(
                command, cwd=ROOT, env={**ENVIRONMENT, **own}, stdout=out, stderr=subprocess.STDOUT
            )
            for own in each
        ]
    run = Started(processes, words, launcher)
    try:
        yield run
    finally:
        for process in processes:
            if process.poll() is None:
                for pid in run.ranks():
                    os.kill(pid, signal.SIGKILL)
                process.kill()
            process.wait()


def wait_for(is_so: Callable[[], bool], run: Started) -> None:
    """Return when something is so, before which no process may end."""
    limit = time.monotonic() + START_SECONDS
    while not is_so():
        assert time.monotonic() < limit, run.said
        assert all(process.poll() is None for process in run.processes), run.said
        time.sleep(0.02)


def run_config(folder: Path, tier: StoreTier, **changes: Any) -> RunConfig:
    """A config whose steps do not depend on how many there are, which is also in a file."""
    config = written_config(
        folder, NUM_STEPS, schedule=ScheduleConfig("constant", {"num_warm_up_steps": 0})
    )
    config = replace(config, streaming=replace(config.streaming, store=tier), **changes)
    (folder / "tiny.yaml").write_text(to_yaml(config))
    return config


def in_mode(config: RunConfig, mode: Mode, folder: Path) -> RunConfig:
    """The same in another mode."""
    config = replace(config, streaming=replace(config.streaming, mode=mode))
    (folder / "tiny.yaml").write_text(to_yaml(config))
    return config


def differing_when_resumed(config: RunConfig, num_steps: int) -> list[str]:
    """Go on by one system from so many steps; arrays that differ from those of an unbroken run."""
    short = in_mode(config, Mode.STREAMED, config.folder)
    last = CheckpointConfig(every=NUM_STEPS)
    short = replace(short, steps=num_steps + NUM_STEPS_AFTER, checkpoint=last)
    assert read_steps(config) == num_steps
    overrides = [f"steps={short.steps}", "systems=1", "streaming.mode=streamed"]
    Session(config.path, overrides, console=quiet()).resume()
    return differing_from_alone(short)


def read_steps(config: RunConfig) -> int:
    """Steps in the record of a run."""
    path = config.path / "metrics.jsonl"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0
