"""openwafer claims, as a table, a JSON file and pictures."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure as Canvas

from openwafer.cli.system_pictures import draw_roofline, draw_sparsity, draw_speedup
from tests.cli.command import run_command


def test_claims_are_told_beside_what_is_computed() -> None:
    done = run_command("claims")
    assert (done.code, done.err) == (0, "")
    assert re.search(
        r"^GPT-3 in a day on 192 CS-2 +is +supported in some cases\s*\n"
        r"claimed +1 d +published +Lie, Hot Chips 33 \(2021\)\s*\n"
        r"dense, all of the peak +3\.285 d +inferred +not as claimed",
        done.out,
        re.MULTILINE,
    )


def test_a_claim_without_a_number_says_so() -> None:
    assert re.search(r"^curves of .* cannot be checked", run_command("claims").out, re.MULTILINE)


def test_claims_are_written_as_json(tmp_path: Path) -> None:
    done = run_command("claims", "--json", tmp_path / "claims.json")
    assert done.out.endswith(f"wrote {tmp_path / 'claims.json'}\n")
    assert len(json.loads((tmp_path / "claims.json").read_text())["claims"]) == 16


def lines_of(draw: Callable[[Any], None]) -> dict[str, Any]:
    axes: Any = Canvas().subplots()
    draw(axes)
    return {line.get_label(): line for line in axes.get_lines()}


@pytest.mark.slow
def test_pictures_are_drawn_into_a_folder(tmp_path: Path) -> None:
    done = run_command("claims", "--pictures", tmp_path / "new")
    files = [path.read_bytes() for path in (tmp_path / "new").iterdir()]
    assert [content[:4] for content in files] == [b"\x89PNG"] * done.out.count("wrote ")
    assert len(files) == 4


@pytest.mark.parametrize(
    "command", [("claims",), ("fit", "none.csv"), ("plan", "x", "--system=cs2")]
)
def test_a_file_without_a_folder_is_refused_before_any_work(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = run_command(*command, "--json", tmp_path / "none" / "out.json")
    assert (done.code, done.out) == (2, "")
    assert f"there is no folder {tmp_path / 'none'}" in done.err


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    done = run_command("claims", "--json", tmp_path)
    assert (done.code, "that is a folder" in done.err) == (2, True)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_command("claims", "--pictures", tmp_path / "file")
    assert (done.code, "cannot make the folder" in done.err) == (2, True)


@pytest.mark.parametrize(("model", "gain"), [("1.3B", 119), ("175B", 174), ("120T", 190)])
def test_the_picture_of_systems_ends_at_the_numbers_of_the_table(model: str, gain: int) -> None:
    line = lines_of(draw_speedup)[model]
    assert (line.get_xdata()[-1], round(line.get_ydata()[-1])) == (192, gain)


def test_the_picture_of_zeros_shows_saturation() -> None:
    ends = [float(line.get_ydata()[-1]) for line in lines_of(draw_sparsity).values()]
    assert ends[1:] == sorted(ends[1:], reverse=True)
    assert ends[1] == pytest.approx(3073, rel=0.05)


def test_the_roofline_bends_where_stream_and_computing_balance() -> None:
    line = lines_of(draw_roofline)["cs2, all of the peak"]
    tokens, rates = line.get_xdata(), line.get_ydata()
    below, above = tokens < 38_000, tokens > 39_000
    assert rates[above] == pytest.approx(5.78e15, rel=0.01)
    assert rates[below] / tokens[below] == pytest.approx(1.5e11, rel=0.05)
