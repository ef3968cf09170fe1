"""openwafer plan --system, from a config to a table, a JSON file and a page."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure as Canvas

from openwafer.cli.counted_task import task_of
from openwafer.cli.system_page import draw_roofline, draw_systems
from openwafer.planning.system_plan import plan_system
from openwafer.planning.systems import CS2
from tests.cli.command import EXAMPLES, run_command
from tests.planning.system_plan.tasks import GPT_3
from tests.planning.system_plan.tasks import SMALL as SMALL_TASK
from tests.tables import case
from tests.training.session.test_layer_count import ALBERT
from tests.training.session.test_step_count import RUN

SMALL = EXAMPLES / "small.yaml"
BOX = """\
format: openwafer-system
version: 1
name: box
peak_flops_per_second: 1e13
utilisation: 0.5
memory_bytes: 3GB
memory_bytes_per_second: 1e12
link_bytes_per_second: 25GB
network_bytes_per_second: 1e9
power_watts: 350
"""


def test_a_plan_for_a_system_tells_mode_limit_and_figures(tmp_path: Path) -> None:
    done = run_command("plan", SMALL, "--system", "h200", "--json", tmp_path / "plan.json")
    assert (done.code, done.err) == (0, "")
    assert "mode     resident, activations kept\n" in done.out
    assert re.search(
        r"^parameters +2\.989e\+07 +inferred|^parameters +29,890,000", done.out, re.MULTILINE
    )
    assert re.search(r"^peak +989\.5 TFLOP/s +published +NVIDIA", done.out, re.MULTILINE)
    content = json.loads((tmp_path / "plan.json").read_text())["plan"]
    assert (content["mode"], content["num_systems"]) == ("resident", 1)


def test_a_model_that_is_no_pipeline_is_planned_for_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = task_of(replace(RUN, model=ALBERT), CS2)
    assert task.loads == ()
    assert "warning[layer-order]: a forward calls the" in capsys.readouterr().err


@pytest.mark.slow
def test_a_described_system_is_planned_for(tmp_path: Path) -> None:
    (tmp_path / "box.yaml").write_text(BOX)
    done = run_command("plan", SMALL, "--system", tmp_path / "box.yaml", "--systems", 2)
    assert "system   2 replicas, each on one box, in 16-bit" in done.out
    assert re.search(r"^peak +10 TFLOP/s +given ", done.out, re.MULTILINE)


def test_a_run_whose_epochs_nobody_has_counted_has_no_totals() -> None:
    plan = plan_system(replace(SMALL_TASK, steps=0), CS2, 1)
    all_names = {figure.name for section in plan.sections for figure in section.figures}
    assert all_names.isdisjoint({"steps", "tokens", "time", "energy", "FLOPs as if dense"})
    assert {"step", "critical batch"} <= all_names


@pytest.mark.slow
def test_the_config_can_be_changed() -> None:
    changed = ("--set", "batch.sequence_length=256", "--set", "systems=2")
    out = run_command("plan", SMALL, "--system", "cs2", *changed).out
    assert re.search(r"^tokens of a sequence +256 +given", out, re.MULTILINE)
    assert "system   2 replicas, each on one CS-2" in out
    assert "mode     layer-pipelined" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--json", "plan.json"), r"plan\.json is to have the plan for a system"),
        (("--page", "plan.html"), r"plan\.html is to have the plan for a system"),
        (("--system", "h20"), r"system-unknown(.|\n)*did you mean 'h200'"),
        (("--system", "h200", "--systems", 0), r"Invalid value for '--systems'"),
        (("--system", "cs2", "--systems", 9), r"9 systems for a batch of 8 sequences"),
        (("--system", "none.yaml"), r"cannot read none\.yaml"),
        (("--system", "cs2", "--link", "1GB"), r"joins systems like this one, and --system is cs2"),
        (("--link", "1GB"), r"joins systems like this one, and no --system is named"),
        (("--system", "this", "--link", "0"), r"--link is 0 bytes a second"),
        (("--system", "this", "--link", "fast"), r"--link: 'fast' is not a byte size"),
    ],
)
def test_what_cannot_be_planned_is_told(arguments: tuple[object, ...], told: str) -> None:
    done = run_command("plan", SMALL, *arguments)
    assert done.code == 2
    assert re.search(told, done.err)


def test_this_machine_is_told_in_the_same_form(tmp_path: Path) -> None:
    tiny = ("--set", "batch.size=1", "--set", "batch.sequence_length=64")
    done = run_command("plan", SMALL, *tiny, "--system", "this", "--json", tmp_path / "plan.json")
    assert "system   this machine, on cpu, in fp32\n" in done.out
    plan = json.loads((tmp_path / "plan.json").read_text())["plan"]
    figures = {f["name"]: f for section in plan["sections"] for f in section["figures"]}
    assert figures["memory of the device"]["origin"] == "given"
    assert figures["step"]["source"] == "operators, updates and transfers timed just now"
    assert figures["time"]["value"] == pytest.approx(1000 * figures["step"]["value"])


TWO = ("--set", "batch={size: 2, sequence_length: 64, micro_batches: 2}")


@pytest.mark.slow
@pytest.mark.parametrize("where", [case("first", by_default=False), "all"])
def test_several_systems_like_this_one_are_foretold(tmp_path: Path, where: str) -> None:
    asked = ("--system", "this", "--systems", 2, "--link", "20MB", "--json", tmp_path / "plan.json")
    done = run_command("plan", SMALL, *TWO, "--set", f"store_systems={where}", *asked)
    assert "limit    a step waits longest for links between systems\n" in done.out
    plan = json.loads((tmp_path / "plan.json").read_text())["plan"]
    told = {f["name"]: f["value"] for f in plan["sections"][-1]["figures"]}
    assert told["link"] == 20e6
    assert ("step, store on the first" in told) == (where == "all")
    assert told["times as fast"] == pytest.approx(told["step on one system"] / told["step"])


@pytest.mark.slow
def test_a_step_that_is_not_modelled_is_not_foretold() -> None:
    fast = ("--set", "reduction=fast", "--system", "this", "--systems", 2)
    done = run_command("plan", SMALL, *TWO, *fast)
    told = "gradients that the library adds (reduction: fast)"
    assert f"the time of a step on 2 systems is not foretold for {told}" in done.err
    assert "several systems" not in done.out


def page_of(folder: Path, *arguments: object) -> str:
    done = run_command("plan", SMALL, *arguments, "--page", folder / "plan.html")
    assert done.out.endswith(f"wrote {folder / 'plan.html'}\n")
    return (folder / "plan.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(tmp_path_factory.mktemp("page"), "--system", "cs2", "--systems", 2)


def test_a_page_has_the_figures_and_four_pictures(page: str) -> None:
    assert page.count('<img alt="') == 4
    assert "<td>5.78 PFLOP/s</td><td>inferred</td><td>850,000 cores x 8 FLOP x 0.85 GHz" in page
    assert "http" not in page


@pytest.mark.slow
def test_the_same_plan_gives_the_same_page(page: str, tmp_path: Path) -> None:
    assert page_of(tmp_path, "--system", "cs2", "--systems", 2) == page


def test_the_picture_of_systems_ends_at_as_many_as_the_batch_has() -> None:
    axes: Any = Canvas().subplots()
    draw_systems(axes, SMALL_TASK, CS2)
    step = axes.get_lines()[1]
    assert (step.get_xdata()[0], step.get_ydata()[0], step.get_xdata()[-1]) == (1, 1, 64)
    assert step.get_ydata()[-1] < 64


def test_the_roofline_marks_the_plan_on_its_curve() -> None:
    axes: Any = Canvas().subplots()
    plan = plan_system(GPT_3, CS2, 192)
    draw_roofline(axes, plan, GPT_3, CS2)
    curve, point, peak = axes.get_lines()
    assert point.get_xdata()[0] == plan.figure("step", "tokens of a pass").value
    assert max(curve.get_ydata()) < peak.get_ydata()[0] == pytest.approx(5.78e15)
