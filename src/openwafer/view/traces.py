"""A trace in Chrome's format as columns: each track stands in a PE's place."""

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from openwafer.diagnostics import OpenwaferError, error
from openwafer.view.columns import Columns, sorted_by


class _Event(msgspec.Struct):
    """The fields of an event that are shown."""

    ph: str
    tid: int | str = 0
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - a key of the format


_PIECE: Final = 200


def columns_of_trace(path: Path, title: str = "") -> Columns:
    """A trace, such as `trace.json` of a training run; times are microseconds.

    Args:
        path: the file.
        title: for people; by default the name of the file.

    Raises OpenwaferError for what is no trace.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Trace)
    except (msgspec.MsgspecError, UnicodeDecodeError) as cause:
        raise _foreign(path, str(cause)) from cause
    spans = [one for one in found.traceEvents if one.ph == "X"]
    if not spans:
        raise _foreign(path, f"none of its {len(found.traceEvents):,} events is a span (ph: X)")
    tracks = {
        one.tid: str(one.args.get("name", one.tid))
        for one in found.traceEvents
        if one.ph == "M" and one.name == "thread_name"
    }
    for one in spans:
        tracks.setdefault(one.tid, str(one.tid))
    numbers = {tid: number for number, tid in enumerate(tracks)}
    names = sorted({one.name for one in spans})
    known = {name: number for number, name in enumerate(names)}
    begin = np.array([one.ts for one in spans])
    origin = float(begin.min())
    end = begin + np.array([one.dur for one in spans])
    pe = np.array([numbers[one.tid] for one in spans])
    order, first = sorted_by(pe, len(tracks), begin, -end)
    head = {
        "kind": "trace",
        "title": title or path.name,
        "cycles": float(end.max()) - origin,
        "tracks": list(tracks.values()),
        "names": names,
        "width": len(tracks),
        "height": 1,
        "details": [_detail(spans[one].args) for one in order.tolist()],
    }
    arrays = {
        "span.first": first,
        "span.begin": (begin - origin)[order],
        "span.end": (end - origin)[order],
        "span.name": np.array([known[one.name] for one in spans])[order],
        "span.thread": np.zeros(len(spans), np.int64),
    }
    return Columns(head, arrays)


def _detail(given: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in given.items())[:_PIECE]


def _foreign(path: Path, told: str) -> OpenwaferError:
    return error(
        "view-no-trace",
        f"{path} is no trace in Chrome's format: {told}",
        help="name the trace.json of a training run, or one that `openwafer csl timeline` wrote",
    )
