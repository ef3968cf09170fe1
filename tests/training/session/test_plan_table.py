"""What the plan says of the time of a step."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from openwafer.figures import Origin
from openwafer.training.plan_record import (
    Limit,
    Mode,
    ModeChoice,
    PlanRecord,
    StepBytes,
    StoreUse,
)
from openwafer.training.session import show_plan
from openwafer.training.session.plan_table import correction

PLAN = PlanRecord(
    mode=Mode.STREAMED,
    device="cpu",
    device_budget_bytes=1 << 30,
    predicted_peak_bytes=1 << 29,
    predicted_host_bytes=3 << 29,
    step_flops=2_500_000_000_000,
    predicted_step_seconds=18.7,
    step_limit=Limit.DISK,
    parameters=1000,
    layers=(),
    step_bytes=StepBytes(0, 0, 0, 0),
    disk_limit_bytes_per_second=3 << 30,
    origins={"device_budget_bytes": Origin.GIVEN, "predicted_step_seconds": Origin.INFERRED},
)


def fact_of(plan: PlanRecord, name: str) -> str:
    console = Console(file=io.StringIO())
    show_plan(plan, console)
    assert isinstance(console.file, io.StringIO)
    (line,) = [line for line in console.file.getvalue().splitlines() if name in line]
    return line.removeprefix(name).strip()


def time_of(plan: PlanRecord) -> str:
    return fact_of(plan, "a step takes")


def test_the_memory_of_the_process_and_the_work_of_a_step_are_shown() -> None:
    assert fact_of(PLAN, "host peak") == "about 1.50 GiB"
    assert fact_of(PLAN, "a step needs") == "2.50T floating-point operations"


def test_a_host_whose_memory_cannot_be_read_is_not_guessed() -> None:
    assert fact_of(replace(PLAN, predicted_host_bytes=None), "host peak") == "not predicted"


def test_a_host_peak_that_the_machine_has_not_is_said_beside_what_it_has() -> None:
    told = fact_of(replace(PLAN, predicted_host_bytes=1 << 60), "host peak")
    assert re.fullmatch(r"about 1024 PiB, and this machine has [\d.]+ GiB", told)


def test_a_step_that_waits_for_the_disk_is_shown_with_the_rate_of_the_disk() -> None:
    assert time_of(PLAN) == "about 19 s (disk is the limit: 3.00 GiB/s)"


def test_the_time_on_several_systems_is_unknown_until_they_meet() -> None:
    plan = replace(PLAN, systems=2, predicted_step_seconds=None, step_limit=None)
    assert time_of(plan).startswith("not predicted: the other systems are not here")


@pytest.mark.parametrize(
    ("is_shared", "told"),
    [(True, "all systems have a share: why"), (False, "the first system has all: why")],
)
def test_who_has_the_store_of_several_systems_is_shown(is_shared: bool, told: str) -> None:
    plan = replace(PLAN, systems=2, stores=StoreUse(is_shared, "why"))
    assert fact_of(plan, "store") == told
    assert fact_of(plan, "a step moves").endswith(", of all systems together") is is_shared


def test_a_step_that_computes_is_shown_without_the_rate_of_the_disk() -> None:
    assert time_of(replace(PLAN, step_limit=Limit.COMPUTE)) == "about 19 s (compute is the limit)"


def test_what_a_clipped_step_moves_is_shown_where_it_is_run_again() -> None:
    console = Console(file=io.StringIO(), width=140)
    moved = StepBytes(1 << 20, 2 << 20, 3 << 20, 4 << 20)
    show_plan(replace(PLAN, undone_step_bytes=moved, kept_step_bytes=moved), console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "disk write 4.00 MiB, as it is run again" in shown
    assert "disk write 4.00 MiB, as gradients are kept" in shown


def test_a_step_on_a_disk_that_cannot_be_measured_is_not_guessed() -> None:
    plan = replace(PLAN, predicted_step_seconds=None, step_limit=None)
    assert time_of(plan) == "not predicted: the rate of the store's disk cannot be measured"


def test_a_plan_says_which_figures_are_inferred_measured_and_given() -> None:
    assert fact_of(PLAN, "figures") == (
        "inferred from a step on tensors without memory, its time from rates measured just now; "
        "the device's memory is given"
    )
    without = replace(PLAN, predicted_step_seconds=None)
    assert "rates" not in fact_of(without, "figures")


def test_a_mode_that_the_plan_chose_is_shown_with_the_times_that_were_compared() -> None:
    chosen = replace(PLAN, choice=ModeChoice(90.0, 1.25, "its predicted step is the shorter one"))
    told = fact_of(chosen, "chosen")
    assert told.startswith("by the plan: its predicted step is the shorter one, about 1.2 s in")
    assert "1 min 30 s where weights stream" in told


def test_why_there_are_no_stages_is_shown() -> None:
    chosen = replace(PLAN, choice=ModeChoice(90.0, None, "no stages are made: sparsity is set"))
    assert fact_of(chosen, "chosen") == "by the plan: no stages are made: sparsity is set"


def test_a_run_that_ends_much_later_than_predicted_is_told_of() -> None:
    found = correction(0.5, 0.3, 1000.0)
    assert found.matters
    assert (
        found.text == "a step takes 0.5 s, and 0.3 s was predicted: the run ends 3 min 20 s later"
    )


def test_a_run_that_ends_much_earlier_than_predicted_is_told_of() -> None:
    assert correction(1.0, 2.0, 61.0).text.endswith("the run ends 1 min 01 s earlier")


def test_a_minute_does_not_matter() -> None:
    found = correction(2.0, 1.0, 60.0)
    assert (found.text, found.matters) == ("a step takes 2 s, and 1 s was predicted", False)


def test_a_step_that_was_not_predicted_is_said_alone() -> None:
    assert correction(2.0, None, 1e6).text == "a step takes 2 s, which was not predicted"
