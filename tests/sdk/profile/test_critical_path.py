"""The critical path names what decides the end, and what is gained without it."""

import re
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.fabric import Scope, SimulatorOptions
from openwafer.sdk.host.record import RecordFile
from openwafer.sdk.profile import CriticalPath, Reason, critical_path, path_text
from tests.sdk.fabric.random_machines import CYCLES, build, random_machine
from tests.sdk.profile.bottlenecks import BOTTLENECKS, TASK_THAT_BLOCKS_ITSELF, path_of
from tests.sdk.profile.two_commands import two_commands
from tests.tables import case


def waited(path: CriticalPath, reason: Reason) -> int:
    return sum(one.waited for one in path.costs() if one.reason == reason)


NAMED = {
    "a long vector": Reason.BEATS,
    "a long vector in one bank": Reason.BEATS,
    "one bank": Reason.BANK,
    "a shared link": Reason.LINK,
    "a short queue": Reason.FULL,
    "a blocked task": Reason.BLOCKED,
}


@pytest.mark.parametrize("name", BOTTLENECKS)
def test_what_the_path_says_is_gained_without_the_bottleneck(name: str, tmp_path: Path) -> None:
    slow = path_of(tmp_path / "slow", BOTTLENECKS[name], is_slow=True)
    fast = path_of(tmp_path / "fast", BOTTLENECKS[name], is_slow=False)
    gain = slow.cycles - fast.cycles
    assert gain > slow.cycles / 5
    named = [one.gain for one in slow.costs() if one.reason is NAMED[name]]
    assert sum(named) == pytest.approx(gain, rel=0.1)


def test_a_block_that_ends_before_the_next_task_could_begin_costs_nothing(tmp_path: Path) -> None:
    slow = path_of(tmp_path / "slow", TASK_THAT_BLOCKS_ITSELF, is_slow=True)
    fast = path_of(tmp_path / "fast", TASK_THAT_BLOCKS_ITSELF, is_slow=False)
    assert slow.cycles == fast.cycles
    assert waited(slow, Reason.BLOCKED) == 0


def test_the_path_names_who_had_the_datapath(tmp_path: Path) -> None:
    path = path_of(tmp_path, BOTTLENECKS["a blocked task"], is_slow=True)
    lost = {one.where for one in path.costs() if one.reason is Reason.LOST_BEAT}
    own, other = r"pe\.csl:\d+ \(main\)", r"microthread \d at (?:.*/)?pe\.csl:\d+ \(main\)"
    assert any(re.search(f"{own}, behind {other}$", where) for where in lost)


@pytest.mark.parametrize("first", [case(first, by_default=first == 0) for first in (0, 20)])
def test_segments_of_random_machines_have_no_gaps(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        simulator, _code = build(random_machine(Random(seed)), SimulatorOptions(scope=Scope()))
        program = simulator._program  # noqa: SLF001
        file = RecordFile(tmp_path / "run.record", program, Scope())
        simulator.record_to(file.add)
        with suppress(OpenwaferError):
            simulator.run_until_idle(CYCLES)
        file.close()
        path = critical_path(wafer.read_record(tmp_path / "run.record"), program)
        ends = [0, *(one.end for one in path.segments)]
        assert [one.begin for one in path.segments] == ends[:-1]


def recorded(folder: Path) -> tuple[wafer.Compiled, wafer.Record, int, int]:
    """A program that runs a loop and two operations, its record, and when its launch was."""
    program = two_commands(folder)
    with program.run(record=folder / "run.record") as run:
        begin = run.cycles
        run.launch("scale", 2.0)
        end = run.cycles
    return program, wafer.read_record(folder / "run.record"), begin, end


def test_the_path_of_a_launch_says_which_lines_it_spends_its_time_on(tmp_path: Path) -> None:
    program, record, begin, end = recorded(tmp_path)
    path = critical_path(record, program.program, first=begin, last=end)
    assert path.segments[0].begin == begin
    assert path.costs()[0].reason is Reason.CODE
    beats = [one for one in path.costs() if one.reason is Reason.BEATS]
    assert {one.where.rpartition("/")[2] for one in beats} == {"pe.csl:8 (add)"}


def test_the_text_has_costs_with_remedies_and_the_longest_parts(tmp_path: Path) -> None:
    program, record, _, _ = recorded(tmp_path)
    costs, longest = path_text(critical_path(record, program.program)).split("\n\n")
    assert costs.startswith("Critical path, ")
    lines = [line for line in costs.splitlines() if line.startswith("beats of an operation")]
    assert lines[0].endswith("split the vector over two PEs, or take elements of half the size")
    assert any(
        line.split()[:5] == ["scalar", "code", "scale", "(0,", "0)"]
        for line in longest.splitlines()
    )


def test_a_record_of_another_program_is_refused(tmp_path: Path) -> None:
    _, record, _, _ = recorded(tmp_path)
    other = two_commands(tmp_path / "other").program
    with pytest.raises(OpenwaferError, match=r"is of the program(.|\n)*compiled in the same way"):
        critical_path(record, other)


def test_a_record_of_a_part_is_refused(tmp_path: Path) -> None:
    program = two_commands(tmp_path)
    options = wafer.RecordOptions(tmp_path / "run.record", cycles=(3, 9))
    with program.run(record=options) as run:
        run.launch("scale", 2.0)
    with pytest.raises(OpenwaferError, match="a part of the run"):
        critical_path(wafer.read_record(tmp_path / "run.record"), program.program)
