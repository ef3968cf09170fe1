"""Time-stamped events of training steps and of fabric cycles, in Chrome's trace format.

The file opens in Perfetto and in chrome://tracing. Events follow Google's "Trace Event Format"
(2016). Times are seconds here and microseconds in the file.
"""

import json
import threading
from pathlib import Path

from openwafer import atomic_file

FORMAT = "openwafer-trace"
VERSION = 1

Argument = int | float | str | bool | None
_Event = dict[str, object]
_PROCESS = 1


class Trace:
    """Spans, counters and instants on named tracks, in the order they were added.

    A track appears where it is first used. Spans of one track lie apart or nest; viewers drop a
    span that overlaps another in part. Safe to add to from several threads.
    """

    def __init__(self) -> None:
        self._events: list[_Event] = []
        self._tracks: dict[str, int] = {}
        self._lock = threading.Lock()

    def span(
        self,
        name: str,
        track: str,
        start_seconds: float,
        end_seconds: float,
        **args: Argument,
    ) -> None:
        """Add work that ran from `start_seconds` to `end_seconds`; ValueError if it ends first."""
        if end_seconds < start_seconds:
            raise ValueError(f"span '{name}' ends at {end_seconds} s, before {start_seconds} s")
        duration = _microseconds(end_seconds) - _microseconds(start_seconds)
        self._add("X", name, track, start_seconds, dur=round(duration, 3), args=args)

    def counter(self, name: str, track: str, time_seconds: float, **values: float) -> None:
        """Add the values that hold from `time_seconds` on, each a line of one chart."""
        self._add("C", name, track, time_seconds, args=values)

    def instant(self, name: str, track: str, time_seconds: float, **args: Argument) -> None:
        """Add a moment without duration, shown on its track."""
        self._add("i", name, track, time_seconds, s="t", args=args)

    def to_json(self) -> str:
        """Return the whole trace, one event a line; ValueError for a number that is not finite."""
        events = [_metadata("process_name", 0, {"name": "openwafer"})]
        for track, thread in list(self._tracks.items()):
            events.append(_metadata("thread_name", thread, {"name": track}))
            events.append(_metadata("thread_sort_index", thread, {"sort_index": thread}))
        lines = ",\n".join(json.dumps(e, allow_nan=False) for e in [*events, *self._events])
        head = json.dumps({"displayTimeUnit": "ms", "otherData": _FORMAT_MARK})
        return f'{head[:-1]}, "traceEvents": [\n{lines}\n]}}\n'

    def write(self, path: Path) -> None:
        """Write the trace to `path` atomically."""
        atomic_file.write_text(path, self.to_json())

    def _add(
        self, phase: str, name: str, track: str, time_seconds: float, **fields: object
    ) -> None:
        with self._lock:
            thread = self._tracks.setdefault(track, len(self._tracks) + 1)
        place = {"ph": phase, "pid": _PROCESS, "tid": thread, "name": name}
        self._events.append({**place, "ts": _microseconds(time_seconds), **fields})


_FORMAT_MARK = {"format": FORMAT, "version": VERSION}


def _metadata(name: str, thread: int, args: dict[str, str | int]) -> _Event:
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": name, "args": args}


def _microseconds(seconds: float) -> float:
    # Nanoseconds are the finest that clocks give; more digits only make the file larger.
    return round(seconds * 1e6, 3)
