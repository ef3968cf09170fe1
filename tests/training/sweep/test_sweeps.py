"""A sweep trains each run once, goes on where it ended, and refuses another config."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.config import to_yaml
from openwafer.diagnostics import OpenwaferError
from openwafer.training.metrics import VALIDATION_FORMAT, read_lines
from openwafer.training.plan_record import Mode
from openwafer.training.session import Session
from openwafer.training.session.config_sections import EvaluateConfig, StreamingConfig
from openwafer.training.sweep import Axis, Grid, Sweep, SweptRun
from openwafer.training.sweep.sweep import Progress
from tests.tables import case
from tests.training.session.tiny_runs import GPT, make_tiny_data, tiny_config

RATE = "optimizer.learning_rate"
GRID = Grid((Axis(RATE, ("1e-3", "1e-2")),), (3, 4))


class PoweredOffError(Exception):
    """In place of a kill."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    run = tiny_config(make_tiny_data(folder), folder / "runs")
    run = replace(run, steps=2, model=GPT, name=None, evaluate=EvaluateConfig(every=9, batches=1))
    # Plans of runs that stream take longer.
    run = replace(run, streaming=StreamingConfig(device="cpu", mode=Mode.RESIDENT))
    (folder / "proxy.yaml").write_text(to_yaml(run))
    return folder / "proxy.yaml"


