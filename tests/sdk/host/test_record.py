"""The record of a run: what it has, that it changes nothing, and what is wrong with a file."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import EventKind, Events, RecordOptions, read_record
from openwafer.sdk.fabric import Scope, Simulator
from openwafer.sdk.host import Runtime, RuntimeOptions
from openwafer.sdk.host.final_state import FinalState, difference
from openwafer.sdk.host.operations import CopyTo, Stop
from openwafer.sdk.host.record import HOST_OPERATIONS, record_of_environment
from openwafer.sdk.host.replaying import replay
from openwafer.sdk.program.digest import digest_of
from tests.sdk.door.small_program import small_program
from tests.sdk.forked_python import with_sdk
from tests.sdk.host.hand_built import PROGRAM
from tests.sdk.host.test_journal import ask, state_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.record"


def started(path: Path | RecordOptions | None, journal: Path | None = None) -> Runtime:
    runtime = Runtime(PROGRAM, RuntimeOptions(log_folder=None, record=path, journal=journal))
    runtime.load()
    runtime.run()
    return runtime


def done(path: Path | RecordOptions | None, journal: Path | None = None) -> FinalState:
    """The state behind one of each operation of the host."""
    runtime = started(path, journal)
    ask(runtime)
    state = state_of(runtime)
    runtime.stop()
    return state


def lists(events: Events) -> dict[str, list[int]]:
    return {name: column.tolist() for name, column in vars(events).items()}


def test_a_record_says_what_it_is_of(path: Path) -> None:
    done(path)
    head = read_record(path).head
    assert (head.program, head.arch) == (digest_of(PROGRAM), "wse2")
    assert (head.width, head.height, head.scope) == (2, 2, Scope())


def test_a_run_is_the_same_with_a_record(path: Path) -> None:
    assert difference(done(None), done(path)) == ""


def test_the_record_of_a_replay_is_that_of_the_run(path: Path, tmp_path: Path) -> None:
    done(path, tmp_path / "run.journal")
    replay(PROGRAM, tmp_path / "run.journal", record=tmp_path / "again.record")
    again = read_record(tmp_path / "again.record").events()
    assert lists(again) == lists(read_record(path).events())


def test_operations_of_the_host_stand_between_what_they_do(path: Path) -> None:
    done(path)
    events = read_record(path).events(EventKind.HOST, EventKind.HOST_END, EventKind.END)
    begins, ends = events.of(EventKind.HOST), events.of(EventKind.HOST_END)
    assert begins.data[0] == HOST_OPERATIONS.index(CopyTo)
    assert begins.data[-1] == HOST_OPERATIONS.index(Stop)
    assert begins.number.tolist() == ends.number.tolist() == list(range(len(begins)))
    assert (begins.cycle <= ends.cycle).all()
    assert events.kind[-1] == EventKind.END


def test_columns_have_the_types_of_the_page(path: Path) -> None:
    done(path)
    schema = read_record(path).table.schema
    kinds = {field.name: str(field.type) for field in schema}
    page = Path("docs/formats/openwafer-record.md").read_text()
    for name, kind in kinds.items():
        assert f"`{name}`" in page
        assert (kind if name != "kind" else "dictionary of text") in page


SCOPES: dict[str, tuple[Scope, Callable[[Events], np.ndarray]]] = {
    "rectangle": (Scope(rectangle=(1, 0, 1, 2)), lambda events: events.x == 1),
    "one PE": (Scope(rectangle=(0, 1, 1, 1)), lambda events: (events.x == 0) & (events.y == 1)),
    "colors": (Scope(colors=(5,)), lambda events: np.isin(events.color, (-1, 5))),
}


@pytest.mark.parametrize("name", SCOPES)
def test_a_scope_leaves_out_the_rest(path: Path, tmp_path: Path, name: str) -> None:
    scope, is_in = SCOPES[name]
    done(RecordOptions(tmp_path / "part", scope.rectangle, scope.cycles, scope.colors))
    done(path)
    whole = read_record(path).events()
    part = read_record(tmp_path / "part").events()
    assert lists(part) == lists(whole.take(is_in(whole) | (whole.x < 0)))


def test_a_range_of_cycles_leaves_out_the_rest(path: Path) -> None:
    done(RecordOptions(path, cycles=(5, 60)))
    events = read_record(path).events(EventKind.SENT, EventKind.TAKEN)
    assert len(events)
    assert events.cycle.min() >= 5
    assert events.cycle.max() <= 60


WRONG: dict[str, tuple[RecordOptions, str]] = {
    "rectangle": (RecordOptions(Path("x"), (1, 1, 2, 1)), r"2 x 1 PEs at \(1, 1\) lies outside"),
    "color": (RecordOptions(Path("x"), colors=(24,)), "no color 24(.|\n)*0 to 23"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_scope_that_is_not_there_is_refused(name: str) -> None:
    options, told = WRONG[name]
    with pytest.raises(OpenwaferError, match=told):
        started(options)


def test_a_program_that_waits_for_ever_has_its_record_up_to_there(tmp_path: Path) -> None:
    program = small_program(tmp_path)
    path = tmp_path / "run.record"
    run = program.run(record=path)
    run.launch("never")
    with pytest.raises(OpenwaferError, match="nothing moves"):
        run.close()
    end = read_record(path).events(EventKind.END)
    assert (end.number.tolist(), end.cycle.tolist()) == ([1], [run._runtime.cycle])  # noqa: SLF001


UNSTOPPED = """
import os
os.environ["OPENWAFER_RECORD"] = "records"
from tests.sdk.host.hand_built import running
running().launch("scale", 2.0)
"""


def test_the_environment_names_a_folder_and_scripts_need_not_stop(tmp_path: Path) -> None:
    with_sdk().run(UNSTOPPED, folder=tmp_path)
    events = read_record(tmp_path / "records" / "0000.record").events()
    assert events.of(EventKind.COMMAND_END).cycle.size == 4


def test_a_record_that_is_not_there_says_how_to_keep_one(path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"no record at(.|\n)*run\(record=...\)"):
        read_record(path)


def test_a_file_that_is_cut_anywhere_is_refused(path: Path) -> None:
    done(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), len(whole) // 40):
        cut = path.with_name(f"{length}.record")
        cut.write_bytes(whole[:length])
        with pytest.raises(OpenwaferError, match=r"is damaged(.|\n)*or cut|no Arrow IPC file"):
            read_record(cut)


def test_records_of_a_folder_go_on_behind_the_highest_number(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENWAFER_RECORD", str(path.parent))
    for name in ("0000.record", ".0006.0123abcd.record", "mine.record"):
        path.with_name(name).touch()
    assert record_of_environment() == path.with_name("0007.record")


def test_what_a_killed_process_has_left_is_removed_by_the_next_run(path: Path) -> None:
    abandoned, written = path.with_name(".run.0123abcd.record"), started(path)
    abandoned.write_bytes(b"ARROW1")
    hour_ago = time.time() - 3600
    for temporary in path.parent.glob(".*.record"):
        os.utime(temporary, (hour_ago, hour_ago))
    done(path.with_name("next.record"))
    assert not abandoned.exists()
    written.stop()
    assert read_record(path).events(EventKind.END).number.tolist() == [0]


def with_metadata(path: Path, told: dict[str, str]) -> None:
    table = pa.table({"cycle": [1]}).replace_schema_metadata(told)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)


FOREIGN = {
    "another format": ({"format": "openwafer-trace"}, "is no openwafer-record"),
    "a newer version": (
        {"format": "openwafer-record", "version": "2"},
        r"version 2, and this program reads version 1",
    ),
    "no head": ({"format": "openwafer-record", "version": "1"}, "is damaged"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_another_file_is_refused(path: Path, name: str) -> None:
    told, message = FOREIGN[name]
    with_metadata(path, told)
    with pytest.raises(OpenwaferError, match=message):
        read_record(path)


def test_a_file_of_something_else_is_refused(path: Path) -> None:
    path.write_text("{}")
    with pytest.raises(OpenwaferError, match="no Arrow IPC file"):
        read_record(path)


def test_a_simulation_that_is_recorded_does_not_go_back(path: Path) -> None:
    runtime = started(path)
    moments = []

    def go_back(simulator: Simulator) -> None:
        moments.append(simulator.snapshot())
        simulator.restore(moments[0])

    runtime.look_at(1, go_back)
    with pytest.raises(OpenwaferError, match=r"does not go back(.|\n)*replay the journal"):
        ask(runtime)
