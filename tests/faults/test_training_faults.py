"""Whichever read or write of a training run fails: a clear error, and the run goes on bit for bit.

What the store itself does is in test_store_faults.py. Here the failure meets training steps, with
every part of every layer on disk, and a new session takes the run up at the last commit.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Activations, Mode
from openwafer.training.session import RunConfig, Session, TrainResult
from openwafer.training.session.config_sections import StreamingConfig
from openwafer.training.store import StoreOptions
from openwafer.training.stream.plan.placement import StoreTier
from tests.faults.failing_io import Call, FailingIo, Fault
from tests.tables import checkerboard
from tests.training.session.tiny_runs import (
    GPT,
    MODEL,
    differing,
    make_tiny_data,
    quiet,
    saved_arrays,
    tiny_config,
)

# Room for the largest record on its way and for nothing else.
ON_DISK = StreamingConfig(
    device="cpu",
    store=StoreTier.DISK,
    host_memory=64 * 1024,
    mode=Mode.STREAMED,
    activations=Activations.KEEP,
    layers=("embedding", "head"),
)
# Here, some of the weights are in DRAM.
GPT_HOST_BYTES = 400 * 1024
NUM_STEPS = 3
# The updates of a clipped step reach the store while the next one runs.
MAX_LOST_STEPS = 2
# A run of a user's own model keeps gradients; the GPT's first two steps are undone.
RUNS = {"gradients kept": MODEL, "undone": GPT}
FAULTS = {
    "read": (Call.READ, Fault.REFUSE, "store-read-failed"),
    "write": (Call.WRITE, Fault.TEAR, "store-write-failed"),
    "sync": (Call.SYNC, Fault.REFUSE, "store-commit-failed"),
    "replace": (Call.REPLACE, Fault.REFUSE, "store-commit-failed"),
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    data = make_tiny_data(tmp_path_factory.mktemp("data"))
    config = tiny_config(data, tmp_path_factory.mktemp("unbroken"))
    host_memory = GPT_HOST_BYTES if request.param is GPT else ON_DISK.host_memory
    streaming = replace(ON_DISK, host_memory=host_memory)
    return replace(config, steps=NUM_STEPS, model=request.param, streaming=streaming)


@pytest.fixture(scope="module")
def unbroken(config: RunConfig) -> TrainResult:
    return Session(config, console=quiet()).train()


def train_with(config: RunConfig, file_io: FailingIo) -> TrainResult | OpenwaferError:
    """Train; the error, if there was one."""
    try:
        return Session(config, console=quiet(), store=StoreOptions(file_io=file_io)).train()
    except OpenwaferError as failure:
        return failure


def default_stride(config: RunConfig) -> int:
    """Of so many calls one fails by default; a step that is undone has more of them."""
    return 225 if config.model == GPT else 60


def go_on(config: RunConfig) -> TrainResult:
    """What a user does next: resume, or train where the run had not begun."""
    session = Session(config, console=quiet())
    return session.resume() if session.folder.config.exists() else session.train()


def steps_told(config: RunConfig) -> int:
    """Steps in metrics.jsonl, whose first line names its format."""
    path = config.path / "metrics.jsonl"
    return max(path.read_text().count("\n") - 1, 0) if path.exists() else 0


def last_start(config: RunConfig) -> int:
    """At which step the last process of a run began."""
    return int(re.findall(r"training from step (\d+)", (config.path / "log.txt").read_text())[-1])


def problem_of(config: RunConfig, file_io: FailingIo, code: str, unbroken: TrainResult) -> str:
    """What is wrong with a run that one failure hit; empty when all is well."""
    ended = train_with(config, file_io)
    if isinstance(ended, TrainResult):
        # A read that was made ahead of any loan is made again.
        different = differing(saved_arrays(ended), saved_arrays(unbroken))
        return ", ".join(different) if code == "store-read-failed" else "no failure"
    if ended.diagnostics[0].code != code:
        return f"unclear failure: {ended}"
    told = steps_told(config)
    arrays = saved_arrays(go_on(config))
    if told - last_start(config) > MAX_LOST_STEPS:
        return f"went on at step {last_start(config)} after {told} steps"
    return ", ".join(differing(arrays, saved_arrays(unbroken)))


def problems(
    config: RunConfig, fault: tuple[Call, Fault, str], unbroken: TrainResult, stride: int
) -> dict[int, str]:
    """The problems of runs whose call 0, `stride`, 2 `stride` ... fails, by its number."""
    call, kind, code = fault
    counting = FailingIo(call, None, kind)
    assert isinstance(train_with(replace(config, name="counted"), counting), TrainResult)
    assert counting.num_calls > NUM_STEPS
    found = {}
    for failing in range(0, counting.num_calls, stride):
        hit = replace(config, name=f"hit-{failing}")
        problem = problem_of(hit, FailingIo(call, failing, kind), code, unbroken)
        if problem:
            found[failing] = problem
    return found


# By default two of the faults meet a run.
@pytest.mark.parametrize(
    ("config", "fault"), checkerboard(RUNS, FAULTS, one_in=4), indirect=["config"]
)
def test_a_failed_call_is_told_and_the_run_goes_on_bit_for_bit(
    config: RunConfig, unbroken: TrainResult, tmp_path: Path, fault: tuple[Call, Fault, str]
) -> None:
    assert problems(replace(config, folder=tmp_path), fault, unbroken, default_stride(config)) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("config", "fault"), checkerboard(RUNS, FAULTS), indirect=["config"])
def test_whichever_call_fails_is_told_and_the_run_goes_on_bit_for_bit(
    config: RunConfig, unbroken: TrainResult, tmp_path: Path, fault: tuple[Call, Fault, str]
) -> None:
    assert problems(replace(config, folder=tmp_path), fault, unbroken, stride=1) == {}