@pytest.fixture(scope="module")
def swept(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that has ended."""
    folder = tmp_path_factory.mktemp("ended")
    run_all(Sweep(config, (), GRID, folder))
    return folder


def run_all(sweep: Sweep, after: Callable[[SweptRun], None] = lambda run: None) -> list[Progress]:
    """What was told when a run began."""
    begun: list[Progress] = []
    assert sweep.run(begun.append, after) == ""
    return begun


def power_off(run: SweptRun) -> None:
    raise PoweredOffError(run.name)


def test_a_swept_run_is_the_run_alone(config: Path, tmp_path: Path) -> None:
    sweep = Sweep(config, (), Grid((Axis(RATE, ("1e-2",)),), (3,)), tmp_path / "sweep")
    run_all(sweep)
    alone = Session(config, (f"{RATE}=1e-2", "seed=3", f"folder={tmp_path}", "name=alone"))
    alone.train()
    assert sweep.runs[0].loss == alone.evaluate(1)


def test_a_killed_sweep_goes_on_and_repeats_nothing(
    config: Path, tmp_path: Path, swept: Path
) -> None:
    sweep = Sweep(config, (), GRID, tmp_path)
    with pytest.raises(PoweredOffError, match="learning_rate=1e-3,seed=3"):
        sweep.run(lambda progress: None, power_off)
    # The next run was cut off in the middle of a step.
    half = tmp_path / "runs" / f"{RATE}=1e-3,seed=4"
    half.mkdir()
    (half / "config.yaml").write_text("steps: 1")
    again = Sweep(config, (), GRID, tmp_path)
    assert again.num_left == 3
    begun = run_all(again)
    assert [progress.number for progress in begun] == [2, 3, 4]
    assert len({(run.settings[RATE], run.seed) for run in again.runs}) == len(again.runs) == 4
    whole = Sweep(config, (), GRID, swept)
    assert [run.loss for run in whole.runs][:4] == [run.loss for run in again.runs]


@pytest.mark.slow
def test_a_larger_grid_goes_on_from_a_smaller_one(config: Path, swept: Path) -> None:
    larger = Sweep(config, (), Grid((Axis(RATE, ("1e-3", "1e-2", "3e-2")),), (3, 4)), swept)
    begun = run_all(larger)
    assert [progress.name for progress in begun] == [f"{RATE}=3e-2,seed={n}" for n in (3, 4)]
    assert begun[0].seconds_left is None
    assert begun[1].seconds_left == pytest.approx(larger.runs[-2].seconds)


@pytest.mark.slow
def test_a_run_that_diverges_is_noted_and_the_others_go_on(config: Path, tmp_path: Path) -> None:
    sweep = Sweep(config, ("steps=6",), Grid((Axis(RATE, ("1e30", "1e-3")),), (0,)), tmp_path)
    run_all(sweep)
    diverged, finite = sweep.runs
    assert (diverged.validation_loss, diverged.loss) == (None, float("inf"))
    assert diverged.steps < finite.steps == 6
    assert finite.validation_loss is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "num_steps"),
    [
        ("early_stopping={patience: 1, min_delta: 100}", 2),
        case("epochs=0.5", 0, by_default=False),
    ],
)
def test_a_run_that_ended_early_or_by_epochs_has_its_last_loss(
    config: Path, tmp_path: Path, length: str, num_steps: int
) -> None:
    changes = (
        length,
        f"steps={4 * num_steps}",
        f"evaluate={'{every: 1}' if num_steps else 'null'}",
    )
    sweep = Sweep(config, changes, Grid((Axis(RATE, ("1e-3",)),), (0,)), tmp_path)
    run_all(sweep)
    [run] = sweep.runs
    [folder] = (tmp_path / "runs").iterdir()
    assert num_steps in (0, run.steps)
    assert run.loss == read_lines(folder / "validation.jsonl", VALIDATION_FORMAT).rows[-1].loss


def test_what_another_process_has_done_meanwhile_is_not_repeated(
    config: Path, tmp_path: Path
) -> None:
    one = Grid((Axis(RATE, ("1e-2",)),), (3,))
    early = Sweep(config, (), one, tmp_path)
    run_all(Sweep(config, (), one, tmp_path))
    assert run_all(early) == []
    assert len(early.runs) == 1


def test_one_process_at_a_time_runs_a_sweep(config: Path, tmp_path: Path) -> None:
    def begin_again(_run: SweptRun) -> None:
        run_all(Sweep(config, (), GRID, tmp_path))

    with pytest.raises(OpenwaferError, match=r"sweep-locked.*is "):
        Sweep(config, (), GRID, tmp_path).run(lambda progress: None, begin_again)


@pytest.mark.parametrize(
    ("overrides", "grid", "told"),
    [
        (("steps=3",), GRID, r"sweep-changed.*steps is 2 in the sweep in .* and 3 here"),
        (("model.num_layers=3",), GRID, r"model\.num_layers is 2 in .*, and 3 here"),
        ((), Grid((Axis("batch.size", ("2",)),), (3,)), r"is over optimizer\.learning_rate, and b"),
    ],
)
def test_another_config_is_refused_by_value(
    config: Path, swept: Path, overrides: tuple[str, ...], grid: Grid, told: str
) -> None:
    with pytest.raises(OpenwaferError, match=told):
        Sweep(config, overrides, grid, swept)


def test_what_a_sweep_gives_to_runs_may_change(config: Path, swept: Path) -> None:
    assert Sweep(config, ("log_every=7", f"{RATE}=5.0"), GRID, swept).num_left == 0


def test_a_mistake_in_any_value_is_told_before_the_first_run(config: Path, tmp_path: Path) -> None:
    grid = Grid((Axis(RATE, ("1e-3", "fast")),), (0,))
    with pytest.raises(OpenwaferError, match=r"config-type.*expected a number"):
        Sweep(config, (), grid, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_damaged_file_is_refused(config: Path, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"format": "openwafer-sweep", "version": 1}')
    with pytest.raises(OpenwaferError, match=r"sweep-corrupt.*missing key"):
        Sweep(config, (), GRID, tmp_path)


@pytest.mark.slow
def test_runs_of_long_values_have_names_of_their_own(config: Path, tmp_path: Path) -> None:
    values = ("{size: 2, sequence_length: 8}", "{size: 2, sequence_length: 16}")
    sweep = Sweep(config, ("steps=1",), Grid((Axis("batch", values),), (0,)), tmp_path)
    names = [progress.name for progress in run_all(sweep)]
    assert len({*names}) == 2
    assert all("{" not in name and (tmp_path / "runs" / name).is_dir() for name in names)
