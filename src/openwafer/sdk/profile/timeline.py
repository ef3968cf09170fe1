"""A record of a run along the cycles: for Perfetto as a trace, for Surfer and GTKWave as VCD.

Both show of each PE the tasks of its main thread, the operations of its threads and the depths of
its queues; VCD also what lands at its router on each color.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import NUM_COLORS
from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE
from openwafer.sdk.fabric import EventKind
from openwafer.sdk.host import Events, Record
from openwafer.sdk.profile.model import slot_name
from openwafer.sdk.profile.wavelets import Numbers, Wavelets, partners
from openwafer.sdk.program.program import Program
from openwafer.trace import Trace

Array: TypeAlias = NDArray[np.integer[Any]]
CYCLE_SECONDS: Final = 1e-6
"""Of a trace, so that a viewer's microseconds are cycles."""
_WORD: Final = (1 << 32) - 1
_SLOTS: Final = 16
"""More than the threads of a PE, and none."""


@dataclass(frozen=True)
class Span:
    """A task, or an operation, of a PE.

    Attributes:
        thread: `tasks`, `main` for operations of the main thread, or `microthread 3`.
        begin: cycle.
        end: cycle behind it, or the record's end.
        place: line of the source; empty where it is not known.
        elements: of an operation.
    """

    x: int
    y: int
    thread: str
    name: str
    begin: int
    end: int
    place: str = ""
    elements: int = 0


@dataclass(frozen=True)
class Depth:
    """How many wavelets a queue, such as `input 2`, has from a cycle on."""

    x: int
    y: int
    queue: str
    cycle: int
    depth: int


@dataclass(frozen=True)
class Timeline:
    """What a record says of PEs along the cycles.

    Attributes:
        spans: by their begin.
        depths: of queues, by cycle.
        landings: at routers: x, y, color, cycle and the wavelet's 32 bits, by cycle.
        end: cycle of the record's end.
    """

    spans: tuple[Span, ...]
    depths: tuple[Depth, ...]
    landings: tuple[tuple[int, int, int, int, int], ...]
    end: int


def timeline(record: Record, program: Program) -> Timeline:
    """What a record has of the run of a program.

    Raises OpenwaferError where the record is damaged, or of another program.
    """
    record.require_program(program)
    landings = record.events(EventKind.LANDING)
    words = (landings.data & _WORD).tolist()
    places = (landings.x.tolist(), landings.y.tolist(), landings.color.tolist())
    spans = [*_tasks(record, program), *_operations(record, program)]
    return Timeline(
        tuple(sorted(spans, key=lambda one: (one.begin, one.x, one.y, one.thread))),
        tuple(_depths(record)),
        tuple(zip(*places, landings.cycle.tolist(), words, strict=True)),
        end_of(record),
    )


def end_of(record: Record) -> int:
    """The cycle of a record's end; of one that was cut off, of its last event."""
    ends = record.events(EventKind.END).cycle
    return int(ends[-1]) if ends.size else int(record.events().cycle.max(initial=0))


@dataclass(frozen=True)
class Spans:
    """Tasks, or operations, by cycle and PE of their begin; arrays of the shape (n,).

    Attributes:
        events: what begins them.
        end: cycle behind each, or the record's end.
    """

    events: Events
    end: Numbers

    def __len__(self) -> int:
        return len(self.end)


def tasks_of(record: Record) -> Spans:
    """Tasks of main threads; `number` is an entry of the PE's image."""
    return _spans(record, EventKind.TASK, EventKind.TASK_END)


def operations_of(record: Record) -> Spans:
    """Operations of all threads; `number` is the code of a vector operation."""
    return _spans(record, EventKind.OPERATION, EventKind.OPERATION_END)


def _spans(record: Record, begin: EventKind, end: EventKind) -> Spans:
    """What one thread does is one behind the other, so its first end is that of its first begin."""
    begins, ends = record.events(begin), record.events(end)
    last = end_of(record)
    found = partners(*(_threads(one, record.head.height) for one in (begins, ends)))
    return Spans(begins, np.append(ends.cycle, last)[found])


