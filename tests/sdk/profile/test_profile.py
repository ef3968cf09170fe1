"""A profile agrees with what is booked and counted, and with what can be computed by hand."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.fabric.account import STATES
from openwafer.sdk.host import journal as journals
from openwafer.sdk.host import replay
from openwafer.sdk.profile import (
    Grouping,
    Profile,
    profile_of,
    profile_of_journal,
    profile_text,
    tables,
)
from openwafer.sdk.profile.advice import advice
from openwafer.sdk.profile.model import SlotTime
from openwafer.sdk.profile.page import profile_page
from tests.golden_text import GoldenTexts
from tests.sdk.door.small_program import small_program
from tests.sdk.profile.two_commands import CODE, two_commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("program")


@pytest.fixture(scope="module")
def profile(folder: Path) -> Profile:
    """Of the program of one PE."""
    with two_commands(folder).run(profile=True) as run:
        run.launch("scale", 2.0)
        return run.profile()


@pytest.fixture(scope="module")
def streaming(folder: Path) -> wafer.Run:
    """A run on three columns and two rows of PEs."""
    with small_program(folder).run(profile=True) as run:
        run.send("MEMCPYH2D_1", np.ones((1, 1, 4), np.float32), 0, 2)
        run.launch("add", 1.0, 2)
        run.receive("MEMCPYD2H_1", 4, np.float32, 0, 2)
    return run


def test_states_of_each_slot_are_a_partition_of_the_cycles(streaming: wafer.Run) -> None:
    profile = streaming.profile()
    sums: dict[str, int] = defaultdict(int)
    for one in profile.times():
        sums[one.slot] += one.cycles
    assert len(sums) == 9
    assert set(sums.values()) == {profile.pe_cycles} == {6 * profile.cycles}


def test_lines_are_those_that_the_run_counts(streaming: wafer.Run) -> None:
    lines = tables.by_line(streaming.profile())
    assert sorted(lines, key=str) == sorted(streaming.line_cycles(), key=str) != []


def test_groups_of_single_pes_sum_up_to_the_whole(streaming: wafer.Run) -> None:
    whole, single = streaming.profile(), streaming.profile(by="pe")
    assert [group.num_pes for group in single.groups] == 6 * [1]
    assert tables.by_line(whole) == tables.by_line(single)
    assert tables.by_state(whole) == tables.by_state(single)


def test_a_profile_of_a_region_has_its_pes_alone(streaming: wafer.Run) -> None:
    part = streaming.profile(0, slice(1, 3), by=Grouping.PE)
    assert [(group.x, group.y) for group in part.groups] == [(1, 0), (2, 0)]
    assert tables.by_line(part)[0] in streaming.line_cycles(0, slice(1, 3))


def test_the_map_has_each_pe_at_its_place(streaming: wafer.Run) -> None:
    profile = streaming.profile(by="pe")
    (scalar,) = (one for one in profile.fabric_map.layers if one.name == "scalar")
    cells = np.reshape(scalar.cycles, (2, 3))
    for group in profile.groups:
        assert cells[group.y, group.x] == tables.main_cycles(group, "scalar")
    assert cells.any()


def test_the_memory_of_a_pe_is_told_whole(streaming: wafer.Run) -> None:
    images = streaming.profile().images
    assert sorted(one.num_pes for one in images) == [2, 4]
    sums = {one.data_bytes + one.code_bytes + one.left_bytes for one in images}
    assert sums == {48 * 1024}


def test_cycles_of_an_operation_are_those_of_its_documented_beats(profile: Profile) -> None:
    (add,) = (one for one in tables.by_function(profile) if one.name == "add")
    # An element a cycle, doubled, as both sources begin in the same bank; registers take six.
    assert (add.taken, add.waited, add.operation) == (0, 0, 2 * (2 * 40 + 6))
    assert profile.totals.elements == 2 * 40


def test_elements_and_bytes_of_operations_are_counted_by_name(profile: Profile) -> None:
    (kind,) = profile.kinds
    assert (kind.name, kind.best, kind.elements) == ("fmacs", 1, 2 * 40)
    # Two sources and the target of four bytes; the factor is a scalar.
    assert profile.memory_bytes == 2 * 40 * 3 * 4
    rates = {one.name: one.rate for one in tables.roofline(profile)}
    assert rates["elements of @fmacs"] == 2 * 40 / profile.cycles
    assert rates["bytes of memory"] == 2 * 40 * 12 / profile.cycles


def test_operations_of_the_machine_and_of_code_are_all_counted(streaming: wafer.Run) -> None:
    profile = streaming.profile()
    assert sum(kind.elements for kind in profile.kinds) == profile.totals.elements > 0


def test_a_function_that_two_tasks_call_belongs_to_neither(profile: Profile) -> None:
    tasks = {one.name: (one.note, one.cycles) for one in tables.by_task(profile)}
    assert tasks["scale"] == ("command scale", 688)
    assert tasks["last"] == ("local task 9", 1)
    assert tasks[tables.SHARED] == ("", 172)


def test_a_replay_has_the_profile_of_the_run(folder: Path) -> None:
    program = two_commands(folder)
    journal = folder / "run.journal"
    options = wafer.RuntimeOptions(log_folder=None, journal=journal)
    with program.run(options, profile=True) as run:
        run.launch("scale", 2.0)
    again = replay(program.program, journal, has_account=True, has_line_cycles=True)
    assert again.booked is not None
    assert profile_of(again.booked) == run.profile()


def test_a_program_that_never_ends_has_a_profile_up_to_there(folder: Path) -> None:
    run = two_commands(folder).run(profile=True)
    run.launch("scale", 2.0)
    run.launch("never")
    profile = run.profile()
    assert "unblock_cmd_stream" in str(profile.failure)
    assert tables.by_function(profile)[0].name == "scale"
    with pytest.raises(OpenwaferError, match="unblock_cmd_stream"):
        run.close()


def test_a_program_that_traps_has_a_profile_up_to_there(folder: Path) -> None:
    trapping = CODE.replace("fn never() void {}", "fn never() void { @assert(A[0] > 1.0); }")
    run = two_commands(folder / "trapping", trapping).run(profile=True)
    run.launch("scale", 2.0)
    run.launch("never")
    with pytest.raises(OpenwaferError, match="an assertion failed"):
        run.close()
    profile = run.profile()
    assert f"stopped at cycle {profile.cycles}: an assertion failed" in str(profile.failure)
    assert profile_text(profile).splitlines()[2] == str(profile.failure).splitlines()[0]


def test_a_run_in_which_nothing_was_waited_for_says_so(folder: Path) -> None:
    journal = folder / "waiting.journal"
    program = two_commands(folder)
    run = program.run(wafer.RuntimeOptions(log_folder=None, journal=journal))
    kept = journals.read(journal)
    run.close()
    profile = profile_of_journal(program.program, kept)
    assert profile.cycles == 0
    assert "none has passed, as what is launched runs when the script waits" in (
        profile_text(profile)
    )
    assert "Along the run" not in profile_page(profile)


def test_a_run_without_a_profile_says_how_to_ask_for_it(folder: Path) -> None:
    with two_commands(folder).run(account=True) as run, pytest.raises(OpenwaferError) as raised:
        run.profile()
    assert "profile=True" in str(raised.value)


def test_a_large_fabric_is_a_map_of_squares_of_pes(folder: Path) -> None:
    with small_program(folder, 130, 1).run(profile=True) as run:
        run.launch("add", 1.0, 2)
    cells = run.profile().fabric_map
    assert (cells.columns, cells.rows, cells.pes) == (65, 1, 2)
    (scalar,) = (one for one in cells.layers if one.name == "scalar")
    assert sum(scalar.cycles) * 2 == tables.main_cycles(run.profile().groups[0], "scalar")


def test_code_that_waits_for_banks_is_told_what_helps(profile: Profile) -> None:
    told = {one.state: (round(one.share * 884), one.text) for one in advice(profile)}
    assert told["turn"][0] == 80
    assert "banks that differ modulo 4" in told["turn"][1]
    assert told.keys() == {"scalar", "turn"}


@pytest.mark.parametrize("state", [state for state in STATES if state != "beat"])
def test_each_state_has_its_help(profile: Profile, state: str) -> None:
    times = (SlotTime("main", state, (4,), 884),)
    (group,) = profile.groups
    (told,) = advice(replace(profile, groups=(replace(group, times=times),)))
    assert (told.state, told.share) == (f"{state} (color 4)", 1.0)


def test_tables_of_a_small_program_are_as_kept(profile: Profile, golden: GoldenTexts) -> None:
    golden.check("profile.txt", profile_text(profile))
