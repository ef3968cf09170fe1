"""Reading a trace back, one step at a time."""

import json
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.trace import Trace
from openwafer.training.metrics import read_trace
from openwafer.training.metrics.step_trace import Kind, RunTrace, Track


def three_steps(folder: Path) -> RunTrace:
    """Steps 4, 5 and 6, each fetched 1 s ahead, computed for 3 s and pushed for 1 s."""
    trace = Trace()
    for step, start in ((4, 10.0), (5, 14.0), (6, 18.0)):
        trace.span("f", "fetch", start - 1, start, layer="a", kind="fetch", step=step)
        trace.span("b", "compute", start, start + 3, layer="a", kind="backward", step=step)
        trace.span("p", "push", start + 3, start + 4, layer="a", kind="push", step=step)
        trace.counter("device memory", "memory", start + 1, bytes=100 * step)
    trace.write(folder / "trace.json")
    return read_trace(folder / "trace.json")


def test_spans_come_back_with_track_kind_layer_step_and_seconds(tmp_path: Path) -> None:
    span = three_steps(tmp_path).spans[1]
    assert (span.track, span.kind, span.layer, span.step) == (Track.COMPUTE, Kind.BACKWARD, "a", 4)
    assert span.interval == pytest.approx((10.0, 13.0))


@pytest.mark.parametrize(
    ("step", "window"), [(4, (9.0, 14.0)), (5, (14.0, 18.0)), (6, (18.0, 22.0))]
)
def test_a_step_runs_to_the_first_compute_of_the_next(
    tmp_path: Path, step: int, window: tuple[float, float]
) -> None:
    assert three_steps(tmp_path).select(step).window == pytest.approx(window)


def test_prefetch_for_the_next_step_counts_where_it_happens(tmp_path: Path) -> None:
    spans = three_steps(tmp_path).select(5).spans
    assert {(span.track, span.step) for span in spans} == {
        (Track.COMPUTE, 5),
        (Track.FETCH, 6),
        (Track.PUSH, 5),
    }


def test_the_last_whole_step_is_chosen_by_default(tmp_path: Path) -> None:
    assert three_steps(tmp_path).select().step == 5


def test_memory_holds_the_last_sample_before_the_step(tmp_path: Path) -> None:
    memory = three_steps(tmp_path).select(5).memory
    assert [num_bytes for _, num_bytes in memory] == [400, 500]


def test_an_untraced_step_is_refused_with_the_traced_ones(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"asked for step 9, traced steps: 4, 5, 6"):
        three_steps(tmp_path).select(9)


def test_an_empty_trace_has_no_step_to_show(tmp_path: Path) -> None:
    Trace().write(tmp_path / "trace.json")
    with pytest.raises(OpenwaferError, match=r"asked for a step, traced steps: none"):
        read_trace(tmp_path / "trace.json").select()


def test_other_tracks_are_left_out(tmp_path: Path) -> None:
    trace = Trace()
    trace.span("tokenize", "data", 0.0, 1.0)
    trace.counter("loss", "loss", 0.5, value=3.0)
    trace.write(tmp_path / "trace.json")
    assert read_trace(tmp_path / "trace.json") == RunTrace(str(tmp_path / "trace.json"), (), ())


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({"layer": "a", "kind": "forward"}, r"traceEvents\[3\]: args: missing key 'step'"),
        (
            {"layer": "a", "kind": "sideways", "step": 0},
            r"traceEvents\[3\]: args\.kind: invalid enum value 'sideways'",
        ),
    ],
)
def test_a_span_that_breaks_the_contract_is_named(
    tmp_path: Path, args: dict[str, str | int], complaint: str
) -> None:
    trace = Trace()
    trace.span("x", "compute", 0.0, 1.0, **args)
    trace.write(tmp_path / "trace.json")
    with pytest.raises(OpenwaferError, match=complaint):
        read_trace(tmp_path / "trace.json")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"traceEvents": []}, "expected format 'openwafer-trace' version 1, found None"),
        (
            {"otherData": {"format": "openwafer-trace", "version": 1}, "traceEvents": {}},
            "expected a list of objects under the key 'traceEvents'",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_refused(
    tmp_path: Path, content: dict[str, object], complaint: str
) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(content))
    with pytest.raises(OpenwaferError, match=complaint):
        read_trace(tmp_path / "trace.json")