def senders_of(operations: Spans, found: Wavelets, height: int) -> Numbers:
    """The operation that has sent each wavelet, by its number; -1 where none is known.

    Args:
        operations: of the record.
        found: its wavelets.
        height: rows of PEs.
    """
    begun = operations.events
    sending = np.flatnonzero(begun.other_color >= 0)
    channel = _channel(begun.x, begun.y, begun.other_color, height)[sending]
    last = max(operations.end.max(initial=0), found.sent.max(initial=0))
    span = int(last) + 1
    keys = channel * span + begun.cycle[sending]
    order = np.argsort(keys, kind="stable")
    wanted = _channel(found.from_x, found.from_y, found.color, height)
    places = np.searchsorted(keys[order], wanted * span + found.sent, side="right") - 1
    row = np.append(sending[order], -1)[places]
    is_own = (places >= 0) & (found.from_x >= 0) & (np.append(channel[order], -1)[places] == wanted)
    # Its last beats may still leave when the record says that it has ended.
    is_own &= np.append(operations.end, -1)[row] >= found.sent
    return np.where(is_own, row, -1)


def _channel(x: Array, y: Array, color: Array, height: int) -> Numbers:
    found: Numbers = (x.astype(np.int64) * height + y) * NUM_COLORS + color
    return found


def _threads(events: Events, height: int) -> Numbers:
    """The thread of each as one number."""
    pe = events.x.astype(np.int64) * height + events.y
    return pe * _SLOTS + events.slot + 1


def _tasks(record: Record, program: Program) -> Iterator[Span]:
    found = tasks_of(record)
    begins = found.events
    for index, last in enumerate(found.end.tolist()):
        x, y = int(begins.x[index]), int(begins.y[index])
        image = program.images[program.image_of[y, x]]
        name = image.entries[begins.number[index]].function
        yield Span(x, y, "tasks", name, int(begins.cycle[index]), last)


def _operations(record: Record, program: Program) -> Iterator[Span]:
    found = operations_of(record)
    begins = found.events
    for index, last in enumerate(found.end.tolist()):
        yield Span(
            int(begins.x[index]),
            int(begins.y[index]),
            slot_name(int(begins.slot[index])),
            f"@{VECTOR_OPS_BY_CODE[int(begins.number[index])].name}",
            int(begins.cycle[index]),
            last,
            program.text_of_place(int(begins.place[index])),
            int(begins.data[index]),
        )


_STEPS: Final[Mapping[EventKind, tuple[str, int]]] = MappingProxyType(
    {
        EventKind.SENT: ("output", 1),
        EventKind.LEFT: ("output", -1),
        EventKind.ENTERED: ("input", 1),
        EventKind.TAKEN: ("input", -1),
    }
)


def _depths(record: Record) -> Iterator[Depth]:
    """The depth of each queue behind each cycle that changes it."""
    events = record.events(*_STEPS)
    levels: dict[tuple[int, int, str], int] = defaultdict(int)
    told: dict[tuple[int, int, str], int] = defaultdict(int)
    changed: dict[tuple[int, int, str], None] = {}
    cycles = events.cycle.tolist()
    for index, cycle in enumerate(cycles):
        side, step = _STEPS[EventKind(events.kind[index])]
        key = int(events.x[index]), int(events.y[index]), f"{side} {events.queue[index]}"
        levels[key] += step
        changed[key] = None
        if index + 1 == len(cycles) or cycles[index + 1] != cycle:
            for own in changed:
                if levels[own] != told[own]:
                    told[own] = levels[own]
                    yield Depth(*own, cycle, levels[own])
            changed.clear()


def trace_of(found: Timeline) -> Trace:
    """A trace for Perfetto: a track for each thread of a PE, a counter for each queue."""
    trace = Trace()
    for one in found.spans:
        name = f"PE ({one.x}, {one.y}) {one.thread}"
        begin, end = one.begin * CYCLE_SECONDS, one.end * CYCLE_SECONDS
        if one.thread == "tasks":
            trace.span(one.name, name, begin, end)
        else:
            trace.span(one.name, name, begin, end, elements=one.elements, place=one.place)
    for depth in found.depths:
        name = f"PE ({depth.x}, {depth.y}) {depth.queue}"
        trace.counter(name, name, depth.cycle * CYCLE_SECONDS, wavelets=depth.depth)
    return trace
