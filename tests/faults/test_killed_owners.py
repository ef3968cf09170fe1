"""SIGKILL of a system that computes experts for others, in mid-step: who waits for it is told.

The run goes on from the step before, on as many systems or fewer, to the bits of an unbroken one.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from openwafer.config import to_yaml
from openwafer.training.collectives.joining import MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE
from openwafer.training.plan_record import ExpertsWay
from openwafer.training.session import RunConfig, Session, TrainResult
from openwafer.training.session.config_sections import BatchConfig, CheckpointConfig
from openwafer.training.store import list_checkpoints
from tests.faults.hosts import COMMAND, ROOT
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.mixture_runs import mixture_config
from tests.training.session.tiny_runs import (
    differing,
    make_tiny_data,
    quiet,
    saved_arrays,
    train_quietly,
)

pytestmark = pytest.mark.slow
SIZE, KILLED = 3, 1
NUM_STEPS = 6
LAST_CHECKPOINT = "step-00000002"
TIMEOUT_SECONDS = 120
EXIT_MISTAKE = 2
# What the killed system was about to send in its third step, and how often it had before.
MOMENTS = {
    "rows of tokens follow": ("rows for the experts of another rank", 33),
    "products come back": ("what the experts here make of its rows", 26),
    "gradients of products go": ("a call of its experts (backward)", 19),
    "some are told that a layer is left": ("a call of its experts (leave)", 9),
    "some are told of the end of the pass": ("a call of its experts (end)", 5),
    "gradients of experts are shown": ("the gradient of its experts", 6),
}
ITSELF = f"rank {KILLED} on host '{socket.gethostname()}'"
TOLD = (
    r"error\[rank-lost\]: rank {rank} on host '\S+' waited [0-9.]+ s for "
    r"(rank \d on host '\S+'|the ranks that it sends to) to (send|take) \w+"
)


@dataclass(frozen=True)
class OwnerRuns:
    """Runs whose systems compute the experts that they own for each other.

    Attributes:
        config: of the runs.
        unbroken: what one system makes of it.
        pool: of systems with which broken runs go on.
    """

    config: RunConfig
    unbroken: TrainResult
    pool: FollowerPool

    def differing(self, run: Path, size: int, folder: Path) -> list[str]:
        """Arrays that a copy of a broken run, on so many systems, has otherwise in the end."""
        copy = shutil.copytree(run, folder / f"on-{size}")
        with self.pool.systems(size) as systems:
            result = Session(copy, console=quiet(), systems=systems).resume()
        return differing(saved_arrays(result), saved_arrays(self.unbroken))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnerRuns]:
    folder = tmp_path_factory.mktemp("runs")
    tiny = mixture_config(make_tiny_data(folder), folder)
    config = replace(
        tiny,
        steps=NUM_STEPS,
        batch=BatchConfig(size=10, sequence_length=12, micro_batches=5),
        checkpoint=CheckpointConfig(every=1, keep=9),
        systems_timeout=TIMEOUT_SECONDS,
        streaming=replace(tiny.streaming, experts=ExpertsWay.OWNERS),
    )
    alone = replace(config, name="alone", streaming=tiny.streaming)
    pool = FollowerPool(SIZE - 1)
    yield OwnerRuns(config, train_quietly(alone), pool)
    pool.close()


@contextmanager
def systems_of(commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Context of processes that a launcher would start with these words behind Python's name."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", WORLD_SIZE: str(len(commands))}
    variables |= {MASTER_ADDR: "localhost", MASTER_PORT: str(port)}
    with ExitStack() as stack:
        systems = []
        for rank, command in enumerate(commands):
            system = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env={**variables, RANK: str(rank)},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            stack.callback(system.wait)
            stack.callback(system.kill)
            systems.append(system)
        yield systems


@dataclass(frozen=True)
class Ended:
    """How a system ended that was not killed.

    Attributes:
        code: its exit code.
        told: all that it said.
        seconds: from the death of the killed one.
    """

    code: int
    told: str
    seconds: float


def kill_in(folder: Path, config: RunConfig, moment: str) -> dict[int, Ended]:
    """Train until a system dies; returns how the others end, by rank."""
    (folder / "tiny.yaml").write_text(to_yaml(replace(config, folder=folder)))
    what, num_before = MOMENTS[moment]
    training = ["-c", COMMAND, "train", str(folder / "tiny.yaml")]
    dying = ["-m", "tests.faults.dying_system", what, str(num_before), training[-1]]
    with systems_of([training, dying, training]) as systems:
        systems[KILLED].communicate()
        start = time.monotonic()
        ended = {}
        for rank in (0, 2):
            told = systems[rank].communicate(timeout=TIMEOUT_SECONDS / 2)[0]
            code = systems[rank].returncode
            ended[rank] = Ended(code, told, time.monotonic() - start)
    return ended


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_owner_that_is_killed_is_named_and_the_run_goes_on(
    runs: OwnerRuns, tmp_path: Path, moment: str
) -> None:
    ended = kill_in(tmp_path, runs.config, moment)
    for rank, end in ended.items():
        assert re.search(TOLD.format(rank=rank), end.told), end.told
        assert end.code == EXIT_MISTAKE, end.told
        assert end.seconds < TIMEOUT_SECONDS / 2, end.told
    assert any(ITSELF in end.told for end in ended.values()), ended
    run = tmp_path / "tiny"
    assert list_checkpoints(run / "checkpoints")[-1].name == LAST_CHECKPOINT
    assert runs.differing(run, SIZE, tmp_path) == []
    assert runs.differing(run, SIZE - 1, tmp_path) == []
