"""openwafer sweep, from a config to a table, a picture and the config of a wide model."""

import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure as Canvas

from openwafer.cli.sweep_picture import draw_axis
from openwafer.config import load
from openwafer.training.session import RunConfig
from openwafer.training.sweep import Axis, Outcome
from tests.cli.command import Done, run_command

# Plans of runs that stream take longer.
RESIDENT = ("--set", "streaming={device: cpu, mode: resident}", "--set", "trace_steps=[]")
SHORT = ("--set", "steps=2", "--set", "model.num_layers=1")
GRID = ("--grid", "optimizer.learning_rate=1e-3,1e-2,1e30", *SHORT, *RESIDENT)
WIDE = ("--widths", "hidden_size=32,num_heads=4,mlp_size=48")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def swept(config_file: Path, folder: Path) -> Done:
    files = ("--folder", folder / "runs", "--picture", folder / "losses.svg")
    transfer = (*WIDE, "--transfer", folder / "wide.yaml")
    return run_command("sweep", config_file, *GRID, "--seeds", 2, *files, *transfer)


def test_runs_are_told_one_by_one_and_compared(swept: Done) -> None:
    assert swept.code == 0, swept.err
    assert "run 1 of 6: optimizer.learning_rate=1e-3,seed=0\n  loss 5." in swept.out
    assert re.search(r"run 2 of 6: .*,seed=1, about \d+ s left\n", swept.out)
    assert re.search(r"^1e30 +diverged +2 of 2$", swept.out, re.MULTILINE)
    assert re.search(r"^best: optimizer\.learning_rate=1e-2, loss 5\.\d+$", swept.out, re.MULTILINE)
    assert re.search(r"^noise over 2 seeds: 0\.\d+ a run; ", swept.out, re.MULTILINE)


def test_the_config_of_the_wide_model_trains_at_the_best_rate(swept: Done, folder: Path) -> None:
    assert f"wrote {folder / 'wide.yaml'}: under muP" in swept.out
    wide = load(folder / "wide.yaml", RunConfig)
    assert wide.optimizer.learning_rate == 0.01
    assert wide.base == {"hidden_size": 16, "num_heads": 2, "mlp_size": 24}
    # What a sweep sets for its own runs is not part of it.
    assert wide.evaluate is not None
    assert (wide.evaluate.every, wide.checkpoint.at_end) == (2, True)


def test_a_sweep_that_has_ended_is_told_again_at_once(
    swept: Done, config_file: Path, folder: Path
) -> None:
    own = ("--seeds", 2, "--folder", folder / "runs", "--set", "log_every=5")
    again = run_command("sweep", config_file, *GRID, *own)
    assert again.out.startswith("6 of 6 runs have ended before\n\n")
    table = swept.out[swept.out.index("optimizer.learning_rate  ") : swept.out.index("wrote")]
    assert table in again.out


def test_the_best_at_the_edge_is_warned_of(swept: Done, config_file: Path, folder: Path) -> None:
    grid = (*("--grid", "optimizer.learning_rate=1e-3,1e-2"), *GRID[2:], "--seeds", 2)
    done = run_command("sweep", config_file, *grid, "--folder", folder / "runs")
    assert done.out.startswith("4 of 4 runs have ended before\n\n")
    assert "warning[sweep-edge]: optimizer.learning_rate=1e-2 is the best, and at" in done.err
    assert "sweep-edge" not in swept.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((*WIDE,), "--widths is given, and --transfer is not"),
        (("--transfer", "wide.yaml"), "--transfer is given, and --widths is not"),
        (("--widths", "hidden=32", "--transfer", "wide.yaml"), "no field 'hidden'"),
        (("--grid", "steps"), "'steps' is no key with values"),
        (("--picture", "none/losses.png"), "there is no folder"),
    ],
)
def test_what_cannot_be_swept_is_told_before_anything_runs(
    config_file: Path, tmp_path: Path, arguments: tuple[object, ...], told: str
) -> None:
    done = run_command("sweep", config_file, *GRID, "--folder", tmp_path / "none", *arguments)
    assert done.code == 2
    assert told in done.err
    assert not (tmp_path / "none").exists()


def test_a_picture_has_a_line_for_each_choice_of_the_other_keys() -> None:
    axes: Any = Canvas().subplots()
    outcomes = [
        Outcome({"rate": rate, "size": size}, (float(rate) * float(size), float("inf")))
        if rate == "9"
        else Outcome({"rate": rate, "size": size}, (float(rate) * float(size),) * 2)
        for size in ("2", "1")
        for rate in ("1", "3", "9")
    ]
    draw_axis(axes, Axis("rate", ("1", "3", "9")), outcomes, outcomes[3])
    lines = [line for line in axes.get_lines() if line.get_linestyle() == "-"]
    assert [[*line.get_ydata()][:2] for line in lines] == [[2, 6], [1, 3]]
    crosses = [line for line in axes.get_lines() if line.get_marker() == "x"]
    assert [line.get_xdata()[0] for line in crosses] == [9, 9]
