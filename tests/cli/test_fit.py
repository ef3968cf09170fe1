"""openwafer fit, from points to a table, a JSON file and a picture."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.command import Done, run_command
from tests.planning.laws.pile_models import CSV


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fit")
    (made / "pile.csv").write_text(CSV)
    return made


@pytest.fixture(scope="module")
def done(folder: Path) -> Done:
    outputs = ("--json", folder / "fit.json", "--picture", folder / "fit.png")
    asked = ("--flops", "1e23", "--budget", "1e22", "--budget", "1e24")
    return run_command("fit", folder / "pile.csv", *asked, *outputs)


def test_a_fit_shows_constants_with_intervals_and_origins(done: Done) -> None:
    assert done.code == 0, done.err
    assert re.search(
        r"^exponent +0\.07\d+ +0\.0\d+ to 0\.\d+ +inferred +least squares", done.out, re.MULTILINE
    )
    assert re.search(
        r"^2\.3e\+22 +2\.3e\+22 +1\.5720 +1\.5\d+ .*% +published", done.out, re.MULTILINE
    )


def test_a_fit_tells_losses_and_proposals(done: Done) -> None:
    assert re.search(r"^1e\+23 FLOPs .*\nloss +1\.4\d* nats/token", done.out, re.MULTILINE)
    assert re.search(
        r"^a budget of 1e\+22 FLOPs .*\nparameters +9\.129e\+09 ", done.out, re.MULTILINE
    )


def test_a_fit_warns_of_what_lies_outside_its_points(done: Done) -> None:
    assert done.err.startswith("warning[law-outside]: 1e+24 FLOPs lie 1.6 decades outside")


def test_the_json_of_a_fit_has_every_figure_with_its_origin(done: Done, folder: Path) -> None:
    assert done.code == 0
    content = json.loads((folder / "fit.json").read_text())
    assert (content["format"], content["version"]) == ("openwafer-fit", 2)
    [asked] = content["fit"]["expectations"]
    [loss] = asked["figures"]
    assert loss["low"] < loss["value"] < loss["high"]
    assert (loss["unit"], loss["origin"]) == ("nats/token", "inferred")
    assert len(content["fit"]["proposals"]) == 2


def test_the_picture_of_a_fit_is_written(done: Done, folder: Path) -> None:
    assert (folder / "fit.png").read_bytes().startswith(b"\x89PNG")
    assert f"wrote {folder / 'fit.png'}\n" in done.out


def test_a_mistake_in_points_ends_the_command_with_its_words(folder: Path) -> None:
    (folder / "few.csv").write_text("\n".join(CSV.splitlines()[:3]))
    done = run_command("fit", folder / "few.csv")
    assert (done.code, done.out) == (2, "")
    assert "error[points-few]: 2 points for a law of 3 constants" in done.err
