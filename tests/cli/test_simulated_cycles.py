"""openwafer plan --cycles-of: a wafer's cycles from a run on the simulated one."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from openwafer.cli.simulated_cycles import with_cycles
from openwafer.diagnostics import OpenwaferError
from openwafer.figures import Origin
from openwafer.planning.system_plan import Mode, plan_system
from openwafer.planning.systems import CS2, System
from openwafer.planning.throughput import Resource
from openwafer.planning.throughput.passes import Pass, Setting, pass_time, transformer
from openwafer.sdk.arch.timing import CLOCK_ERRORS
from openwafer.training.metrics.fabric_report import FabricReport, LayerPass
from openwafer.training.metrics.run_record import FABRIC_REPORT
from tests.cli.command import EXAMPLES, run_command
from tests.planning.system_plan.tasks import task

PASSES = (
    LayerPass("head", "forward", 3, 1000, 0, 0, 0, 4000, 900),
    LayerPass("head", "attention", 3, 200, 0, 0, 0),
    LayerPass("head", "delta", 3, 1500, 0, 0, 0, 4000, 1600),
    LayerPass("head", "attention_delta", 3, 300, 0, 0, 0),
    LayerPass("head", "gradient", 3, 2000, 0, 0, 0, 4000, 2000),
)
TASK = task()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    FABRIC_REPORT.write(tmp_path, FabricReport(4, 2, "wse3", PASSES))
    return tmp_path


def test_cores_take_for_each_multiply_add_what_they_took_in_the_run(run: Path) -> None:
    system = with_cycles(CS2, run)
    times = [
        pass_time(system, TASK.model, 10_000, Setting(0.3), which).by_resource[Resource.COMPUTE]
        for which in (Pass.FORWARD, Pass.ACTIVATION_GRADIENTS, Pass.WEIGHT_GRADIENTS)
    ]
    products = 10_000 * TASK.model.parameters / (750 * 994 * 0.85e9)
    # 8 PEs take 1,200, 1,800 and 2,000 cycles for 4,000 multiply-adds.
    assert times == pytest.approx([products * 2.4, products * 3.6, products * 4])


def test_zeros_are_no_multiply_adds(run: Path) -> None:
    system = with_cycles(CS2, run)
    dense, sparse = (
        pass_time(system, TASK.model, 10_000, Setting(0.3, zeros)).by_resource[Resource.COMPUTE]
        for zeros in (0, 0.9)
    )
    assert sparse / dense == pytest.approx(TASK.model.kept(0.9) / TASK.model.parameters)


def test_attention_is_counted_once(run: Path) -> None:
    system = with_cycles(CS2, run)
    short, long = (
        pass_time(system, transformer(1e6, 2, 64, length), 10_000, Setting(0.3))
        for length in (0, 4096)
    )
    assert short.by_resource[Resource.COMPUTE] == long.by_resource[Resource.COMPUTE]


def test_cycles_that_were_simulated_are_those_of_weights_that_stream(run: Path) -> None:
    small = task(1e6, 2, 64, batch_size=8)
    assert plan_system(small, CS2, 1).mode is not Mode.STREAMED
    plan = plan_system(small, with_cycles(CS2, run), 1)
    assert plan.mode is Mode.STREAMED
    assert "were simulated" in plan.reason
    assert "balance tokens" not in {one.name for each in plan.sections for one in each.figures}


def test_kinds_of_layers_and_the_clocks_error_are_told(run: Path) -> None:
    out = run_command("plan", EXAMPLES / "small.yaml", "--system", "cs2", "--cycles-of", run).out
    said = "".join(out.split())  # a long path is cut where its line ends
    for words in (
        f"forward, a multiply-add 2.4 core cycles simulated {run}",
        f"products, delta 1,500 cycles simulated 30.0% of {run}",
        f"attention 500 cycles simulated 10.0% of {run}",
        "clock off by, median 0.059 simulated 50 published rows",
    ):
        assert "".join(words.split()) in said


@pytest.mark.slow
def test_published_constants_stay_where_no_run_is_named() -> None:
    out = run_command("plan", EXAMPLES / "small.yaml", "--system", "cs2").out
    assert str(Origin.SIMULATED) not in out


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_the_clocks_error_is_that_of_the_table_of_rows(arch: str) -> None:
    table = (EXAMPLES.parent / "docs/design/timing-table.inc").read_text().splitlines()[2:]
    rows = [[cell.strip().replace(",", "") for cell in line.split("|")[1:-1]] for line in table]
    free = [row for row in rows if row[1] == arch and row[-1] == "no"]
    errors = sorted(abs(float(row[4]) / float(row[5]) - 1) for row in free)
    known = CLOCK_ERRORS[arch]
    assert known.num_rows == len(free)
    assert known.median == pytest.approx(median(errors), abs=5e-4)
    within = sum(error <= known.most_of_nine_tenths + 5e-4 for error in errors)
    assert within == -(-9 * len(errors) // 10)


@pytest.mark.parametrize(
    ("system", "passes", "words"),
    [
        (replace(CS2, fabric=None), PASSES, "and CS-2 with one WSE-2 is none"),
        (CS2, PASSES[:2], "has no products of the pass 'delta' on the wafer"),
        (CS2, None, "has no fabric.json, as a run on the simulated wafer has"),
    ],
)
def test_what_gives_no_cycles_is_refused(
    system: System, passes: tuple[LayerPass, ...] | None, words: str, tmp_path: Path
) -> None:
    if passes is not None:
        FABRIC_REPORT.write(tmp_path, FabricReport(4, 2, "wse3", passes))
    with pytest.raises(OpenwaferError, match=re.escape(words)):
        with_cycles(system, tmp_path)


@pytest.mark.parametrize("given", [(), ("--system", "this")])
def test_a_run_is_refused_where_no_wafer_is_planned_for(given: tuple[str, ...], run: Path) -> None:
    done = run_command("plan", EXAMPLES / "small.yaml", *given, "--cycles-of", run)
    assert done.code == 2
    assert "plan for a wafer, as with --system cs2" in done.err
