"""Runs whose stores go to other systems: from the last committed step, to the bits of one store."""

import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.metrics import METRICS_FORMAT, read_lines
from openwafer.training.session import Session, TrainResult, Weights
from openwafer.training.session.config import CheckpointConfig, ScheduleConfig
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.saved_run import find_newest
from openwafer.training.store import StoreOptions
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.replicas.ownership import StoreSystems
from tests.faults.failing_io import Call, FailingIo, Fault
from tests.training.session.follower_pool import FollowerPool
from tests.training.session.test_shared_stores import shared_config
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
    """

    def __init__(self, data: TinyData, folder: Path, pool: FollowerPool) -> None:
        saving = CheckpointConfig(every=100, at_end=False)
        constant = ScheduleConfig("constant")
        self.config = shared_config(
            data, folder, StoreTier.DISK, checkpoint=saving, schedule=constant
        )
        self._pool = pool
        self._unbroken: dict[str, TrainResult] = {}

    def begin(self, size: int, stores: StoreSystems, **changes: Any) -> Path:
        """Train the first steps; returns the run's folder."""
        config = replace(self.config, store_systems=stores, **changes)
        return train_quietly(config).folder if size == 1 else self._pool.train(config, size).folder

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


@pytest.fixture
def runs(data: TinyData, tmp_path: Path, pool: FollowerPool) -> BrokenRuns:
    return BrokenRuns(data, tmp_path, pool)


def steps_run(run: Path) -> list[int]:
    return [one.step for one in read_lines(run / "metrics.jsonl", METRICS_FORMAT).rows]


def stores_of(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("*") if path.name.startswith(("store", "moving")))


@pytest.mark.parametrize(
    ("size", "stores", "left"),
    [
        (2, FROM_ALL, ["store", "store-1"]),
        pytest.param(
            *(4, FROM_ALL, ["store", "store-1", "store-2", "store-3"]), marks=pytest.mark.slow
        ),
        pytest.param(*(2, FROM_ONE, ["store"]), marks=pytest.mark.slow),
        pytest.param(*(1, FROM_ALL, ["store"]), marks=pytest.mark.slow),
    ],
)
def test_stores_of_three_systems_go_to_others_with_no_step_repeated(
    runs: BrokenRuns, size: int, stores: StoreSystems, left: list[str]
) -> None:
    run = runs.begin(3, FROM_ALL)
    result = runs.go_on(run, size, f"store_systems={stores}")
    assert runs.differing(result) == []
    assert steps_run(run) == list(range(NUM_LONG_STEPS))
    assert stores_of(run) == left


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_one_store_goes_to_all_systems_with_no_step_repeated(runs: BrokenRuns, size: int) -> None:
    run = runs.begin(size, FROM_ONE)
    assert runs.differing(runs.go_on(run, 3, "store_systems=all")) == []
    assert steps_run(run) == list(range(NUM_LONG_STEPS))
    assert stores_of(run) == ["store", "store-1", "store-2"]


@pytest.mark.slow
def test_averages_and_masters_move_with_how_often_they_were_updated(runs: BrokenRuns) -> None:
    changes = {"weights": Weights.BF16, "ema": 0.9}
    run = runs.begin(3, FROM_ALL, **changes)
    result = runs.go_on(run, 2)
    assert runs.differing(result, **changes) == []


@pytest.mark.parametrize(
    "override",
    [
        "streaming.layers=[layers.0.attention]",
        pytest.param("streaming.store=dram", marks=pytest.mark.slow),
    ],
)
def test_stores_of_other_records_become_a_checkpoint_first(runs: BrokenRuns, override: str) -> None:
    run = runs.begin(2, FROM_ALL)
    assert runs.differing(runs.go_on(run, 1, override)) == []
    assert steps_run(run) == list(range(NUM_LONG_STEPS))
    assert (run / "checkpoints" / f"step-{NUM_STEPS:08d}").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("call", [Call.WRITE, Call.SYNC, Call.REPLACE])
def test_a_move_that_fails_anywhere_leaves_the_stores_it_began_with(
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
def test_stores_that_a_kill_left_in_two_places_are_found(runs: BrokenRuns) -> None:
    run = runs.begin(3, FROM_ALL)
    folder = RunFolder(run)
    folder.move_store_of(0)
    folder.move_store_of(2)
    # As much as the new first store had by then.
    shutil.copytree(run / "store-1", run / "store")
    for manifest in (run / "store").glob("manifest*.json"):
        manifest.unlink()
    result = runs.go_on(run, 2)
    assert runs.differing(result) == []
    assert steps_run(run) == list(range(NUM_LONG_STEPS))
    assert stores_of(run) == ["store", "store-1"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_what_a_kill_left_of_stores_that_have_moved_is_deleted(runs: BrokenRuns, size: int) -> None:
    run = runs.begin(2, FROM_ALL)
    for store in ("store", "store-1"):
        shutil.copytree(run / store, run / "moving" / store)
    assert runs.differing(runs.go_on(run, size)) == []
    assert stores_of(run) == ["store", "store-1"][:size]


@pytest.mark.slow
def test_a_chosen_checkpoint_sets_stores_aside_that_were_to_move(runs: BrokenRuns) -> None:
    run = runs.begin(2, FROM_ALL, checkpoint=CheckpointConfig(every=1, keep=9))
    RunFolder(run).move_store_of(0)
    chosen = run / "checkpoints" / "step-00000002"
    Session(run, ["systems=1", *LONGER], console=quiet()).resume(chosen)
    assert (run / "set-aside" / "moving.0" / "store" / "manifest.json").exists()
