"""Whichever read or write of a short run fails: a clear error, and the last commit is there."""

import dataclasses
import re
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.layout import KEPT_PARTS, Part
from openwafer.training.store.parameter_store import ParameterStore
from tests.faults.failing_io import Call, FailingIo, Fault
from tests.tables import case
from tests.training.store.example_records import (
    QUICK,
    differing_parts,
    make_store,
    poll,
    write_step,
)

RING_BYTES = 2 * 12288
NUM_STEPS = 3
FAULTS = [
    (Call.READ, Fault.REFUSE),
    case(Call.READ, Fault.TEAR, by_default=False),
    (Call.READ, Fault.STOP_SHORT),
    case(Call.WRITE, Fault.REFUSE, by_default=False),
    (Call.WRITE, Fault.TEAR),
    case(Call.WRITE, Fault.STOP_SHORT, by_default=False),
    (Call.SYNC, Fault.REFUSE),
    (Call.REPLACE, Fault.REFUSE),
]
CODES = {
    Call.READ: "store-read-failed",
    Call.WRITE: "store-write-failed",
    Call.SYNC: "store-commit-failed",
    Call.REPLACE: "store-commit-failed",
}


@dataclasses.dataclass
class Outcome:
    """How far a run came: the steps whose commit began and returned, and the error."""

    begun: int = 0
    durable: int = 0
    failure: OpenwaferError | None = None


def run(folder: Path, file_io: FailingIo) -> Outcome:
    """Steps 1 to 3: each reads and writes all records and commits in the background."""
    outcome = Outcome()
    options = dataclasses.replace(QUICK, file_io=file_io)
    try:
        with ParameterStore.open(folder, ring_bytes=RING_BYTES, options=options) as store:
            for step in range(1, NUM_STEPS + 1):
                write_step(store, step)
                outcome.begun = step
                store.commit_begin(step, {"step": step})
                outcome.durable = store.step or 0
            store.commit_wait()
            outcome.durable = NUM_STEPS
    except OpenwaferError as failure:
        outcome.failure = failure
    return outcome


def run_with_fault(folder: Path, call: Call, failing: int | None, fault: Fault) -> Outcome:
    """A new store at step 0, then the run."""
    with make_store(folder, ring_bytes=RING_BYTES) as store:
        write_step(store, 0)
        store.commit(0, {})
    return run(folder, FailingIo(call, failing, fault))


def problem_after(folder: Path, outcome: Outcome, call: Call) -> str | None:
    """What is wrong with the error or with the reopened store; None when all is well."""
    if outcome.failure is None or CODES[call] not in str(outcome.failure):
        return f"unclear failure: {outcome.failure}"
    with ParameterStore.open(folder, ring_bytes=RING_BYTES, options=QUICK) as store:
        if store.step is None or not outcome.durable <= store.step <= outcome.begun:
            return f"step {store.step}, known durable {outcome.durable}, begun {outcome.begun}"
        return ", ".join(differing_parts(store, store.step)) or None


def count_calls(folder: Path, call: Call) -> int:
    """Calls of one kind in a run without a fault."""
    run_with_fault(folder, call, None, Fault.REFUSE)
    counting = FailingIo(call, None, Fault.REFUSE)
    run(folder, counting)
    return counting.num_calls


@pytest.mark.parametrize(("call", "fault"), FAULTS)
def test_a_failure_at_any_call_is_told_and_loses_no_commit(
    tmp_path: Path, call: Call, fault: Fault
) -> None:
    num_calls = count_calls(tmp_path / "counted", call)
    problems = {}
    for failing in range(num_calls):
        folder = tmp_path / str(failing)
        outcome = run_with_fault(folder, call, failing, fault)
        problems[failing] = problem_after(folder, outcome, call)
    assert problems == dict.fromkeys(range(num_calls))
    assert num_calls >= NUM_STEPS


@pytest.mark.parametrize("call", [Call.READ, Call.WRITE])
def test_the_error_names_part_file_place_and_bytes(tmp_path: Path, call: Call) -> None:
    outcome = run_with_fault(tmp_path / "store", call, 1, Fault.REFUSE)
    text = str(outcome.failure)
    wanted = [f"cannot {call} the (weights|states) of record 'layer0'", "records.bin at byte"]
    wanted += ["(4096|8192) bytes wanted, 0 done", "Input/output error", "= help: "]
    assert [words for words in wanted if not re.search(words, text)] == []


def test_the_end_of_the_file_is_told_as_such(tmp_path: Path) -> None:
    outcome = run_with_fault(tmp_path / "store", Call.READ, 0, Fault.STOP_SHORT)
    assert "8192 bytes wanted, 0 done: the file ends there" in str(outcome.failure)


def test_a_failed_read_leaves_the_store_usable(tmp_path: Path) -> None:
    file_io = FailingIo(Call.READ, 0, Fault.REFUSE)
    run_with_fault(tmp_path / "store", Call.READ, None, Fault.REFUSE)
    options = dataclasses.replace(QUICK, file_io=file_io)
    with ParameterStore.open(tmp_path / "store", ring_bytes=RING_BYTES, options=options) as store:
        loan = store.borrow("layer0", (Part.WEIGHTS,))
        with pytest.raises(OpenwaferError, match="store-read-failed"):
            loan.wait()
        loan.release()
        assert differing_parts(store, NUM_STEPS) == []


def test_after_a_failed_write_every_call_is_refused(tmp_path: Path) -> None:
    options = dataclasses.replace(QUICK, file_io=FailingIo(Call.WRITE, 0, Fault.TEAR))
    store = make_store(tmp_path / "store", ring_bytes=RING_BYTES, options=options)
    with pytest.raises(OpenwaferError, match="store-write-failed"):
        write_step(store, 1)
    for call in (
        store.drain,
        lambda: store.commit(1, {}),
        lambda: store.borrow("layer0", KEPT_PARTS),
    ):
        with pytest.raises(OpenwaferError, match="store-write-failed"):
            call()
    store.close()


def test_no_writer_begins_a_part_after_a_failed_write(tmp_path: Path) -> None:
    file_io = FailingIo(Call.WRITE, 0, Fault.REFUSE)
    # A second one could begin some before it learns of the failure.
    options = dataclasses.replace(QUICK, io_unit_bytes=1 << 20, num_writers=1, file_io=file_io)
    store = make_store(tmp_path / "store", options=options)
    loans = [store.borrow(name, KEPT_PARTS) for name in store.layouts]
    for loan in loans:
        loan.wait()
    for loan in loans:
        loan.release(dirty=KEPT_PARTS)
    assert poll(lambda: store.has_failed)
    with pytest.raises(OpenwaferError, match="store-write-failed"):
        store.close()
    assert file_io.num_calls == 1


def test_a_failure_nobody_saw_is_raised_at_closing(tmp_path: Path) -> None:
    options = dataclasses.replace(QUICK, file_io=FailingIo(Call.WRITE, 0, Fault.REFUSE))
    store = make_store(tmp_path / "store", num_records=1, options=options)
    write_step(store, 1)
    assert poll(lambda: store.has_failed)
    with pytest.raises(OpenwaferError, match="store-write-failed"):
        store.close()
