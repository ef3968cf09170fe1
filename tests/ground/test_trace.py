"""Traces as a viewer reads them."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from openwafer.trace import VERSION, Trace

Event = Mapping[str, Any]


def events_of(trace: Trace, phase: str) -> list[Event]:
    events: list[Event] = json.loads(trace.to_json())["traceEvents"]
    return [event for event in events if event["ph"] == phase]


def names_of_tracks(trace: Trace) -> dict[int, str]:
    metadata = [event for event in events_of(trace, "M") if event["name"] == "thread_name"]
    return {event["tid"]: event["args"]["name"] for event in metadata}


def test_a_span_is_written_in_microseconds() -> None:
    trace = Trace()
    trace.span("forward", "compute", 1.5, 1.75, layer="h.0")
    (event,) = events_of(trace, "X")
    assert (event["ts"], event["dur"], event["args"]) == (1.5e6, 0.25e6, {"layer": "h.0"})


def test_tracks_are_threads_with_names() -> None:
    trace = Trace()
    trace.span("a", "compute", 0, 1)
    trace.span("b", "fetch", 0, 1)
    trace.instant("c", "compute", 2)
    assert names_of_tracks(trace) == {1: "compute", 2: "fetch"}


def test_events_stand_on_the_track_they_name() -> None:
    trace = Trace()
    trace.span("a", "compute", 0, 1)
    trace.instant("b", "fetch", 2)
    (instant,) = events_of(trace, "i")
    assert names_of_tracks(trace)[instant["tid"]] == "fetch"


def test_a_counter_keeps_its_values() -> None:
    trace = Trace()
    trace.counter("device memory", "device", 0.001, bytes=4096)
    (event,) = events_of(trace, "C")
    assert (event["ts"], event["args"]) == (1000, {"bytes": 4096})


def test_spans_that_touch_do_not_overlap_after_rounding() -> None:
    trace, edges = Trace(), [0.1, 0.2000000004, 0.3000000006]
    trace.span("a", "compute", edges[0], edges[1])
    trace.span("b", "compute", edges[1], edges[2])
    first, second = events_of(trace, "X")
    assert round(first["ts"] + first["dur"], 3) == second["ts"]


def test_a_span_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"span 'forward' ends at 1 s, before 2 s"):
        Trace().span("forward", "compute", 2, 1)


def test_a_number_that_json_lacks_is_refused() -> None:
    trace = Trace()
    trace.counter("loss", "training", 0, loss=float("nan"))
    with pytest.raises(ValueError, match="not JSON compliant"):
        trace.to_json()


def test_an_empty_trace_is_still_a_trace() -> None:
    assert [event["ph"] for event in json.loads(Trace().to_json())["traceEvents"]] == ["M"]


def test_the_file_names_its_format_and_version(tmp_path: Path) -> None:
    Trace().write(tmp_path / "trace.json")
    mark = json.loads((tmp_path / "trace.json").read_text())["otherData"]
    assert mark == {"format": "openwafer-trace", "version": VERSION}


def test_threads_share_a_trace() -> None:
    trace = Trace()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: trace.span("work", f"track {n % 8}", n, n + 1), range(400)))
    tracks = names_of_tracks(trace)
    shown = {(event["ts"] / 1e6, tracks[event["tid"]]) for event in events_of(trace, "X")}
    assert shown == {(n, f"track {n % 8}") for n in range(400)}
