"""A run can be read while it is trained, and from where nobody may write."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from openwafer.config import to_yaml
from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import RunConfig, Sampling, Session, load_config
from openwafer.training.session.config_sections import CheckpointConfig, EvaluateConfig
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_run import SavedRun, read_newest
from openwafer.training.store import list_checkpoints, read_checkpoint
from openwafer.training.store.checkpoint import keep_last
from openwafer.training.stream.plan.placement import StoreTier
from tests import forked
from tests.tables import case
from tests.training.session.tiny_runs import GPT, TinyData, quiet, tiny_config
from tests.training.stream.axes import TIERS

GREEDY = Sampling(max_new_tokens=4, temperature=0.0)


def config_in(data: TinyData, folder: Path, tier: StoreTier = StoreTier.DRAM) -> RunConfig:
    return replace(
        tiny_config(data, folder, tier),
        model=GPT,
        evaluate=EvaluateConfig(every=1000, batches=1),
        checkpoint=CheckpointConfig(every=2, keep=2, at_end=tier is StoreTier.DRAM),
    )


def entries(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder with its size and the time of its last change, of its names too."""
    found = [folder, *folder.rglob("*")]
    return {str(p): (p.stat().st_size, p.stat().st_ctime_ns) for p in found}


@pytest.fixture(scope="module")
def trained(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose last step is in a checkpoint."""
    config = config_in(data, tmp_path_factory.mktemp("trained"))
    return Session(config, console=quiet()).train().folder


@pytest.fixture(scope="module")
def on_disk(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose last step is in its store alone, and which keeps its own tokens."""
    config = config_in(data, tmp_path_factory.mktemp("on_disk"), StoreTier.DISK)
    config = replace(config, data=replace(config.data, folder=None))
    return Session(config, console=quiet()).train().folder


@pytest.mark.parametrize("tier", [case(tier, by_default=tier is StoreTier.DISK) for tier in TIERS])
def test_reading_a_run_writes_nothing_into_its_folder(
    trained: Path, on_disk: Path, tmp_path: Path, tier: StoreTier
) -> None:
    run = on_disk if tier is StoreTier.DISK else trained
    before = entries(run)
    session = Session(run, console=quiet())
    assert session.generate_all(["3 squared"], GREEDY).step == 4
    session.evaluate()
    session.export(tmp_path / "exported")
    assert entries(run) == before


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return shutil.copytree(trained, tmp_path / "copy")


def read_from(run: Path) -> tuple[object, object]:
    session = Session(run, console=quiet())
    return session.generate("3 squared", GREEDY), session.evaluate()


def test_what_is_read_from_the_store_is_what_a_checkpoint_holds(
    trained: Path, on_disk: Path
) -> None:
    assert read_from(on_disk) == read_from(trained)


def test_a_run_of_several_systems_is_read_by_one_alone(trained: Path, run: Path) -> None:
    file = RunFolder(run).config
    config = load_config(file)
    batch = replace(config.batch, micro_batches=2)
    file.write_text(to_yaml(replace(config, batch=batch, systems=2)), encoding="utf-8")
    one, two = (Session(each, console=quiet()).generate("3", GREEDY) for each in (trained, run))
    assert one == two


def test_a_run_without_its_lock_file_is_read(run: Path) -> None:
    (run / "lock").unlink()
    Session(run, console=quiet()).evaluate()
    assert not (run / "lock").exists()


def test_a_run_in_training_has_nothing_to_read_before_its_first_checkpoint(
    data: TinyData, tmp_path: Path
) -> None:
    config = config_in(data, tmp_path, StoreTier.DISK)
    run = Session(replace(config, steps=1), console=quiet()).train().folder
    wanted = r"is being trained and has no checkpoint yet\n.*wait for its first checkpoint"
    with RunFolder(run).locked(), pytest.raises(OpenwaferError, match=wanted):
        Session(run, console=quiet()).generate("3", GREEDY)


def test_a_checkpoint_that_training_deletes_gives_way_to_the_next(
    run: Path, tmp_path: Path
) -> None:
    folder = RunFolder(run)
    newest = list_checkpoints(folder.checkpoints)[-1]
    hidden = newest.rename(tmp_path / newest.name)
    read: list[int] = []

    def read_it(saved: SavedRun) -> None:
        read.append(saved.state.steps_done)
        if hidden.exists():
            hidden.rename(newest)
            # Before the reader has it for itself, as it were.
            shutil.rmtree(saved.checkpoint or newest)
        read_checkpoint(saved.checkpoint or newest)

    read_newest(folder, read_it)
    assert read == [2, 4]


def test_a_checkpoint_stays_while_it_is_read_however_fast_others_come(run: Path) -> None:
    folder = RunFolder(run)
    later = iter(range(6, 16, 2))
    read: list[int] = []

    def read_slowly(saved: SavedRun) -> None:
        read.append(saved.state.steps_done)
        if (step := next(later, None)) is not None:
            newest = list_checkpoints(folder.checkpoints)[-1]
            shutil.copytree(newest, newest.with_name(f"step-{step:08d}"))
        keep_last(folder.checkpoints, 1)
        read_checkpoint(saved.checkpoint or newest)

    read_newest(folder, read_slowly)
    assert (read, len(keep_last(folder.checkpoints, 1))) == ([4], 1)


def train_for_long(config: RunConfig) -> None:
    torch.set_num_threads(1)
    Session(config, console=quiet()).train()


@contextmanager
def training(config: RunConfig) -> Iterator[BaseProcess]:
    """A process that has written two checkpoints of a run and goes on until the end."""
    process = forked.start(train_for_long, config)
    deadline = time.monotonic() + forked.PATIENCE_SECONDS
    while len(list_checkpoints(config.path / "checkpoints")) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield process
    os.kill(process.pid or 0, signal.SIGTERM)
    assert forked.exit_codes([process]) == [0]


def test_a_run_is_read_beside_the_process_that_trains_it(data: TinyData, tmp_path: Path) -> None:
    # Checkpoints stay long enough to be read: one that comes too soon is read from its beginning.
    seldom = CheckpointConfig(every=100, keep=2, at_end=False)
    config = replace(config_in(data, tmp_path, StoreTier.DISK), steps=100_000, checkpoint=seldom)
    with training(config) as process:
        session = Session(config.path, console=quiet())
        steps = [session.generate_all(["3 squared"], GREEDY).step for _ in range(2)]
        session.evaluate()
        session.export(tmp_path / "exported")
        assert 2 <= steps[0] <= steps[1]
        assert process.is_alive()
