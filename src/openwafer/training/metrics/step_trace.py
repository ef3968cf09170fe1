"""The trace of a run, read back one step at a time, and how long the device computes of a step.

`openwafer.trace` writes Chrome trace JSON; this reads the part that a training step uses.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import OpenwaferError, error
from openwafer.trace import FORMAT, VERSION
from openwafer.training.metrics.json_records import (
    check_format,
    corrupt,
    parse_json,
    parse_record,
    read_text,
)

Interval = tuple[float, float]
Intervals = tuple[Interval, ...]


def union(intervals: Iterable[Interval], *, bridge_seconds: float = 0.0) -> Intervals:
    """The sorted disjoint intervals that cover the same time; empty ones vanish.

    Gaps of at most `bridge_seconds` are filled, which keeps a drawing of thousands of spans
    small without changing what the eye can see.
    """
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and start <= merged[-1][1] + bridge_seconds:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return tuple(merged)


def subtract(minuend: Intervals, subtrahend: Intervals) -> Intervals:
    """The time in `minuend` that is not in `subtrahend`; both sorted and disjoint."""
    starts = [start for start, _ in subtrahend]
    ends = [end for _, end in subtrahend]
    left: list[Interval] = []
    for start, end in minuend:
        holes = subtrahend[bisect_right(ends, start) : bisect_left(starts, end)]
        edges = [start, *(edge for hole in holes for edge in hole), end]
        left += zip(edges[::2], edges[1::2], strict=True)
    return tuple(interval for interval in left if interval[0] < interval[1])


def clip(intervals: Iterable[Interval], window: Interval) -> Intervals:
    """Each interval cut to `window`; those outside vanish, order is kept."""
    cut = ((max(start, window[0]), min(end, window[1])) for start, end in intervals)
    return tuple(interval for interval in cut if interval[0] < interval[1])


def total_seconds(intervals: Intervals) -> float:
    """Their summed length; the true covered time when they are disjoint."""
    return sum(end - start for start, end in intervals)


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


# Nearest to compute first: while a fetch copies, compute waits for it, not for a read beside it.
_CAUSES = (Track.FETCH, Track.PUSH, Track.UPDATE, Track.DISK_READ, Track.DISK_WRITE)


@dataclass(frozen=True)
class ComputeShare:
    """One step's wall time, split without a rest.

    `exposed_seconds` is the time in which the device does not compute, by what went on
    meanwhile: each moment counts for the first busy track of fetch, push, update, disk read and
    disk write. `unexplained_seconds` is time in which no track was busy.
    """

    window_seconds: float
    compute_seconds: float
    exposed_seconds: Mapping[Track, float]
    unexplained_seconds: float

    @property
    def share(self) -> float:
        return self.compute_seconds / self.window_seconds


def compute_share(trace: StepTrace) -> ComputeShare:
    """Split the wall time of one traced step."""
    busy = {track: busy_intervals(trace, track) for track in Track}
    idle = subtract((trace.window,), busy[Track.COMPUTE])
    exposed = {}
    for cause in _CAUSES:
        rest = subtract(idle, busy[cause])
        exposed[cause] = total_seconds(idle) - total_seconds(rest)
        idle = rest
    compute_seconds = total_seconds(busy[Track.COMPUTE])
    return ComputeShare(trace.window_seconds, compute_seconds, exposed, total_seconds(idle))


def busy_intervals(trace: StepTrace, track: Track) -> Intervals:
    """The union of a track's spans within the step's window."""
    spans = (span.interval for span in trace.spans if span.track is track)
    return union(clip(spans, trace.window))
