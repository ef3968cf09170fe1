"""A run is its program and its journal: another process does it again from these two."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host import Region, Runtime, RuntimeOptions
from openwafer.sdk.host import journal as journals
from openwafer.sdk.host.final_state import FinalState, difference, final_state
from openwafer.sdk.host.final_state import read as read_state
from openwafer.sdk.host.operations import CopyTo, Launch, Stop, Wait
from openwafer.sdk.host.replaying import replay
from openwafer.sdk.program import file
from tests.sdk.forked_python import with_sdk
from tests.sdk.host.hand_built import PROGRAM

ALL = Region(0, 0, 2, 2, 2)
VALUES = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
STREAMED = np.arange(8, dtype=np.uint32).reshape(2, 2, 2)

UNSTOPPED = """
import os
os.environ["OPENWAFER_JOURNAL"] = "."
from tests.sdk.host.hand_built import running
running().launch("scale", 2.0)
"""
AGAIN = """
import sys
from pathlib import Path
from typing import Any
from openwafer.sdk.host.final_state import final_state, write
from openwafer.sdk.host.replaying import replay
from openwafer.sdk.program.file import read
program = read(Path(sys.argv[1]))
write(final_state(program, replay(program, sys.argv[2]).simulator), Path(sys.argv[3]))
"""


def started(path: Path) -> Runtime:
    runtime = Runtime(PROGRAM, RuntimeOptions(log_folder=None, journal=path))
    runtime.load()
    runtime.run()
    return runtime


def ask(runtime: Runtime, *, nonblock: bool = False) -> list[np.ndarray]:
    """One of each operation but a stop; what the host gets."""
    got: list[np.ndarray] = []
    number = runtime.get_id("A")
    runtime.copy_to_device(number, VALUES.view(np.uint32), ALL, nonblock=nonblock)
    runtime.receive(got.append, 6, ALL, nonblock=True)
    runtime.send(5, STREAMED, ALL, nonblock=nonblock)
    runtime.launch("scale", 3.0, nonblock=nonblock)
    runtime.copy_from_device(got.append, number, ALL, nonblock=nonblock)
    runtime.send(5, STREAMED, ALL, nonblock=True)
    runtime.receive_rest(got.append, 6, (1, 0), nonblock=nonblock)
    runtime.wait()
    return got


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.journal"


def state_of(runtime: Runtime) -> FinalState:
    """What a run is at the end of the present cycle."""
    states: list[FinalState] = []
    runtime.look_at(runtime.cycle, lambda simulator: states.append(final_state(PROGRAM, simulator)))
    runtime.wait()
    return states[0]


@pytest.mark.parametrize("nonblock", [False, True])
def test_a_replay_gives_the_host_the_same_and_ends_in_the_same_state(
    path: Path, nonblock: bool
) -> None:
    runtime = started(path)
    got = ask(runtime, nonblock=nonblock)
    state = state_of(runtime)
    runtime.stop()
    again = replay(PROGRAM, path)
    results = [one.tolist() for one in again.results if one is not None]
    assert results == [one.tolist() for one in got]
    assert difference(state, final_state(PROGRAM, again.simulator)) == ""


def test_operations_stand_in_the_order_in_which_they_were_carried_out(path: Path) -> None:
    runtime = started(path)
    ask(runtime, nonblock=True)
    runtime.stop()
    entries = journals.read(path).entries
    assert [type(entry.operation).__name__ for entry in entries] == [
        *("CopyTo", "Send", "Launch", "Receive", "CopyFrom", "Send", "ReceiveRest"),
        *("Wait", "Stop"),
    ]
    assert [entry.cycle for entry in entries] == sorted(entry.cycle for entry in entries)


def test_a_replay_ends_with_the_cycle_that_is_asked_for(path: Path) -> None:
    runtime = started(path)
    ask(runtime)
    runtime.stop()
    middle = runtime.cycle // 2
    assert replay(PROGRAM, path, until=middle).simulator.cycle == middle


def test_what_the_script_writes_to_its_arrays_later_is_not_in_the_journal(path: Path) -> None:
    runtime, words = started(path), VALUES.copy().view(np.uint32)
    runtime.copy_to_device(1, words, ALL)
    words[:] = 0
    runtime.stop()
    copy = journals.read(path).entries[0].operation
    assert isinstance(copy, CopyTo)
    np.testing.assert_array_equal(copy.words.view(np.float32), VALUES)


def test_a_failure_is_part_of_the_run(path: Path) -> None:
    runtime = started(path)
    with pytest.raises(OpenwaferError, match="fabric-deadlock"):
        runtime.receive(lambda _words: None, 6, ALL)
    (entry,) = journals.read(path).entries
    assert entry.failure is not None
    assert "deadlock" in entry.failure
    assert replay(PROGRAM, path).results == (None,)


def test_a_run_that_nobody_stops_leaves_its_journal(tmp_path: Path) -> None:
    done = with_sdk().run(UNSTOPPED, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    kinds = [type(one.operation) for one in journals.read(tmp_path / "0000.journal").entries]
    assert kinds == [Launch, Stop]


def test_another_process_does_it_again(path: Path, tmp_path: Path) -> None:
    runtime = started(path)
    ask(runtime)
    state = state_of(runtime)
    runtime.stop()
    file.write(PROGRAM, tmp_path / "program")
    done = with_sdk().run(AGAIN, str(tmp_path / "program"), str(path), str(tmp_path / "state"))
    assert done.stderr == ""
    assert difference(state, read_state(tmp_path / "state")) == ""


@pytest.mark.parametrize("part", [0, 0.01, 0.2, 0.8, 0.99])
def test_a_journal_that_was_cut_is_refused(path: Path, part: float) -> None:
    runtime = started(path)
    ask(runtime)
    runtime.stop()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(OpenwaferError, match=r"run\.journal is damaged(.|\n)*record the run again"):
        replay(PROGRAM, path)


def test_changed_words_are_refused(path: Path) -> None:
    runtime = started(path)
    runtime.copy_to_device(1, VALUES.view(np.uint32), ALL)
    runtime.stop()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(OpenwaferError, match=r"its words have the checksum [0-9a-f]{16}, not"):
        replay(PROGRAM, path)


def test_the_journal_of_another_program_is_refused(path: Path) -> None:
    started(path).stop()
    with pytest.raises(OpenwaferError, match="journal-of-other-program"):
        replay(replace(PROGRAM, channels=2), path)


def test_a_missing_journal_says_how_to_keep_one(path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"there is no journal(.|\n)*OPENWAFER_JOURNAL"):
        replay(PROGRAM, path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cycle": 3}, r"operation 0 \(CopyFrom\) began at cycle 3 in the run, and 0 now"),
        ({"result": "0" * 16}, "gave words with the checksum 0000000000000000 in the run, and"),
        ({"failure": "trap"}, "failed with trap in the run, and no error now"),
    ],
)
def test_what_comes_out_otherwise_is_told(path: Path, changes: dict[str, Any], text: str) -> None:
    runtime = started(path)
    runtime.copy_from_device(lambda _words: None, 1, ALL)
    runtime.stop()
    journal = journals.read(path)
    journal.entries[0] = replace(journal.entries[0], **changes)
    with pytest.raises(OpenwaferError, match=text):
        replay(PROGRAM, journal)


def test_an_interrupted_operation_ends_the_journal(path: Path) -> None:
    runtime = started(path)
    runtime.launch("scale", 3.0)
    runtime.look_at(2, lambda _simulator: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        runtime.wait()
    runtime.launch("scale", 2.0)
    journal = journals.read(path)
    assert journal.interrupted_at == 2
    assert [type(entry.operation) for entry in journal.entries] == [Launch, Wait]
    again = replay(PROGRAM, path)
    assert (again.results, again.simulator.cycle) == ((None,), 2)


def test_a_folder_that_is_not_there_is_told_when_the_run_begins(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-folder"):
        started(tmp_path / "no-folder" / "run.journal")
