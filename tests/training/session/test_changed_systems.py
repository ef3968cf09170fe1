"""Runs that go on over other systems: from the last committed step, to the bits of one store."""

import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.metrics import METRICS_FORMAT, read_lines
from openwafer.training.session import Session, TrainResult, Weights
from openwafer.training.session.config_sections import CheckpointConfig, ScheduleConfig
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_run import find_newest
from openwafer.training.store import StoreOptions
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.replicas.ownership import StoreSystems
from tests.faults.failing_io import Call, FailingIo, Fault
from tests.tables import case
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.test_shared_stores import shared_config, wait_for_stores
from tests.training.session.tiny_runs import (
    NUM_STEPS,
    TinyData,
    differing,
    quiet,
    saved_arrays,
    train_quietly,
)

NUM_LONG_STEPS = NUM_STEPS + 2
FROM_ONE, FROM_ALL = StoreSystems.FIRST, StoreSystems.ALL
LONGER = (f"steps={NUM_LONG_STEPS}", "checkpoint.at_end=true")


class BrokenRuns:
    """Runs whose last step is in their stores and nowhere else, and what becomes of them.

    Args:
        data, folder: of the runs.
        pool: whose systems they run on.
        unbroken: runs that were never broken, by how they differ.
    """

    def __init__(
        self, data: TinyData, folder: Path, pool: FollowerPool, unbroken: dict[str, TrainResult]
    ) -> None:
        saving = CheckpointConfig(every=100, at_end=False)
        constant = ScheduleConfig("constant")
        self.config = shared_config(
            data, folder, StoreTier.DISK, checkpoint=saving, schedule=constant
        )
        self._pool = pool
        self._unbroken = unbroken

    def begin(self, size: int, stores: StoreSystems, **changes: Any) -> Path:
        """Train the first steps; returns the run's folder."""
        config = replace(self.config, store_systems=stores, **changes)
        if size == 1:
            return train_quietly(config).folder
        run = self._pool.train(config, size).folder
        wait_for_stores(run)
        return run

    def go_on(self, run: Path, size: int, *overrides: str) -> TrainResult:
        """Train the last steps."""
        longer = (*LONGER, *overrides)
        if size == 1:
            return Session(run, ["systems=1", *longer], console=quiet()).resume()
        with self._pool.systems(size) as systems:
            return Session(run, longer, console=quiet(), systems=systems).resume()

    def differing(self, result: TrainResult, **changes: Any) -> list[str]:
        """Arrays that a run has otherwise which was never broken."""
        key = repr(changes)
        if key not in self._unbroken:
            whole = replace(
                self.config, name="whole", steps=NUM_LONG_STEPS, checkpoint=CheckpointConfig()
            )
            self._unbroken[key] = train_quietly(replace(whole, **changes))
        return differing(saved_arrays(result), saved_arrays(self._unbroken[key]))


@pytest.fixture(scope="module")
def unbroken() -> dict[str, TrainResult]:
    return {}


@pytest.fixture
def runs(
    data: TinyData, tmp_path: Path, pool: FollowerPool, unbroken: dict[str, TrainResult]
) -> BrokenRuns:
    return BrokenRuns(data, tmp_path, pool, unbroken)


def steps_run(run: Path) -> list[int]:
    return [one.step for one in read_lines(run / "metrics.jsonl", METRICS_FORMAT).rows]


def stores_of(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("store*"))


def checkpoint_of(run: Path, step: int = NUM_STEPS) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


@pytest.mark.parametrize(
    ("size", "stores", "left"),
    [
        (2, FROM_ALL, ["store", "store-1"]),
        case(4, FROM_ALL, ["store", "store-1", "store-2", "store-3"], by_default=False),
        case(2, FROM_ONE, ["store"], by_default=False),
        case(1, FROM_ALL, ["store"], by_default=False),
    ],
)
def test_stores_of_three_systems_go_on_over_others_with_no_step_repeated(
    runs: BrokenRuns, size: int, stores: StoreSystems, left: list[str]
) -> None:
    run = runs.begin(3, FROM_ALL)
    # As a kill between the parts of a commit leaves it.
    (run / "store-1" / "manifest.json").unlink()
    result = runs.go_on(run, size, f"store_systems={stores}")
    assert runs.differing(result) == []
    assert steps_run(run) == list(range(NUM_LONG_STEPS))
    assert stores_of(run) == left


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_one_store_goes_on_over_all_systems_with_no_step_repeated(
    runs: BrokenRuns, size: int
) -> None:
    run = runs.begin(size, FROM_ONE)
    assert runs.differing(runs.go_on(run, 3, "store_systems=all")) == []
    assert steps_run(run) == list(range(NUM_LONG_STEPS))
    assert stores_of(run) == ["store", "store-1", "store-2"]


