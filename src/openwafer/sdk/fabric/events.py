"""What a machine notes of a run as it goes: for the host, and for a record of what happened.

All events have the same six words; :data:`EVENT` names them. Some are told to the host in any case.
The others are noted where something begins, ends, goes in or comes out, of PEs that are looked at:
:func:`is_noted` asks that where it happens, and :func:`note` looks at rows, cycles and colors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled, inlined
from openwafer.sdk.fabric.state import Array, State

EVENT: Final = np.dtype(
    [(name, np.int64) for name in ("kind", "cycle", "pe", "where", "number", "data")]
)
"""Words of an event, as E_KIND and those behind it number them."""
Rows: TypeAlias = NDArray[np.void]
"""Events, shape (n,), of :data:`EVENT`."""
_Words = TypeVar("_Words", int, Array)
"""A word of one event, or that of many."""


class EventKind(IntEnum):
    """What has happened. In brackets: what an event says beside cycle and PE."""

    LANDING = w.E_LANDING
    """A wavelet landed at a router (color, link, 33 bits; directions it goes, color it came on)."""
    SINK = w.E_SINK
    """A wavelet left a core to the host (color, queue, its word)."""
    PRINT = w.E_PRINT
    """Characters for the log (how many)."""
    LOST = w.E_LOST
    """A wavelet left the rectangle (color, link)."""
    FINDING = w.E_FINDING
    """A mistake of the program was found (slot, place, its kind)."""
    SENT = w.E_SENT
    """A wavelet was put into an output queue (color, queue, its 33 bits)."""
    LEFT = w.E_LEFT
    """A wavelet left its output queue to the router (color, queue, its 33 bits)."""
    ENTERED = w.E_ENTERED
    """A wavelet came into an input queue (color, queue, a link that is the ramp or the host)."""
    TAKEN = w.E_TAKEN
    """A wavelet was taken from an input queue (color, queue, its 33 bits)."""
    FILTERED = w.E_FILTERED
    """A filter kept a wavelet out of the core (color, its 33 bits)."""
    SWITCH = w.E_SWITCH
    """A color got another configuration (color; its switch position, and the one before)."""
    READY = w.E_READY
    """A local task may run (its id; the cause, and its slot where it is an operation)."""
    UNBLOCKED = w.E_UNBLOCKED
    """An operation took a block away (the target; slot)."""
    CHOSEN = w.E_CHOSEN
    """A task was chosen (its entry; the queue of its wavelet, or its place in the ring)."""
    TASK = w.E_TASK
    """The code of a task begins (its entry)."""
    OWN = w.E_OWN
    """What code did by itself since its last event (a state of the account, and its cycles)."""
    REQUEST = w.E_REQUEST
    """Code asks for an operation, which may have to wait for a microthread (its code; place)."""
    OPERATION = w.E_OPERATION
    """An operation begins (slot, place, its code, elements; queue of its fabric input; color and
    queue of its output; cycles between beats, and those in which reads of memory take turns)."""
    OPERATION_END = w.E_OPERATION_END
    """An operation had its last beat (slot, place; its code and elements)."""
    TASK_END = w.E_TASK_END
    """The code of a task has ended (its entry)."""
    COMMAND_END = w.E_COMMAND_END
    """A PE has ended the host's command, and opened its stream."""
    NOWHERE = w.E_NOWHERE
    """A wavelet vanished at a router: it landed on no color of its pair, or, beside its landing,
    its route has no output (color, link, which of the two, its 33 bits)."""
    HOST = 23
    """An operation of the host begins (its number in the host's order, and what it is)."""
    HOST_END = 24
    """An operation of the host has ended."""
    END = 25
    """The record ends (1 where the run was cut short by an error or its user)."""


MOST_OF_PE: Final = 24
"""Events that a PE may note in a cycle."""
_FIELD_MASK: Final = 255
_COLOR_AND_LINK: Final = (1 << w.QUEUE_FIELD_SHIFT) - 1
_KIND_BITS: Final = 5
_SPAN_BITS: Final = 21
"""Of cycles that fit beside a PE's number of 21 bits, a kind, a color and a link."""
_DRAINED: Final = 1 << 17
"""Events of a band after which a machine that is recorded stops for the host to take them."""


