"""Columns hold what the record says, by PE and cycle, for readers of safetensors."""

import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load

from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE
from openwafer.sdk.fabric import EventKind
from openwafer.sdk.profile import wavelets
from openwafer.view.columns import Columns
from openwafer.view.programs import program_columns
from openwafer.view.wafer import TASKS, wafer_columns
from tests.view.recorded_runs import RecordedRun

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def columns(run: RecordedRun) -> Columns:
    return wafer_columns(run.program, run.record, None, title="a run")


@pytest.fixture(scope="module")
def arrays(columns: Columns) -> Arrays:
    return load(columns.content())


def rows(arrays: Arrays, table: str, pe: int) -> slice:
    first = arrays[f"{table}.first"].astype(int)
    return slice(first[pe], first[pe + 1])


def spans_of(run: RecordedRun, begin: EventKind, end: EventKind) -> set[tuple[int, ...]]:
    """PE, thread, begin and end, by a plain walk over the events."""
    events, height = run.record.events(begin, end), run.program.height
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    found: set[tuple[int, ...]] = set()
    for row in range(len(events)):
        pe = int(events.x[row]) * height + int(events.y[row])
        thread = TASKS if begin is EventKind.TASK else int(events.slot[row])
        if events.kind[row] == begin:
            waiting[pe, thread].append(int(events.cycle[row]))
        else:
            found.add((pe, thread, waiting[pe, thread].pop(0), int(events.cycle[row])))
    return found


def test_spans_are_the_tasks_and_operations_of_the_record(
    run: RecordedRun, columns: Columns, arrays: Arrays
) -> None:
    wanted = spans_of(run, EventKind.TASK, EventKind.TASK_END)
    wanted |= spans_of(run, EventKind.OPERATION, EventKind.OPERATION_END)
    pes = np.repeat(np.arange(run.program.image_of.size), np.diff(arrays["span.first"]))
    own = (arrays[f"span.{name}"].tolist() for name in ("thread", "begin", "end"))
    found = set(zip(pes.tolist(), *own, strict=True))
    assert wanted <= found
    assert all(end == columns.head["cycles"] for _, _, _, end in found - wanted)


def test_names_and_places_of_spans_are_those_of_the_source(
    run: RecordedRun, columns: Columns, arrays: Arrays
) -> None:
    names: Any = columns.head["names"]
    operations = arrays["span.thread"] != TASKS
    known = {f"@{one.name}" for one in VECTOR_OPS_BY_CODE.values()}
    assert {names[one] for one in arrays["span.name"][operations]} <= known
    functions = {entry.function for image in run.program.images for entry in image.entries}
    assert {names[one] for one in arrays["span.name"][~operations]} <= functions


def test_each_landing_of_the_record_is_a_passage_at_its_pe(
    run: RecordedRun, arrays: Arrays
) -> None:
    landings = run.record.events(EventKind.LANDING)
    for pe in range(run.program.image_of.size):
        own, (x, y) = rows(arrays, "pass", pe), run.program.place_of(pe)
        there = landings.take((landings.x == x) & (landings.y == y))
        np.testing.assert_array_equal(arrays["pass.landed"][own], there.cycle)
        np.testing.assert_array_equal(arrays["pass.data"][own], there.data & 0xFFFFFFFF)
        np.testing.assert_array_equal(arrays["pass.color"][own], there.color)


def test_wavelets_have_their_ends_and_the_routers_of_their_ways(
    run: RecordedRun, arrays: Arrays
) -> None:
    found = wavelets(run.record)
    assert sorted(arrays["wave.end"].tolist()) == sorted(found.end.tolist())
    assert sorted(arrays["wave.hops"].tolist()) == sorted(found.hops.tolist())
    assert np.array_equal(np.sort(arrays["way.pass"]), np.arange(len(arrays["pass.landed"])))
    of_way = np.repeat(np.arange(len(arrays["way.first"]) - 1), np.diff(arrays["way.first"]))
    np.testing.assert_array_equal(arrays["pass.wavelet"][arrays["way.pass"]], of_way)


def test_a_course_adds_up_to_the_cycles_of_its_spans(columns: Columns, arrays: Arrays) -> None:
    course: Any = columns.head["course"]
    lengths = arrays["span.end"].astype(int) - arrays["span.begin"]
    is_task = arrays["span.thread"] == TASKS
    assert course["bin_cycles"] == 1
    assert int((arrays["course.task"] > 0).sum()) == int(lengths[is_task].sum())
    assert set(np.unique(arrays["course.task"])) <= {0, 255}


def test_a_program_that_has_not_run_has_its_routes_and_source(run: RecordedRun) -> None:
    made = program_columns(run.program, "out")
    assert (made.head["cycles"], set(made.arrays)) == (0, {"routes_of", "image_of"})
    colors: Any = made.head["colors"]
    assert ("to_device" in colors[4], "MEMCPYD2H_1" in colors[5]) == (True, True)


def test_the_file_says_what_it_is_and_takes_the_shortest_elements(columns: Columns) -> None:
    content = columns.content()
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    told = head["__metadata__"]
    assert (told["format"], told["version"]) == ("openwafer-view", "1")
    assert json.loads(told["head"])["title"] == "a run"
    assert head["pass.color"]["dtype"] == "U8"
