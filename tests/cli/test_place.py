"""openwafer place, from a config to a table, a JSON file and a picture."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure as Canvas

from openwafer.cli.floor_plan_picture import draw_on
from openwafer.planning.placement import place_pipeline
from openwafer.planning.systems import CS2
from tests.cli.command import EXAMPLES, Done, run_command
from tests.planning.placement.pipelines import gpt_2

SMALL = EXAMPLES / "small.yaml"
FILES = ("plan.json", "plan.svg", "again.svg")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("placed")


@pytest.fixture(scope="module")
def placed(folder: Path) -> Done:
    outputs = ("--json", folder / "plan.json", "--picture", folder / "plan.svg")
    return run_command("place", SMALL, "--wafer", "wse2", *outputs)


def test_a_floor_plan_is_told_layer_by_layer_and_compared(placed: Done) -> None:
    assert (placed.code, placed.err) == (0, "")
    assert "wafer    CS-2 with one WSE-2, 750 x 994 cores\n" in placed.out
    layers = re.findall(r"^layers\.\d +\d+, 0 +\d+ +\d+ .* k?B$", placed.out, re.MULTILINE)
    assert len(layers) == 8
    row = re.search(r"^work of the cores +(0\.\d+) +(0\.\d+) +1 +inf", placed.out, re.MULTILINE)
    assert row is not None
    assert float(row[1]) > float(row[2])


def test_the_file_has_every_layer_and_figure(placed: Done, folder: Path) -> None:
    assert "plan.json" in placed.out
    content = json.loads((folder / "plan.json").read_text())
    assert (content["format"], content["version"]) == ("openwafer-placement", 1)
    plan = content["placement"]["chosen"]
    assert [each["name"] for each in plan["layers"]][0::9] == ["input", "output"]
    assert len(plan["placed"]) == 10 * plan["replicas"]
    figures = {figure["name"]: figure for figure in plan["figures"]}
    assert figures["step"]["value"] > content["placement"]["least_step_seconds"]
    assert {figure["origin"] for figure in plan["figures"]} == {"inferred"}


@pytest.mark.slow
def test_a_plan_tells_the_bound_as_its_step(placed: Done, folder: Path) -> None:
    done = run_command("plan", SMALL, "--system", "wse2", "--json", folder / "system.json")
    plan = json.loads((folder / "system.json").read_text())["plan"]
    told = {f["name"]: f["value"] for section in plan["sections"] for f in section["figures"]}
    least = json.loads((folder / "plan.json").read_text())["placement"]["least_step_seconds"]
    assert done.code == placed.code == 0
    assert told["step"] == pytest.approx(least)


@pytest.mark.slow
def test_the_same_floor_plan_gives_the_same_picture(placed: Done, folder: Path) -> None:
    again = run_command("place", SMALL, "--wafer", "cs2", "--picture", folder / "again.svg")
    assert again.code == placed.code == 0
    assert (folder / "again.svg").read_bytes() == (folder / "plan.svg").read_bytes()
    assert b"<svg" in (folder / "plan.svg").read_bytes()


def test_a_picture_has_a_rectangle_for_each_layer_and_a_way_for_each_replica() -> None:
    axes: Any = Canvas().subplots()
    placement = place_pipeline(gpt_2(12, 768), CS2, 2)
    draw_on(axes, placement)
    drawn = [(p.get_x(), p.get_y(), p.get_width(), p.get_height()) for p in axes.patches]
    placed = [each.rectangle for each in placement.chosen.placed]
    assert drawn == [(r.x, r.y, r.columns, r.rows) for r in placed]
    assert len(axes.get_lines()) == 2
    assert len(axes.get_legend().get_texts()) == 14


def test_sparse_weights_are_told_to_be_placed_as_dense() -> None:
    done = run_command("place", EXAMPLES / "sparse-static.yaml", "--wafer", "wse2")
    assert "warning[placement-dense]: sparse weights are placed as if they were dense" in done.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--wafer", "h200"), "H200 SXM has no fabric of cores to place layers on"),
        (("--wafer", "wse4"), "system-unknown"),
        (("--wafer", "wse2", "--replicas", 9), "9 replicas for a batch of 8 sequences"),
        (("--wafer", "wse2", "--json", "none/plan.json"), "there is no folder"),
        ((), "Missing option '--wafer'"),
    ],
)
def test_what_cannot_be_placed_is_told(arguments: tuple[object, ...], told: str) -> None:
    done = run_command("place", SMALL, *arguments)
    assert done.code == 2
    assert told in done.err


def test_a_batch_that_grows_is_placed_at_its_largest_with_a_warning() -> None:
    growing = ("--set", "batch.schedule=[{from_step: 9, size: 16}]")
    done = run_command("place", SMALL, "--wafer", "wse2", *growing)
    assert "8 samples a step, 16 from step 9 on, and the floor plan is that of 16" in done.err