@dataclass(frozen=True)
class Scope:
    """What a record has of a run.

    Attributes:
        rectangle: x, y, columns and rows of the PEs; None is all of them.
        cycles: the first and the last one; None is all of them.
        colors: of what concerns a color, those; None is all of them.
    """

    rectangle: tuple[int, int, int, int] | None = None
    cycles: tuple[int, int] | None = None
    colors: tuple[int, ...] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return self == Scope()

    def rectangle_of(self, width: int, height: int) -> tuple[int, int, int, int]:
        """The rectangle of PEs in a machine of a size. Raises OpenwaferError outside of it."""
        x, y, columns, rows = self.rectangle or (0, 0, width, height)
        if not (0 <= x < x + columns <= width and 0 <= y < y + rows <= height):
            raise error(
                "record-rectangle",
                f"the rectangle of {columns} x {rows} PEs at ({x}, {y}) lies outside of the"
                f" {width} x {height} PEs",
                help="give x, y, columns and rows, which count from the north-west PE",
            )
        return x, y, columns, rows

    @property
    def color_mask(self) -> int:
        """A bit for each color. Raises OpenwaferError for one that there is not."""
        colors = range(w.COLORS) if self.colors is None else self.colors
        for color in colors:
            if not 0 <= color < w.COLORS:
                raise error("record-color", f"there is no color {color}", help="colors are 0 to 23")
        return sum(1 << color for color in set(colors))


def look_at(states: Sequence[Array], scope: Scope | None, *, has_landings: bool) -> None:
    """Let a machine note what a scope has, and landings of all PEs for the host.

    Raises OpenwaferError where the scope has more PEs than there is room for.
    """
    first = states[0]
    width, height = int(first[w.G_WIDTH]), int(first[w.G_HEIGHT])
    x, y, columns, rows = (0, 0, width, height)
    if scope is not None:
        x, y, columns, rows = scope.rectangle_of(width, height)
        _check_room(first, columns * rows)
        begin, last = scope.cycles or (0, w.NEVER)
        mask = scope.color_mask
    if scope is None or has_landings:
        x, y, columns, rows, begin, last = 0, 0, width, height, 0, w.NEVER
        mask = w.COLORS_MASK
    first[w.G_LOG] = (
        w.LOG_LANDINGS * has_landings
        | w.LOG_ALL * (scope is not None)
        | y << w.LOG_TOP
        | y + rows << w.LOG_BOTTOM
        | mask << w.LOG_COLORS
    )
    first[w.G_LOG_BEGIN], first[w.G_LOG_LAST] = begin, last
    is_on = has_landings or scope is not None
    first[w.G_LOG_FIRST] = x * height + y if is_on else w.NEVER
    first[w.G_LOG_END] = (x + columns - 1) * height + y + rows
    if scope is not None:
        first[w.G_EVENT_LIMIT] = min(int(first[w.G_EVENT_LIMIT]), _DRAINED)


def _check_room(state: Array, num_pes: int) -> None:
    """Refuse more PEs than can note all that happens to them in one cycle."""
    most = 3 * int(state[w.G_EVENT_LIMIT]) // MOST_OF_PE
    if num_pes > most:
        raise error(
            "record-too-large",
            f"a record of {num_pes:,} PEs: there is room for the events of {most:,} in a cycle",
            help="record a rectangle of them: RecordOptions(path, rectangle=(x, y, columns, rows))",
        )


