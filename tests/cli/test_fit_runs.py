"""openwafer fit on the folders of runs: what their points are, and what is refused in them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.cli.run_points import Reading, read_sources
from openwafer.json_files import convert
from openwafer.planning.laws import TrainedPoint
from openwafer.training.data import SizeChange
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import BatchConfig
from tests.cli.command import Done, run_command
from tests.planning.laws.made_points import HOFFMANN, grid_points
from tests.training.session.tiny_runs import train_quietly

LENGTH, BATCH, HELD_OUT_BATCHES = 12, 6, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of what the fit writes."""
    return tmp_path_factory.mktemp("fit")


@pytest.fixture(scope="module")
def fitted(ladder: Path, folder: Path) -> Done:
    parts = [*sorted(ladder.iterdir())]
    asked = ("--law", "parametric", "--replicas", 20, "--hold-out", "large-2")
    outputs = ("--json", folder / "fit.json", "--picture", folder / "fit.svg")
    extra = folder / "more.csv"
    rows = [f"{p.loss},{p.flops},{p.parameters},{p.tokens}" for p in grid_points(HOFFMANN)[:4]]
    extra.write_text("\n".join(["loss,flops,parameters,tokens", *rows]))
    return run_command("fit", *parts, extra, *asked, *outputs)


@pytest.fixture(scope="module")
def points(fitted: Done, folder: Path) -> dict[str, TrainedPoint]:
    assert fitted.code == 0, fitted.err
    content = json.loads((folder / "fit.json").read_text())
    compared = content["fit"]["points"]
    assert [c["point"]["name"] for c in compared if c["is_held_out"]] == ["large-2"]
    read = (convert(TrainedPoint, c["point"]) for c in compared)
    return {point.name: point for point in read}


def test_a_run_has_the_flops_of_its_products_by_hand(points: dict[str, TrainedPoint]) -> None:
    """Forward 2, backward 4 for each weight of a product; attention 2 and 5 products."""
    point, width = points["medium-4"], 16
    vocabulary = 280
    weights = 2 * (4 * width * width + 3 * width * 24) + vocabulary * width
    attention = 2 * 4 * LENGTH * width
    assert point.tokens == 4 * LENGTH * BATCH
    assert point.flops / point.tokens == 6 * weights + 3.5 * attention


def test_a_run_whose_batch_grew_has_the_tokens_of_all_its_steps(
    ladder_config: RunConfig, tmp_path: Path
) -> None:
    batch = BatchConfig(2, LENGTH, schedule=(SizeChange(1, 4), SizeChange(3, 6)))
    config = replace(ladder_config, batch=batch, folder=tmp_path, name="grown")
    train_quietly(config)
    [point], _ = read_sources([config.path], Reading(leaves_out=False, trusts_code=False))
    assert point.tokens == (2 + 4 + 4 + 6) * LENGTH
    assert point.batch_tokens == point.tokens / 4
    assert [each.tokens for each in point.curve] == [24, 72, 120, 192]


def test_a_run_has_its_last_held_out_loss_and_those_before(
    ladder: Path, points: dict[str, TrainedPoint]
) -> None:
    lines = (ladder / "medium-4/validation.jsonl").read_text().splitlines()[1:]
    losses = [json.loads(line)["loss"] for line in lines]
    assert points["medium-4"].loss == losses[-1]
    assert [point.loss for point in points["medium-4"].curve] == losses


def test_runs_on_the_same_tokens_have_the_same_identity(points: dict[str, TrainedPoint]) -> None:
    named = [point for name, point in points.items() if "more.csv" not in name]
    assert len({(p.tokenizer, p.data) for p in named}) == 1
    [kept] = {(p.precision, p.sequence_length, p.schedule, p.held_out_tokens) for p in named}
    assert kept == ("fp32", LENGTH, "cosine", HELD_OUT_BATCHES * BATCH * LENGTH)


def test_a_fit_of_runs_names_held_out_points_and_draws(fitted: Done, folder: Path) -> None:
    assert "large-2 (held out)" in fitted.out
    assert "loss by parameters and tokens " in fitted.out
    assert "E + A / N^a + B / D^b: Huber loss of 9 log losses" in fitted.out
    assert (folder / "fit.svg").read_text().count("<path") > 10


def refusal(*arguments: object) -> str:
    done = run_command("fit", *arguments)
    assert done.code == 2
    return done.err


def test_runs_of_another_sequence_length_are_refused(ladder: Path, tmp_path: Path) -> None:
    short = shutil.copytree(ladder / "small-2", tmp_path / "short")
    config = (short / "config.yaml").read_text()
    shorter = config.replace(f"sequence_length: {LENGTH}", f"sequence_length: {LENGTH // 2}")
    (short / "config.yaml").write_text(shorter)
    text = refusal(ladder / "small-2", short)
    assert "small-2 has the sequence length 12, short the sequence length 6: longer" in text


def test_an_unfinished_run_is_named_and_left_out_only_when_told(
    ladder: Path, tmp_path: Path
) -> None:
    cut = shutil.copytree(ladder / "small-4", tmp_path / "cut")
    lines = (cut / "metrics.jsonl").read_text().splitlines(keepends=True)
    (cut / "metrics.jsonl").write_text("".join(lines[:-1]))
    text = refusal(cut, ladder / "small-2")
    assert f"runs-unfinished]: {cut} ended after 3 of 4 steps" in text
    assert "--leave-out-unfinished" in text
    left = refusal(cut, ladder / "small-2", "--leave-out-unfinished")
    assert "points-few]: 1 points for a law of 3 constants" in left


def test_a_run_that_early_stopping_ended_is_no_point_and_says_so(
    ladder: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(ladder / "small-4", tmp_path / "early")
    config = (run / "config.yaml").read_text()
    stops = config.replace("early_stopping: null", "early_stopping: {patience: 1, min_delta: 9}")
    (run / "config.yaml").write_text(stops.replace("steps: 4", "steps: 40"))
    text = refusal(run, ladder / "small-2")
    assert f"{run} was ended by early_stopping after 4 of 40 steps" in text
    assert "--set early_stopping=null" in text


def test_a_diverged_run_is_named_with_both_losses(ladder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(ladder / "small-2", tmp_path / "wild")
    with (run / "validation.jsonl").open("a") as file:
        file.write('{"step": 1, "loss": 9.25}\n')
    assert "wild diverged: its held-out loss rose from 5.6" in refusal(run)


def test_a_run_without_held_out_loss_is_refused(ladder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(ladder / "small-2", tmp_path / "blind")
    (run / "validation.jsonl").unlink()
    assert "blind has no held-out loss of its last step" in refusal(run)


def test_a_run_without_identity_of_its_tokens_is_refused(ladder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(ladder / "small-2", tmp_path / "old")
    (run / "tokens.json").unlink()
    assert "old/tokens.json: No such file" in refusal(run)


def test_a_glob_that_holds_nothing_out_is_refused(ladder: Path) -> None:
    text = refusal(ladder / "small-2", "--hold-out", "smal-2")
    assert "--hold-out smal-2 names none of the 1 points" in text
    assert "did you mean 'small-2'?" in text
