"""The trace of a run, read back as spans of known tracks, one step at a time.

`openwafer.trace` writes Chrome trace JSON; this reads the part that a training step uses.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import OpenwaferError, error
from openwafer.trace import FORMAT, VERSION
from openwafer.training.metrics.intervals import Interval
from openwafer.training.metrics.json_records import (
    check_format,
    corrupt,
    parse_json,
    parse_record,
    read_text,
)

MEMORY_COUNTER = "device memory"
_MICROSECOND = 1e-6

MemorySample = tuple[float, float]


class Track(StrEnum):
    """The rows of a training trace, in the order of drawing."""

    COMPUTE = "compute"
    FETCH = "fetch"
    PUSH = "push"
    UPDATE = "update"
    DISK_READ = "disk read"
    DISK_WRITE = "disk write"


class Kind(StrEnum):
    """The kinds of work in a span."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    FETCH = "fetch"
    PUSH = "push"
    UPDATE = "update"
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True)
class TraceSpan:
    """One piece of work on one layer; times in seconds on the clock of the trace."""

    track: Track
    kind: Kind
    layer: str
    step: int
    interval: Interval


@dataclass(frozen=True)
class StepTrace:
    """One step: its window, every span that touches it, and the device's memory within it.

    `memory` holds (seconds, bytes) at each change, and the last change before the window.
    """

    step: int
    window: Interval
    spans: tuple[TraceSpan, ...]
    memory: tuple[MemorySample, ...]

    @property
    def window_seconds(self) -> float:
        return self.window[1] - self.window[0]


@dataclass(frozen=True)
class RunTrace:
    """All spans of a trace file and its samples of device memory, each in order of time."""

    origin: str
    spans: tuple[TraceSpan, ...]
    memory: tuple[MemorySample, ...]

    def select(self, step: int | None = None) -> StepTrace:
        """One step; without `step` the last whose successor was traced too, else the last.

        A step runs from its first compute span to the first of the next step; at the ends of a
        trace, from its first span on any track, or to its last. Steps in a row so share out the
        wall clock without a rest, and prefetch for a step counts in the step where it happens.

        Raises `OpenwaferError` (trace-step-missing) naming the steps there are.
        """
        starts = self._compute_starts()
        if step is None and starts:
            step = max([known for known in starts if known + 1 in starts] or starts)
        if step is None or step not in starts:
            raise trace_step_missing(self.origin, step, starts)
        window = self._window(step, starts)
        spans = tuple(span for span in self.spans if _touches(span.interval, window))
        return StepTrace(step, window, spans, _during(self.memory, window))

    def _compute_starts(self) -> Mapping[int, float]:
        starts: dict[int, float] = {}
        for span in self.spans:
            if span.track is Track.COMPUTE:
                starts.setdefault(span.step, span.interval[0])
        return starts

    def _window(self, step: int, starts: Mapping[int, float]) -> Interval:
        own = [span.interval for span in self.spans if span.step == step]
        begin = starts[step] if step - 1 in starts else own[0][0]
        end = starts[step + 1] if step + 1 in starts else max(end for _, end in own)
        return begin, end


def trace_step_missing(origin: str, step: int | None, traced: Iterable[int]) -> OpenwaferError:
    """The error for a step that was not traced; without `step`, for a trace of no step."""
    known = ", ".join(map(str, sorted(traced))) or "none"
    wanted = "a step" if step is None else f"step {step}"
    return error(
        "trace-step-missing",
        f"{origin}: asked for {wanted}, traced steps: {known}",
        help="ask for one of the traced steps, or for none in particular; the config's "
        "trace_steps are traced, where weights stream",
    )


def read_trace(path: PathLike) -> RunTrace:
    """Read a trace file; spans on tracks other than `Track` are left out.

    Raises `OpenwaferError`: run-file-missing, or run-file-corrupt with the event's index.
    """
    path = path_of(path, "path")
    events = _list_events(path)
    tracks = _name_tracks(events)
    spans, memory = [], []
    for origin, event in events:
        track = tracks.get((event.get("pid"), event.get("tid")))
        if event.get("ph") == "X" and track is not None:
            spans.append(_parse_span(event, track, origin))
        elif event.get("ph") == "C" and event.get("name") == MEMORY_COUNTER:
            sample = parse_record(_CounterEvent, event, origin)
            memory.append((sample.ts * _MICROSECOND, sample.args.bytes))
    spans.sort(key=lambda span: span.interval)
    return RunTrace(str(path), tuple(spans), tuple(sorted(memory)))


_Event = Mapping[str, object]


@dataclass(frozen=True)
class _SpanArgs:
    layer: str
    kind: Kind
    step: int


@dataclass(frozen=True)
class _SpanEvent:
    ts: float
    dur: float
    args: _SpanArgs


@dataclass(frozen=True)
class _CounterArgs:
    bytes: float


@dataclass(frozen=True)
class _CounterEvent:
    ts: float
    args: _CounterArgs


@dataclass(frozen=True)
class _NameArgs:
    name: str


@dataclass(frozen=True)
class _NameEvent:
    pid: int
    tid: int
    args: _NameArgs


def _list_events(path: Path) -> list[tuple[str, _Event]]:
    trace = parse_json(read_text(path), str(path))
    mark = trace.get("otherData")
    check_format(mark if isinstance(mark, dict) else {}, FORMAT, VERSION, str(path))
    events = trace.get("traceEvents")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise corrupt(str(path), "expected a list of objects under the key 'traceEvents'")
    return [(f"{path}: traceEvents[{index}]", event) for index, event in enumerate(events)]


def _name_tracks(events: list[tuple[str, _Event]]) -> Mapping[tuple[object, object], Track]:
    names = [
        parse_record(_NameEvent, event, origin)
        for origin, event in events
        if event.get("ph") == "M" and event.get("name") == "thread_name"
    ]
    return {(n.pid, n.tid): Track(n.args.name) for n in names if n.args.name in list(Track)}


def _parse_span(event: _Event, track: Track, origin: str) -> TraceSpan:
    span = parse_record(_SpanEvent, event, origin)
    interval = span.ts * _MICROSECOND, (span.ts + span.dur) * _MICROSECOND
    return TraceSpan(track, span.args.kind, span.args.layer, span.args.step, interval)


def _touches(interval: Interval, window: Interval) -> bool:
    return interval[0] < window[1] and window[0] < interval[1]


def _during(memory: tuple[MemorySample, ...], window: Interval) -> tuple[MemorySample, ...]:
    before = [sample for sample in memory if sample[0] <= window[0]]
    return (*before[-1:], *(sample for sample in memory if window[0] < sample[0] <= window[1]))
