"""Runs are done again with all books kept, and what does not hold of them is found."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openwafer.sdk.compat.conformance import SuiteOptions, run_suite
from openwafer.sdk.compat.replayed import faults, faults_of_books
from openwafer.sdk.fabric import Account, SlotState
from openwafer.sdk.host import Region, Runtime, RuntimeOptions
from openwafer.sdk.host import journal as journals
from openwafer.sdk.host.final_state import read, write
from openwafer.sdk.host.line_cycles import CodeCounters
from openwafer.sdk.host.replaying import replay
from openwafer.sdk.program import file
from openwafer.sdk.program.environment import FINAL_STATE_VARIABLE
from tests.sdk.door.small_program import small_program
from tests.tables import case


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program, and with the journal and the final state of a run of it."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setenv(FINAL_STATE_VARIABLE, str(folder))
    monkeypatch.setenv(journals.JOURNAL_VARIABLE, str(folder))
    runtime = Runtime(small_program(folder).program, RuntimeOptions(log_folder=None))
    runtime.load()
    runtime.run()
    runtime.launch("add", 2.0, 3)
    region = Region(0, 0, 3, 2, 2)
    runtime.send(4, np.ones(region.shape, np.uint32), region)
    runtime.receive(lambda _words: None, 5, region)
    runtime.stop()
    return folder


def program_of(kept: Path) -> Path:
    """The program that lies beside the journal."""
    return next(kept.glob("*.program.zip"))


def test_a_run_and_its_replays_leave_the_same_and_their_books_add_up(kept: Path) -> None:
    assert list(faults(kept, kept)) == []


def test_another_final_state_is_found(kept: Path) -> None:
    state = read(kept / "0000.npz")
    counts = dict(state.counts)
    write(replace(state, counts={**counts, "tasks": counts["tasks"] + 1}), kept / "0000.npz")
    first, *others = faults(kept, kept)
    assert first == "run 0: the run and a replay: tasks are 19 and 18"
    for other, name in zip(others, ("a replay with account", "a debugger"), strict=True):
        assert other.startswith(f"run 0: the run and {name}")


def test_a_program_that_is_not_there_is_told_of(kept: Path) -> None:
    program_of(kept).unlink()
    (fault,) = faults(kept, kept)
    assert fault.startswith("run 0: there is no compiled program at ")


def test_no_journal_at_all_is_a_fault(kept: Path) -> None:
    (kept / "0000.journal").unlink()
    assert list(faults(kept, kept)) == ["no run kept a journal"]


@pytest.fixture
def books(kept: Path) -> tuple[Account, CodeCounters]:
    """What the run's replay has counted."""
    program = file.read(program_of(kept))
    again = replay(program, kept / "0000.journal", has_account=True, has_line_cycles=True)
    assert again.booked is not None
    return again.simulator.account(), again.booked.counters


def test_a_slot_that_lacks_a_cycle_is_found(books: tuple[Account, CodeCounters]) -> None:
    account, counters = books
    account.cycles[2, 3, SlotState.NOTHING] -= 1
    (fault,) = faults_of_books(account, counters)
    assert fault.startswith("slot 3 of PE (1, 0) has [")
    assert fault.endswith(f"which are no partition of {account.num_cycles} cycles")


def test_a_datapath_with_two_beats_at_once_is_found(books: tuple[Account, CodeCounters]) -> None:
    account, counters = books
    for slot in (0, 1):
        account.cycles[1, slot] = 0
        account.cycles[1, slot, SlotState.BEAT] = account.num_cycles
    (fault,) = faults_of_books(account, counters)
    assert fault.startswith("datapath 0 of PE (0, 1) has [")


def test_lines_that_do_not_add_up_are_found(books: tuple[Account, CodeCounters]) -> None:
    account, counters = books
    main = account.of(0, 0)[8]
    too_many = 1 + main[SlotState.DRAIN]
    main[SlotState.SCALAR] -= too_many
    main[SlotState.NOTHING] += too_many
    (fault,) = faults_of_books(account, counters)
    assert fault.startswith("lines of PE (0, 0) have ")


@pytest.mark.parametrize(
    ("cycle", "reason"),
    [case(0, "", by_default=False), (5, "began at cycle 5 in the run, and 0")],
)
def test_a_suite_replays_each_of_its_runs(kept: Path, cycle: int, reason: str) -> None:
    journal = journals.read(kept / "0000.journal")
    journal.entries[0] = replace(journal.entries[0], cycle=cycle)
    program = kept / "program"
    program.mkdir()
    for path in (program_of(kept), kept / "0000.npz"):
        shutil.move(path, program)
    journals.write(journal, program / "0000.journal")
    to = "mkdir -p $OPENWAFER_JOURNAL $OPENWAFER_FINAL_STATE; cp *.npz $OPENWAFER_FINAL_STATE"
    (program / "commands_wse3.sh").write_text(f"{to}; cp *.journal *.zip $OPENWAFER_JOURNAL\n")
    (outcome,) = run_suite(kept, SuiteOptions("wse3", is_replayed=True), lambda _: None)
    assert (outcome.has_passed, reason in outcome.reason) == (not reason, True)
