"""Time that is added up as it is read is that of a whole account, and takes little memory."""

import tracemalloc
from collections import defaultdict

import numpy as np
import pytest
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.account import PES_AT_A_TIME
from openwafer.sdk.fabric.address_space import written_pages
from openwafer.sdk.host import Runtime, RuntimeOptions
from openwafer.sdk.host.line_cycles import BookedRun, Line
from openwafer.sdk.profile import Grouping, profile_of
from openwafer.sdk.profile.folding import group_times
from openwafer.sdk.profile.model import line_of
from openwafer.sdk.profile.taking import MAX_GROUPS, check_groups
from tests.sdk.door.small_program import small_program

SIDE = 96
"""More PEs than are read at a time."""


@pytest.fixture(scope="module")
def booked(tmp_path_factory: pytest.TempPathFactory) -> BookedRun:
    """Of PEs in two bands, which share their memory."""
    program = small_program(tmp_path_factory.mktemp("program"), SIDE, SIDE).program
    runtime = Runtime(
        program, RuntimeOptions(log_folder=None, has_account=True, has_line_cycles=True)
    )
    runtime.load()
    runtime.run()
    runtime.launch("add", 1.0, 2)
    runtime.stop()
    return runtime.booked()


@pytest.fixture(scope="module")
def simulator(booked: BookedRun) -> Simulator:
    assert SIDE**2 > PES_AT_A_TIME
    return booked.simulator


def test_an_account_of_some_pes_is_theirs_in_the_account_of_all(simulator: Simulator) -> None:
    whole, part = simulator.account(), simulator.account(100, 8300)
    np.testing.assert_array_equal(part.cycles, whole.cycles[100:8300])
    np.testing.assert_array_equal(part.colors, whole.colors[100:8300])
    np.testing.assert_array_equal(part.of(2, 7), whole.of(2, 7))


def test_the_time_of_main_threads_is_that_of_their_account(simulator: Simulator) -> None:
    main, whole = simulator.main_time(0, SIDE**2), simulator.account().main
    np.testing.assert_array_equal(main.cycles, whole.cycles)
    np.testing.assert_array_equal(main.beats, whole.beats)


def test_times_of_groups_are_sums_over_their_pes(simulator: Simulator) -> None:
    group_of = np.random.default_rng(0).integers(-1, 5, SIDE**2)
    times, whole = group_times(simulator, group_of, 5), simulator.account()
    for group in range(5):
        own = group_of == group
        np.testing.assert_array_equal(times.cycles[group], whole.cycles[own].sum(axis=0))
        np.testing.assert_array_equal(times.colors[group], np.bitwise_or.reduce(whole.colors[own]))
    np.testing.assert_array_equal(times.kinds, whole.main.kinds)


def test_an_account_takes_no_memory_for_slots_that_no_pe_uses(simulator: Simulator) -> None:
    simulator.account()
    row = 8 * w.ACCOUNT_WORDS
    begins = [8 * w.ACCOUNT + row * slot * w.PITCH for slot in (5, w.MAIN_SLOT)]
    state = simulator.engine.states[0]  # type: ignore[attr-defined]
    unused, main = written_pages(state, [(at, at + row * SIDE**2) for at in begins])
    assert unused.size == 0 < main.size


def test_a_profile_holds_little_of_each_pe(booked: BookedRun) -> None:
    tracemalloc.start()
    try:
        profile_of(booked)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    of_a_stretch = PES_AT_A_TIME * 8 * w.SLOTS * w.NUM_STATES
    assert peak_bytes < 4 * of_a_stretch + 500 * SIDE**2


def test_as_many_groups_as_a_wafer_has_pes_are_refused() -> None:
    check_groups(MAX_GROUPS, Grouping.PE)
    check_groups(750 * 994, Grouping.IMAGE)
    with pytest.raises(OpenwaferError) as raised:
        check_groups(750 * 994, Grouping.PE)
    assert "745,500 PEs, each a group of its own: a profile has at most 16,384" in str(raised.value)
    assert "--rectangle" in str(raised.value)


def test_a_profile_refuses_them_before_it_does_anything(booked: BookedRun) -> None:
    with pytest.raises(OpenwaferError, match="each a group of its own"):
        profile_of(booked, np.zeros(MAX_GROUPS + 1, np.int64), Grouping.PE)


def test_lines_of_many_pes_are_sums_of_those_of_few(booked: BookedRun) -> None:
    numbers = np.arange(SIDE**2)
    sums: dict[Line, NDArray[np.int64]] = defaultdict(lambda: np.zeros(4, np.int64))
    for pes in np.array_split(numbers, 16):
        for line in booked.counters.lines(pes):
            sums[line_of(line)] += (line.executions, line.taken, line.waited, line.operation)
    whole = booked.counters.lines(numbers)
    assert len(whole) == len(sums) > 0
    for one in whole:
        told = [one.executions, one.taken, one.waited, one.operation]
        assert sums[line_of(one)].tolist() == told
