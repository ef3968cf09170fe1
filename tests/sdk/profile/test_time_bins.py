"""The time of PEs along a run adds up to its whole, bin by bin."""

from pathlib import Path

import numpy as np
import pytest

from openwafer.sdk.fabric.account import KINDS
from openwafer.sdk.host import Runtime, RuntimeOptions
from openwafer.sdk.host.time_bins import FIRST_CYCLES, MOST_BINS
from openwafer.sdk.profile import Profile, profile_of, tables
from openwafer.sdk.profile.model import Course, Lane
from tests.sdk.door.small_program import small_program
from tests.sdk.profile.two_commands import CODE, two_commands

LONG = CODE.replace(
    "fn never() void {}",
    """fn never() void {
  for (@range(u16, 3000)) |_| { A[0] += 1.0; }
  sys.unblock_cmd_stream();
}""",
)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """Of three columns and two rows of PEs."""
    with small_program(tmp_path_factory.mktemp("program")).run(profile=True) as run:
        run.send("MEMCPYH2D_1", np.ones((1, 1, 4), np.float32), 0, 2)
        run.launch("add", 1.0, 2)
        run.receive("MEMCPYD2H_1", 4, np.float32, 0, 2)
        return run.profile(by="image")


def course_of(profile: Profile) -> Course:
    assert profile.course is not None
    return profile.course


def cycles_of(lane: Lane, name: str) -> list[int]:
    (found,) = (kind.cycles for kind in lane.kinds if kind.name == name)
    return list(found)


def lengths(profile: Profile) -> list[int]:
    bins = range(0, profile.cycles, course_of(profile).bin_cycles)
    return [min(bins.step, profile.cycles - begin) for begin in bins]


def test_states_of_main_threads_are_a_partition_of_each_bin(profile: Profile) -> None:
    course = course_of(profile)
    assert course.bin_cycles == FIRST_CYCLES < profile.cycles
    for lane in (*course.codes, *course.columns, *course.rows):
        states = [kind.cycles for kind in lane.kinds if kind.name != KINDS[0]]
        assert np.sum(states, axis=0).tolist() == [lane.num_pes * n for n in lengths(profile)]


def test_bins_of_an_image_sum_up_to_its_group(profile: Profile) -> None:
    lanes = {lane.name: lane for lane in course_of(profile).codes}
    assert len(lanes) == 2
    for group in profile.groups:
        scalar = cycles_of(lanes[group.name], "scalar")
        assert sum(scalar) == tables.main_cycles(group, "scalar") > 0


def test_stripes_are_columns_and_rows(profile: Profile) -> None:
    course = course_of(profile)
    assert [lane.name for lane in course.columns] == ["column 0", "column 1", "column 2"]
    assert [lane.num_pes for lane in course.rows] == [3, 3]
    sums = [[cycles_of(one, "scalar") for one in part] for part in (course.columns, course.rows)]
    assert np.sum(sums[0], axis=0).tolist() == np.sum(sums[1], axis=0).tolist()


def test_a_long_run_has_longer_bins(tmp_path: Path) -> None:
    with two_commands(tmp_path, LONG).run(profile=True) as run:
        run.launch("never")
        profile = run.profile()
    (lane,), bin_cycles = course_of(profile).codes, course_of(profile).bin_cycles
    assert profile.cycles > FIRST_CYCLES * MOST_BINS
    assert FIRST_CYCLES < bin_cycles == 2 ** (bin_cycles.bit_length() - 1)
    scalar = cycles_of(lane, "scalar")
    assert MOST_BINS // 2 <= len(scalar) == len(lengths(profile)) <= MOST_BINS
    assert sum(scalar) == tables.main_cycles(profile.groups[0], "scalar")


def test_what_is_done_first_stands_first(tmp_path: Path) -> None:
    with two_commands(tmp_path).run(profile=True) as run:
        run.launch("scale", 2.0)
        profile = run.profile()
    (lane,) = course_of(profile).codes
    # The loop takes 688 cycles before two operations, of 172 and 24 cycles more.
    beats = cycles_of(lane, KINDS[0])
    assert beats[: 600 // FIRST_CYCLES] == [0] * (600 // FIRST_CYCLES)
    assert sum(beats) == 80


def test_a_look_at_the_same_cycle_is_for_each_who_asks(tmp_path: Path) -> None:
    seen: list[int] = []
    options = RuntimeOptions(log_folder=None, has_account=True, has_line_cycles=True)
    runtime = Runtime(two_commands(tmp_path).program, options)
    runtime.load()
    runtime.run()
    runtime.look_at(FIRST_CYCLES, lambda simulator: seen.append(simulator.cycle))
    runtime.launch("scale", 2.0)
    runtime.stop()
    found = profile_of(runtime.booked())
    assert seen == [FIRST_CYCLES]
    assert len(course_of(found).codes[0].kinds[0].cycles) == len(lengths(found)) > 1
