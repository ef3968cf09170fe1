"""A record along the cycles: what Perfetto and viewers of waveforms get."""

import io
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from vcd.reader import ScalarChange, StringChange, TokenKind, VectorChange, tokenize

import openwafer.sdk as wafer
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.fabric import EventKind
from openwafer.sdk.host import Record, read_record
from openwafer.sdk.profile.timeline import Timeline, timeline, trace_of
from openwafer.sdk.profile.waveform import vcd_text
from tests.cli.command import run_command
from tests.sdk.door.small_program import small_program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in `out`, and `run.record` of a run that streams through PE (2, 0)."""
    folder = tmp_path_factory.mktemp("program")
    program = small_program(folder)
    program.save(folder / "out")
    with program.run(record=folder / "run.record") as run:
        run.send("MEMCPYH2D_1", np.ones((1, 1, 4), np.float32), 0, 2)
        run.launch("add", 1.0, 2)
        run.receive("MEMCPYD2H_1", 4, np.float32, 0, 2)
    return folder


@pytest.fixture(scope="module")
def record(folder: Path) -> Record:
    return read_record(folder / "run.record")


@pytest.fixture(scope="module")
def found(folder: Path, record: Record) -> Timeline:
    return timeline(record, wafer.load(folder / "out").program)


Changes = dict[str, list[tuple[int, object]]]


def changes(text: str) -> Changes:
    """What a reader of VCD finds: by scope and signal the cycles and values of its changes."""
    names: dict[str, str] = {}
    scopes: list[str] = []
    all_changes: Changes = defaultdict(list)
    now = 0
    for token in tokenize(io.BytesIO(text.encode())):
        if token.kind is TokenKind.SCOPE:
            scopes.append(token.scope.ident)
        elif token.kind is TokenKind.UPSCOPE:
            scopes.pop()
        elif token.kind is TokenKind.VAR:
            names[token.var.id_code] = f"{scopes[-1]}.{token.var.reference}"
        elif token.kind is TokenKind.CHANGE_TIME:
            now = token.time_change
        elif isinstance(change := token.data, ScalarChange | VectorChange | StringChange):
            all_changes[names[change.id_code]].append((now, change.value))
    return all_changes


def test_every_task_stands_from_its_begin_to_its_end(record: Record, found: Timeline) -> None:
    tasks = [one for one in found.spans if one.thread == "tasks"]
    assert [one.begin for one in tasks] == record.events(EventKind.TASK).cycle.tolist()
    ends = record.events(EventKind.TASK_END).cycle.tolist()
    assert sorted(one.end for one in tasks) == ends
    names = [one.name for one in tasks if (one.x, one.y) == (2, 0)]
    assert (names.count("echo"), names.count("add")) == (4, 1)


def test_every_queue_is_empty_when_all_wavelets_are_taken(found: Timeline) -> None:
    last = {(one.x, one.y, one.queue): one.depth for one in found.depths}
    assert last[2, 0, "input 2"] == last[2, 0, "output 3"] == 0
    assert set(last.values()) == {0}
    assert min(one.depth for one in found.depths) == 0
    assert max(one.depth for one in found.depths) > 1


def test_a_reader_of_waveforms_sees_tasks_and_operations(found: Timeline) -> None:
    seen = changes(vcd_text(found))
    for one in found.spans:
        assert (one.begin, one.name) in seen[f"PE_{one.x}_{one.y}.{one.thread}".replace(" ", "_")]
    (add,) = (one for one in found.spans if (one.x, one.y, one.name) == (0, 0, "add"))
    assert seen["PE_0_0.tasks"] == [(0, ""), (add.begin, "add"), (add.end, "")]


def test_a_reader_of_waveforms_sees_depths_of_queues(found: Timeline) -> None:
    seen = changes(vcd_text(found))["PE_2_0.input_2"]
    own = [one for one in found.depths if (one.x, one.y, one.queue) == (2, 0, "input 2")]
    assert [value for _, value in seen] == [0, *(one.depth for one in own)]
    assert [cycle for cycle, _ in seen[1:]] == [one.cycle for one in own]


def test_a_wavelet_lands_for_one_cycle(found: Timeline) -> None:
    landings = ((1, 0, 5, 7, 9), (1, 0, 5, 8, 9), (1, 0, 5, 20, 1))
    seen = changes(vcd_text(replace(found, landings=landings)))["PE_1_0.color_5"]
    assert seen == [(0, "z"), (7, 9), (9, "z"), (20, 1), (21, "z")]


def test_a_trace_has_a_track_for_each_thread(found: Timeline) -> None:
    events = json.loads(trace_of(found).to_json())["traceEvents"]
    spans = [one for one in events if one["ph"] == "X"]
    assert [one["ts"] for one in spans] == [one.begin for one in found.spans]
    tracks = {one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert {"PE (2, 0) tasks", "PE (2, 0) main", "PE (2, 0) input 2"} <= tracks


def test_the_command_writes_both_forms(folder: Path, tmp_path: Path, found: Timeline) -> None:
    words = "csl", "timeline", folder / "run.record", folder / "out"
    for name in ("run.vcd", "run.json"):
        assert run_command(*words, tmp_path / name).out == f"written: {tmp_path / name}\n"
    assert (tmp_path / "run.vcd").read_text(encoding="utf-8") == vcd_text(found)
    assert "end it with .vcd, .json" in run_command(*words, tmp_path / "run.txt").err


def test_a_record_that_was_cut_off_ends_with_its_last_event(folder: Path, record: Record) -> None:
    is_kept = [kind != "end" for kind in record.table["kind"].to_pylist()]
    cut = replace(record, table=record.table.filter(pa.array(is_kept)))
    last = int(cut.events().cycle.max())
    assert timeline(cut, wafer.load(folder / "out").program).end == last > 0


def test_a_record_of_another_program_is_refused(folder: Path, record: Record) -> None:
    other = replace(wafer.load(folder / "out").program, channels=3)
    with pytest.raises(OpenwaferError, match="is of the program"):
        timeline(record, other)
