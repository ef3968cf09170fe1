"""openwafer ablate, from a config to tables, a picture and a file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from matplotlib.figure import Figure as Canvas

from openwafer.cli.ablation_picture import draw_rows
from openwafer.cli.ablation_record import Cost, LawReading, Result
from openwafer.cli.swept_runs import run_sweep
from openwafer.loss_laws import Constant, CoursePoint, LawKind, SavedLaw
from openwafer.training.sweep import Ablation, Axis, Difference, Sweep
from openwafer.training.sweep.ablation import variants_of
from tests.cli.command import Done, run_command

VARY = ("--vary", "optimizer.learning_rate=1e30", "--vary", "schedule.name=constant")
# Plans of runs that stream take longer.
RESIDENT = ("--set", "streaming={device: cpu, mode: resident}", "--set", "trace_steps=[]")
GRID = """format: openwafer-variants
version: 1
variants:
  - name: longer
    set: {steps: 4}
"""


def law_file(path: Path, schedule: str, exponent: float = 0.1) -> Path:
    """A law of compute: (flops / 1e7) ** -exponent + 4."""
    constants = {"scale_flops": 1e7, "exponent": exponent, "floor_loss": 4.0}
    fit = {
        "kind": "compute",
        "constants": [{"name": name, "value": value} for name, value in constants.items()],
        "replicas": [],
        "conditions": {"schedule": schedule},
        "flops_range": [1e6, 1e8],
        "course": [{"share": 1.0, "low": 0.9, "high": 1.1}],
    }
    path.write_text(json.dumps({"format": "openwafer-fit", "version": 2, "fit": fit}))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ablation")


@pytest.fixture(scope="module")
def command(config_file: Path, folder: Path) -> tuple[object, ...]:
    (folder / "variants.yaml").write_text(GRID)
    short = ("--set", "steps=2", "--set", "model.num_layers=1")
    own = ("--grid-file", folder / "variants.yaml", "--seeds", 2, *short, *RESIDENT)
    law = ("--law", law_file(folder / "law.json", "cosine"))
    return ("ablate", config_file, *VARY, *own, *law, "--folder", folder / "runs")


@pytest.fixture(scope="module")
def done(command: tuple[object, ...], folder: Path) -> Done:
    return run_command(*command, "--json", folder / "a.json", "--picture", folder / "a.svg")


@pytest.fixture(scope="module")
def results(done: Done, folder: Path) -> dict[str, Any]:
    assert done.code == 0, done.err
    record = json.loads((folder / "a.json").read_text())
    return {each["name"]: each for each in record["ablation"]["results"]}


def test_each_variant_is_compared_with_the_baseline(done: Done, results: dict[str, Any]) -> None:
    assert [*results] == [
        *("baseline", "optimizer.learning_rate=1e30", "schedule.name=constant", "longer"),
    ]
    base, longer = results["baseline"], results["longer"]
    pairs = zip(longer["losses"], base["losses"], strict=True)
    one, other = (own - its for own, its in pairs)
    assert longer["difference"]["mean"] == pytest.approx((one + other) / 2)
    assert longer["difference"]["standard_error"] == pytest.approx(abs(one - other) / 2)
    assert longer["cost"]["flops_ratio"] == pytest.approx(2)
    assert re.search(r"^longer +5\.\d{4} +[+-]0\.\d{4} +\d", done.out, re.MULTILINE)


def test_a_variant_that_diverged_is_shown_and_ends_nothing(
    done: Done, results: dict[str, Any]
) -> None:
    assert re.search(r"^optimizer\.learning_rate=1e30 +2 of 2 diverged", done.out, re.MULTILINE)
    assert "warning[ablation-diverged]: of 'optimizer.learning_rate=1e30' 2 runs of 2" in done.err
    assert results["optimizer.learning_rate=1e30"]["losses"] == [None, None]


def test_the_law_stands_beside_each_variant_at_its_own_compute(results: dict[str, Any]) -> None:
    longer, base = results["longer"], results["baseline"]
    at, at_base = ((each["cost"]["flops"] / 1e7) ** -0.1 + 4 for each in (longer, base))
    assert longer["law"]["loss"] == pytest.approx(at)
    assert longer["law"]["above"] == pytest.approx(longer["loss"] - at)
    assert longer["law"]["difference"] == pytest.approx(at - at_base)


def test_a_variant_of_other_conditions_than_the_law_is_warned_of(
    done: Done, results: dict[str, Any]
) -> None:
    assert results["schedule.name=constant"]["law"] is None
    assert "warning[law-conditions]: the law of" in done.err
    assert "runs of the schedule cosine, and this run has the schedule constant" in done.err
    assert "in the variant 'schedule.name=constant' of --vary schedule.name" in done.err


def test_the_same_command_tells_the_same_at_once(done: Done, command: tuple[object, ...]) -> None:
    again = run_command(*command)
    assert again.out.startswith("8 of 8 runs have ended before\n")
    table = done.out[done.out.index("\nvariant") : done.out.index("wrote")]
    assert table in again.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--vary", "model.num_heads=3"), "in the variant 'model.num_heads=3'"),
        (("--vary", "steps"), "'steps' is no key with values"),
        (("--vary", "steps=3", "--law", "none.json"), "law-file"),
        ((), "there is nothing to compare with the baseline"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    config_file: Path, tmp_path: Path, arguments: tuple[object, ...], told: str
) -> None:
    done = run_command("ablate", config_file, *arguments, "--folder", tmp_path / "none")
    assert done.code == 2
    assert told in done.err
    assert not (tmp_path / "none/runs").exists()


def test_a_law_that_does_not_speak_of_the_baseline_is_refused(
    config_file: Path, tmp_path: Path
) -> None:
    law = law_file(tmp_path / "law.json", "linear")
    own = ("--vary", "steps=3", "--law", law, "--folder", tmp_path / "none")
    done = run_command("ablate", config_file, *own)
    assert done.code == 2
    assert "error[law-conditions]: the law of" in done.err
    assert "judge by a law of such runs: --law FILE" in done.err
    assert not (tmp_path / "none/runs").exists()


def test_an_interrupted_ablation_ends_with_its_own_exit_code(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(Sweep):
        def run(self, *_: object) -> str:
            return "SIGINT"

    ablation = Ablation(variants_of(Axis("steps", ("3",))), (0,))
    with pytest.raises(typer.Exit) as end:
        run_sweep(Interrupted(config_file, (), ablation, tmp_path))
    assert end.value.exit_code == 130
    assert "SIGINT: ended early, 2 runs left; go on with the same" in capsys.readouterr().err


def law_of(kind: LawKind, **constants: float) -> SavedLaw:
    named = tuple(Constant(*pair) for pair in constants.items())
    return SavedLaw(kind, named, (), {}, (10.0, 1000.0), (CoursePoint(1.0, 1.0, 1.0),))


def test_a_gain_is_worth_the_compute_that_the_law_asks_for_it() -> None:
    """A loss of 1 + C ** -0.5 is 1.1 at 100 FLOPs and 1.05 at 400; sizes that stay, stay."""
    law = law_of(LawKind.COMPUTE, scale_flops=1.0, exponent=0.5, floor_loss=1.0)
    assert law.compute_factor(1, 1, 100, 1.05 / 1.1) == pytest.approx(4)
    size = law_of(LawKind.PARAMETRIC, E=1.0, A=10.0, a=1.0, B=100.0, b=1.0)
    # 1 + 10 / 10 + 100 / 100 = 3; twice the tokens make it 2.5.
    assert size.compute_factor(10, 100, 100, 2.5 / 3) == pytest.approx(2)


def test_a_gain_that_the_law_knows_no_compute_for_is_worth_nothing_known() -> None:
    law = law_of(LawKind.COMPUTE, scale_flops=1.0, exponent=0.5, floor_loss=1.0)
    assert law.compute_factor(1, 1, 100, 0.9) is None
    # 1e6 FLOPs are more than ten times beyond the law's points.
    assert law.compute_factor(1, 1, 100, 1.001 / 1.1) is None


def test_a_picture_has_bars_costs_and_the_law_and_a_cross_for_what_diverged() -> None:
    axes: Any = Canvas().subplots()
    law = LawReading(5.0, 0.1, -0.2, None)
    cost = Cost(1e9, 1.5, 1e5, 0.1)
    rows = (
        Result("wide", {}, (5.0, 5.1), 5.05, Difference(-0.1, 0.01, 0.12), cost, law),
        Result("wild", {}, (float("inf"),), float("inf"), None, None, None),
    )
    draw_rows(axes, rows)
    marks = {line.get_marker(): [*line.get_xdata()] for line in axes.get_lines()}
    assert (marks["o"], marks["|"][-1:]) == ([-0.1], [-0.2])
    assert marks["x"] == [0.985]
    assert [text.get_text() for text in axes.texts] == ["1.50x", "diverged", "FLOPs"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["wide", "wild"]
