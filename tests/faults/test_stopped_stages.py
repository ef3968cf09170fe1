"""Replicas of a pipeline are interrupted or lose a system, and go on to the bits of one system."""

import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from openwafer.training.models import UserModule
from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import CheckpointConfig, StreamingConfig
from openwafer.training.store import list_checkpoints
from tests.faults.killed_systems import start, systems_of
from tests.faults.runs_of_systems import differing_from_alone, written_config

pytestmark = pytest.mark.slow
NUM_STEPS = 100
STREAMING = StreamingConfig(device="cpu", mode=Mode.PIPELINED, stages=2)
LIMIT_SECONDS = 300.0
# What a lost connection tells at once, on a machine that is busy; messages have 600 seconds.
AT_ONCE_SECONDS = 60.0
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        text: all that it said.
        code: of the command.
        seconds: from its last step until all systems had ended.
    """

    text: str
    code: int
    seconds: float


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def train(config: RunConfig, *, interrupts: bool = False) -> Ended:
    """Train on four systems until none runs any more, with Ctrl-C behind the fifth step or not."""
    told: list[str] = []
    systems: list[int] = []
    last = 0.0
    with start(["train", str(config.folder / "tiny.yaml"), "--systems", "4"]) as command:
        assert command.stdout is not None
        limit = Timer(LIMIT_SECONDS, command.kill)
        limit.start()
        for line in command.stdout:
            told.append(line)
            if line.startswith("step "):
                last = time.monotonic()
                systems = systems or systems_of(command)
            if interrupts and line.startswith("step 5/"):
                command.send_signal(signal.SIGINT)
        limit.cancel()
    while any(map(is_running, systems)):
        assert time.monotonic() - last < LIMIT_SECONDS
        time.sleep(0.1)
    return Ended("".join(told), command.returncode, time.monotonic() - last)


def go_on(config: RunConfig) -> list[str]:
    """Resume a run on as many systems; returns what differs from one unbroken system."""
    command = start(["resume", str(config.path), "--trust-code", "--systems", "4"])
    text = command.communicate(timeout=LIMIT_SECONDS)[0]
    assert command.returncode == 0, text
    return differing_from_alone(config)


def test_an_interrupted_run_ends_behind_its_step_and_goes_on(tmp_path: Path) -> None:
    config = written_config(tmp_path, NUM_STEPS, streaming=STREAMING)
    ended = train(config, interrupts=True)
    assert ended.code == 130, ended.text
    [step] = re.findall(r"SIGINT: ended after step (\d+), which is saved", ended.text)
    assert [path.name for path in list_checkpoints(config.path / "checkpoints")] == [
        f"step-{int(step):08}"
    ]
    assert go_on(config) == []


def stopped_config(folder: Path, rank: int, number: int, **changes: Any) -> RunConfig:
    """A run whose system gets a signal in its second micro-batch of the sixth step."""
    faulty = {"rank": rank, "micro_batch": 12, "number": number, "mark": str(folder / "mark")}
    model = UserModule("tests.faults.faulty_models:StoppedModel", faulty)
    saving = CheckpointConfig(every=2)
    changes = {"model": model, "streaming": STREAMING, "checkpoint": saving, **changes}
    return written_config(folder, NUM_STEPS, **changes)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_system_that_is_killed_in_a_step_is_named_at_once_and_the_run_goes_on(
    tmp_path: Path, rank: int
) -> None:
    config = stopped_config(tmp_path, rank, signal.SIGKILL)
    ended = train(config)
    assert f"system {rank}, a process of this command, ended with code -9" in ended.text
    assert re.search(f"rank-lost.*waited [^\\n]*for rank {rank} on host", ended.text, re.DOTALL)
    assert ended.seconds < AT_ONCE_SECONDS
    assert go_on(config) == []


def test_all_systems_end_when_the_first_one_is_killed_and_the_run_goes_on(tmp_path: Path) -> None:
    config = stopped_config(tmp_path, 0, signal.SIGKILL)
    ended = train(config)
    assert ended.code == -signal.SIGKILL
    assert ended.seconds < AT_ONCE_SECONDS
    assert go_on(config) == []


def test_a_system_that_stands_still_in_a_step_is_named_in_time_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    config = stopped_config(tmp_path, 2, signal.SIGSTOP, systems_timeout=TIMEOUT_SECONDS)
    ended = train(config)
    assert re.search(r"rank-lost.*waited [^\n]*for rank 2 on host", ended.text, re.DOTALL)
    assert TIMEOUT_SECONDS - 1 < ended.seconds < 3 * TIMEOUT_SECONDS + AT_ONCE_SECONDS
    assert go_on(config) == []