def is_for_host(kinds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which kinds of events are told to the host in any case, landings where it asks for them."""
    told: NDArray[np.bool_] = (kinds <= EventKind.FINDING) | (kinds == EventKind.NOWHERE)
    return told


def rows_of(state: Array) -> Rows:
    """A copy of what a band has noted."""
    end = w.EVENT + int(state[w.G_EVENTS]) * w.EVENT_WORDS
    return state[w.EVENT : end].copy().view(EVENT)


def _field(word: _Words, shift: int) -> _Words:
    """A field of a word, which is 1 more than what it says; -1 for none."""
    return (word >> shift & _FIELD_MASK) - 1


def color_and_link(where: _Words) -> tuple[_Words, _Words]:
    """Color and direction that E_WHERE says, -1 for none."""
    return _field(where, 0), _field(where, w.LINK_SHIFT)


def slot_and_place(where: _Words) -> tuple[_Words, _Words]:
    """Slot and place in the source that E_WHERE says, -1 for none."""
    return _field(where, w.SLOT_FIELD_SHIFT), (where >> w.PLACE_FIELD_SHIFT) - 1


def columns_of(rows: Rows, height: int) -> dict[str, NDArray[np.int64]]:
    """Events in the order of cycle, PE and kind, what their words say apart; -1 is none.

    Args:
        rows: shape (n,).
        height: rows of PEs of the machine.
    """
    words = np.ascontiguousarray(rows.view(np.int64).reshape(-1, w.EVENT_WORDS).T)
    kind, cycle, pe, where, number, data = words[:, _order(words)]
    is_pe, is_operation = pe >= 0, kind == EventKind.OPERATION
    has_more = is_operation | (kind == EventKind.LANDING)
    color, link = color_and_link(where)
    slot, place = slot_and_place(where)
    return {
        "cycle": cycle,
        "x": np.where(is_pe, pe // height, -1),
        "y": np.where(is_pe, pe % height, -1),
        "kind": kind,
        "color": color,
        "link": link,
        "queue": _field(where, w.QUEUE_FIELD_SHIFT),
        "slot": slot,
        "place": place,
        "number": np.where(has_more, number & _FIELD_MASK, number),
        "data": data,
        "other_color": np.where(has_more, _field(number, w.OTHER_COLOR_SHIFT), -1),
        "other_queue": np.where(is_operation, _field(number, w.OTHER_QUEUE_SHIFT), -1),
        "gap": np.where(is_operation, number >> w.GAP_SHIFT & w.MOST_GAP, 0),
        "turns": np.where(is_operation, number >> w.TURNS_SHIFT, 0),
    }


def _order(words: Array) -> Array:
    """The order of cycle, PE, kind, color and link; else events stay as they were noted."""
    kind, cycle, pe, where, _, _ = words
    low = ((pe + 1) << _KIND_BITS | kind) << w.QUEUE_FIELD_SHIFT | where & _COLOR_AND_LINK
    span = cycle - cycle.min(initial=w.NEVER)
    if span.max(initial=0) >> _SPAN_BITS:
        return np.lexsort((low, cycle))
    # One number for all sorts in an eighth of the time.
    return np.argsort(span << (63 - _SPAN_BITS) | low, kind="stable")


def event_of(kind: EventKind, cycle: int, number: int, data: int) -> Rows:
    """An event of no PE, shape (1,)."""
    return np.array([(kind, cycle, -1, 0, number, data)], EVENT)


@inlined
def of_color(color: int) -> int:
    """The part of E_WHERE that says a color; the others are added to it."""
    return color + 1


@inlined
def of_link(link: int) -> int:
    """That says a direction."""
    return (link + 1) << w.LINK_SHIFT


@inlined
def of_queue(queue: int) -> int:
    """That says a queue."""
    return (queue + 1) << w.QUEUE_FIELD_SHIFT


@inlined
def of_slot(slot: int) -> int:
    """That says the slot of a thread."""
    return (slot + 1) << w.SLOT_FIELD_SHIFT


@inlined
def of_place(place: int) -> int:
    """That says a place in the source."""
    return (place + 1) << w.PLACE_FIELD_SHIFT


@compiled
def tell(s: State, kind: int, pe: int, where: int, number: int, data: int) -> int:
    """Note an event in any case; its row. The main loop stops for it before the list is full."""
    row = w.EVENT + s[w.G_EVENTS] * w.EVENT_WORDS
    s[row + w.E_KIND] = kind
    s[row + w.E_CYCLE] = s[w.G_NOW]
    s[row + w.E_PE] = pe
    s[row + w.E_WHERE] = where
    s[row + w.E_NUMBER] = number
    s[row + w.E_DATA] = data
    s[w.G_EVENTS] += 1
    return row


@inlined
def is_noted(s: State, pe: int) -> bool:
    """Whether a PE is looked at; :func:`note` asks the rest."""
    return s[w.G_LOG_FIRST] <= pe < s[w.G_LOG_END]


@compiled
def note(s: State, kind: int, pe: int, where: int, number: int, data: int) -> int:
    """Note an event of a PE that is looked at, if its kind, row, cycle and color are.

    Gives its row; where it is left out, the one that the next event takes.
    """
    log, now, color = s[w.G_LOG], s[w.G_NOW], (where & 255) - 1
    is_in = log & (w.LOG_ALL | (w.LOG_LANDINGS if kind == w.E_LANDING else 0)) != 0
    is_in = is_in and s[w.G_LOG_BEGIN] <= now <= s[w.G_LOG_LAST]
    if color >= 0:
        is_in = is_in and (log >> (w.LOG_COLORS + color)) & 1 != 0
    y = pe % s[w.G_HEIGHT]
    top, bottom = (log >> w.LOG_TOP) & w.LOG_ROWS_MASK, (log >> w.LOG_BOTTOM) & w.LOG_ROWS_MASK
    if is_in and top <= y < bottom:
        return tell(s, kind, pe, where, number, data)
    return w.EVENT + s[w.G_EVENTS] * w.EVENT_WORDS
