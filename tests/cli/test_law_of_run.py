"""openwafer train with a law: what is told of its held-out losses, and what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openwafer.config import to_yaml
from openwafer.training.session import RunConfig
from tests.cli.command import Done, run_command

FIVE_STEPS = 5


@pytest.fixture(scope="module")
def law(ladder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("law") / "fit.json"
    done = run_command("fit", *sorted(ladder.iterdir()), "--replicas", 20, "--json", path)
    assert done.code == 0, done.err
    return path


def changed(law: Path, name: str, **changes: Any) -> Path:
    content = json.loads(law.read_text())
    content["fit"] |= changes
    path = law.with_name(name)
    path.write_text(json.dumps(content))
    return path


def train(config: RunConfig, law: Path, folder: Path) -> Done:
    path = folder / "judged.yaml"
    config = replace(config, name=None, folder=folder, steps=FIVE_STEPS, law=law)
    path.write_text(to_yaml(config))
    return run_command("train", path)


@pytest.fixture(scope="module")
def judged(ladder_config: RunConfig, law: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose law lies a nat too low from half of the run on."""
    course = [{"share": share, "low": 0.5, "high": 0.6} for share in (0.5, 1.0)]
    course.insert(0, {"share": 0.4, "low": 0.5, "high": 2.0})
    folder = tmp_path_factory.mktemp("judged")
    done = train(ladder_config, changed(law, "low.json", course=course), folder)
    assert done.code == 0, done.err
    (folder / "out.txt").write_text(done.out)
    return folder


def test_each_evaluation_is_told_beside_what_the_law_expects(judged: Path) -> None:
    told = re.findall(
        r"^step (\d): validation loss [\d.]+; (.*)", (judged / "out.txt").read_text(), re.MULTILINE
    )
    assert [number for number, _ in told] == ["1", "2", "3", "4", "5"]
    words = [text.split(":")[0] for _, text in told]
    off = "off track, above the law"
    assert words == ["the law speaks from 40% of the run on", "on track", off, off, off]
    assert re.fullmatch(
        r"on track: expected [\d.]+ to [\d.]+, at the end [\d.]+ to [\d.]+", told[1][1]
    )


def test_what_is_told_stands_in_the_log(judged: Path) -> None:
    log = (judged / "judged/log.txt").read_text()
    assert re.search(r"^\S+ step 5: validation loss [\d.]+; off track, above", log, re.MULTILINE)


def test_each_verdict_is_kept_with_its_interval(judged: Path) -> None:
    lines = (judged / "judged/validation.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"format": "openwafer-validation", "version": 2}
    rows = [json.loads(line) for line in lines[1:]]
    assert [row["is_on_track"] for row in rows] == [None, True, False, False, False]
    assert rows[0]["expected_low"] is None
    assert rows[1]["expected_low"] <= rows[1]["loss"] <= rows[1]["expected_high"]


def test_the_report_has_verdict_and_interval(judged: Path) -> None:
    assert run_command("report", judged / "judged").code == 0
    page = (judged / "judged/report.html").read_text()
    assert "of the last one, which is off track; 1 of 4 are on it." in page


@pytest.mark.slow
def test_a_run_like_those_fitted_ends_on_track(
    ladder_config: RunConfig, law: Path, tmp_path: Path
) -> None:
    assert train(ladder_config, law, tmp_path).code == 0
    last = (tmp_path / "judged/validation.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["is_on_track"]


def test_a_law_of_other_data_is_refused_before_the_run_begins(
    ladder_config: RunConfig, law: Path, tmp_path: Path
) -> None:
    conditions = json.loads(law.read_text())["fit"]["conditions"] | {"data": "elsewhere"}
    done = train(ladder_config, changed(law, "other.json", conditions=conditions), tmp_path)
    assert done.code == 2
    assert "law-conditions]: the law of" in done.err
    assert "was fitted to runs of the data elsewhere, and this run has the data " in done.err
    assert not (tmp_path / "judged").exists()


def test_a_run_far_outside_the_computes_of_its_law_is_warned_of(
    ladder_config: RunConfig, law: Path, tmp_path: Path
) -> None:
    done = train(ladder_config, changed(law, "far.json", flops_range=[1e12, 1e13]), tmp_path)
    assert re.search(
        r"law-outside\]: the run takes 2\.1e\+07 FLOPs, a factor of 4\.\d+e\+04", done.out
    )


def test_a_law_without_evaluations_is_a_mistake_of_the_config(
    ladder_config: RunConfig, law: Path, tmp_path: Path
) -> None:
    path = tmp_path / "blind.yaml"
    path.write_text(to_yaml(ladder_config))
    done = run_command("train", path, "--set", f"law={law}", "--set", "evaluate=null")
    assert "a law judges held-out losses, and this run takes none" in done.err