@pytest.mark.slow
def test_averages_and_masters_go_on_with_how_often_they_were_updated(runs: BrokenRuns) -> None:
    changes = {"weights": Weights.BF16, "ema": 0.9}
    run = runs.begin(3, FROM_ALL, **changes)
    result = runs.go_on(run, 2)
    assert runs.differing(result, **changes) == []


OTHER_LAYERS = "streaming.layers=[layers.0.attention]"


# A run whose checkpoint could not be written at first goes on with other layers.
@pytest.mark.slow
@pytest.mark.parametrize("override", [OTHER_LAYERS, "streaming.store=dram"])
def test_stores_of_other_records_go_on_with_no_step_repeated(
    runs: BrokenRuns, override: str
) -> None:
    run = runs.begin(2, FROM_ALL)
    assert runs.differing(runs.go_on(run, 1, override)) == []
    assert steps_run(run) == list(range(NUM_LONG_STEPS))
    assert checkpoint_of(run).is_dir()


@pytest.mark.slow
def test_stores_stay_where_their_checkpoint_cannot_be_written(runs: BrokenRuns) -> None:
    run = runs.begin(2, FROM_ALL)
    (run / "checkpoints").touch()
    told = r"checkpoint-not-written.: cannot write the checkpoint .*step-00000004: "
    with pytest.raises(OpenwaferError, match=told):
        runs.go_on(run, 1)
    assert stores_of(run) == ["store", "store-1"]
    (run / "checkpoints").unlink()
    assert runs.differing(runs.go_on(run, 1, OTHER_LAYERS)) == []
    assert steps_run(run) == list(range(NUM_LONG_STEPS))
    assert checkpoint_of(run).is_dir()


@pytest.mark.slow
def test_stores_stay_where_the_model_has_other_weights_by_now(runs: BrokenRuns) -> None:
    run = runs.begin(2, FROM_ALL)
    with pytest.raises(OpenwaferError, match="checkpoint-mismatch"):
        runs.go_on(run, 1, "ema=0.9")
    assert stores_of(run) == ["store", "store-1"]
    assert runs.differing(runs.go_on(run, 2)) == []


@pytest.mark.slow
def test_a_checkpoint_that_an_interrupted_run_has_written_is_not_written_again(
    runs: BrokenRuns,
) -> None:
    run = runs.begin(2, FROM_ALL, checkpoint=CheckpointConfig(every=NUM_STEPS))
    before = checkpoint_of(run).stat().st_mtime_ns
    assert runs.differing(runs.go_on(run, 1)) == []
    assert checkpoint_of(run).stat().st_mtime_ns == before
    assert stores_of(run) == ["store"]


@pytest.mark.slow
@pytest.mark.parametrize("call", [Call.WRITE, Call.SYNC, Call.REPLACE])
def test_new_stores_that_fail_anywhere_leave_the_step_that_they_began_with(
    runs: BrokenRuns, call: Call
) -> None:
    run = runs.begin(2, FROM_ALL)
    for failing in count():
        failing_io = StoreOptions(file_io=FailingIo(call, failing, Fault.REFUSE))
        session = Session(run, ["systems=1"], console=quiet(), store=failing_io)
        try:
            session.resume()
            break
        except OpenwaferError:
            newest = find_newest(RunFolder(run))
            assert newest is not None
            assert newest.state.steps_done == NUM_STEPS
    assert failing > 0
    assert runs.differing(runs.go_on(run, 1)) == []


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [(), ("store",), ("store-1",)])
def test_a_kill_while_stores_are_deleted_loses_no_step(
    runs: BrokenRuns, tmp_path: Path, deleted: tuple[str, ...]
) -> None:
    run = runs.begin(2, FROM_ALL)
    for store in {"store", "store-1"} - {*deleted}:
        shutil.copytree(run / store, tmp_path / "kept" / store)
    refusing = StoreOptions(file_io=FailingIo(Call.WRITE, 0, Fault.REFUSE))
    with pytest.raises(OpenwaferError, match="store-"):
        Session(run, ["systems=1"], console=quiet(), store=refusing).resume()
    shutil.rmtree(run / "store")
    shutil.copytree(tmp_path / "kept", run, dirs_exist_ok=True)
    assert runs.differing(runs.go_on(run, 3)) == []
    assert steps_run(run) == list(range(NUM_LONG_STEPS))
    assert stores_of(run) == ["store", "store-1", "store-2"]


@pytest.mark.slow
def test_stores_that_an_earlier_program_has_renamed_are_not_passed_over(
    runs: BrokenRuns,
) -> None:
    run = runs.begin(1, FROM_ONE)
    (run / "moving").mkdir()
    (run / "store").rename(run / "moving" / "store")
    with pytest.raises(OpenwaferError, match=r"run-moving.: the last steps .*/moving, on their"):
        runs.go_on(run, 1)
    (run / "moving" / "store").rename(run / "store")
    assert runs.differing(runs.go_on(run, 1)) == []
