"""What became of each wavelet of a recorded run.

A wavelet has no name in the machine. But channels and queues are first in, first out: what leaves
one as number k is what came in as number k. So the events of a record, put side by side, say which
of them are of the same wavelet. One that goes several ways has several branches, with an end each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.fabric import EventKind
from openwafer.sdk.fabric.words import NO_COLOR
from openwafer.sdk.host import Events, Record

Numbers: TypeAlias = NDArray[np.int64]
_RAMP: Final = 4
_COLORS: Final = 24
_QUEUES: Final = 8
_LINKS: Final = 5
_CONTROL_BIT: Final = 1 << 32
_WORD: Final = _CONTROL_BIT - 1


class End(IntEnum):
    """How a branch of a wavelet ends."""

    CONSUMED = 0
    """A core took it."""
    FILTERED = 1
    """A filter kept it out of a core."""
    SUNK = 2
    """It went to the host, or it was a command whose router sends it nowhere."""
    LOST = 3
    """It left the rectangle, or vanished at a router; the run's reports tell."""
    STILL_THERE = 4
    """It was in a queue or a router when the record ended."""


@dataclass(frozen=True)
class Wavelets:
    """Branches of wavelets, by cycle and PE of their sending; arrays of the shape (n,), -1 is none.

    Attributes:
        wavelet: number of the wavelet; branches of one have the same.
        color: it has where the branch ends.
        from_x: column of the core that sent it; -1 where the host did.
        from_y: its row.
        sent: cycle at which it was put into the output queue, or came from the host: into the
            core's input queue, or through a port to a router.
        left: cycle at which it left the output queue.
        x: column of the PE at which the branch ends.
        y: its row.
        hops: links between routers on the way.
        arrived: cycle at which it came into the input queue of a core.
        consumed: cycle at which it was taken from there.
        end: an :class:`End`.
        is_control: whether it is a control wavelet.
        data: its 32 bits.
    """

    wavelet: Numbers
    color: Numbers
    from_x: Numbers
    from_y: Numbers
    sent: Numbers
    left: Numbers
    x: Numbers
    y: Numbers
    hops: Numbers
    arrived: Numbers
    consumed: Numbers
    end: Numbers
    is_control: NDArray[np.bool_]
    data: Numbers

    def __len__(self) -> int:
        return len(self.wavelet)

    @property
    def queued(self) -> Numbers:
        """Cycles in the input queue of those that were consumed; 0 for the others."""
        return np.where(self.consumed >= 0, self.consumed - self.arrived, 0)


class Stay(IntEnum):
    """How a wavelet fares at a router."""

    ACTIVE = 0
    """It went on at once."""
    DELAYED = 1
    """It waited, and meanwhile other colors had a link that it needed."""
    BACK_PRESSURED = 2
    """It waited although its links were free: what lies behind them took no more."""
    STILL_THERE = 3
    """It was there when the record ended, or ended there."""


@dataclass(frozen=True)
class Passages:
    """Wavelets at the routers that they pass, by PE and cycle; arrays of the shape (n,).

    Attributes:
        wavelet: its number, as :class:`Wavelets` has it.
        x: column of the router.
        y: its row.
        color: that it has there.
        link: side that it came from, :class:`~openwafer.sdk.program.routing.Direction`.
        outputs: mask of the directions in which it goes.
        landed: cycle at which it came.
        gone: cycle at which it came to the next router, core or host, the last of several; -1
            where it did not.
        stay: a :class:`Stay`.
        is_control: whether it is a control wavelet.
        data: its 32 bits.
    """

    wavelet: Numbers
    x: Numbers
    y: Numbers
    color: Numbers
    link: Numbers
    outputs: Numbers
    landed: Numbers
    gone: Numbers
    stay: Numbers
    is_control: NDArray[np.bool_]
    data: Numbers

    def __len__(self) -> int:
        return len(self.wavelet)


def wavelets(record: Record) -> Wavelets:
    """What became of each wavelet.

    Raises OpenwaferError for a record of a part of the run only, and for one that does not fit
    together.
    """
    return followed(record)[0]


def followed(record: Record) -> tuple[Wavelets, Passages]:
    """What became of each wavelet, and the routers on its ways.

    Raises OpenwaferError as :func:`wavelets`.
    """
    if not record.head.scope.is_whole:
        raise error(
            "record-partial",
            f"{record.path} has a part of the run, so where its wavelets come from is not known",
            help="record the whole rectangle, all cycles and all colors",
        )
    join = _Join(record)
    parts = join.branches()
    return _assembled(join, parts), _passages(join, sum(part.sent.size for part in parts))


@dataclass(frozen=True)
class _Branches:
    """Ends of wavelets; `sent` and `left` are indices among those events, -1 for none.

    Behind what left a queue are counted the landings of what came through a port.
    """

    end: Numbers
    pe: Numbers
    color: Numbers
    sent: Numbers
    left: Numbers
    hops: Numbers
    arrived: Numbers
    consumed: Numbers


class _Join:
    """Events of wavelets, put side by side."""

    def __init__(self, record: Record) -> None:
        self._path = record.path
        self.hop_cycles = GENERATIONS[Arch(record.head.arch)].timing.hop_cycles
        self.height, self._width = record.head.height, record.head.width
        kinds = EventKind.ENTERED, EventKind.TAKEN, EventKind.LANDING, EventKind.NOWHERE
        others = EventKind.SENT, EventKind.LEFT, EventKind.SINK, EventKind.FILTERED, EventKind.LOST
        events = record.events(*kinds, *others)
        self._span = int(events.cycle.max(initial=0)) + 1
        self.sent, self.left = events.of(EventKind.SENT), events.of(EventKind.LEFT)
        self.entered, self._taken = events.of(EventKind.ENTERED), events.of(EventKind.TAKEN)
        self.landings = events.of(EventKind.LANDING)
        nowhere = events.of(EventKind.NOWHERE)
        # The others have landed.
        self._nowhere = nowhere.take(nowhere.number == NO_COLOR)
        sinks = events.of(EventKind.SINK)
        self._sinks = sinks.take(sinks.link < 0)
        gone = np.isin(events.kind, (EventKind.FILTERED, EventKind.LOST))
        self._gone = events.take(gone | (events.kind == EventKind.SINK) & (events.link >= 0))
        self.sent_of_left = self._matched(self._in_queue(self.left), self._in_queue(self.sent))

    def branches(self) -> list[_Branches]:
        """All branches, by how they end."""
        landings, nowhere = self.landings, self._nowhere
        by_port, lost_at_port = self._is_by_port(landings), self._is_by_port(nowhere)
        moved, lost = (landings.link < _RAMP) & ~by_port, (nowhere.link < _RAMP) & ~lost_at_port
        entries = self.entered.link == _RAMP
        parts = landings.take(moved), nowhere.take(lost), self.entered.take(entries), self._gone
        nodes = np.split(self._nodes(parts), np.cumsum([len(part) for part in parts])[:-1])
        parents = np.arange(len(landings))
        parents[moved] = nodes[0]
        roots, hops = _roots(parents)
        own = self._left_at(landings, landings.link == _RAMP)
        own[by_port] = len(self.left) + np.flatnonzero(by_port)
        left = own[roots]
        self.origins, self.gone = left, np.full(len(landings), -1)
        np.maximum.at(self.gone, np.concatenate(nodes), np.concatenate([p.cycle for p in parts]))
        is_there = np.ones(len(landings), np.bool_)
        is_there[np.concatenate(nodes)] = False
        stays, ends = is_there & (landings.number != 0), landings.number == 0
        into_nowhere = self._left_at(nowhere, nowhere.link == _RAMP)
        into_nowhere[lost] = left[nodes[1]]
        hops_there = np.zeros(len(nowhere), np.int64)
        hops_there[lost] = hops[nodes[1]] + 1
        of_entries = np.full(len(self.entered), -1)
        of_entries[entries] = nodes[2]
        is_command = landings.data[ends] & _CONTROL_BIT != 0
        gone = np.select(
            [self._gone.kind == EventKind.LOST, self._gone.kind == EventKind.SINK],
            [End.LOST, End.SUNK],
            End.FILTERED,
        )
        return [
            self._of_entries(np.append(left, -1)[of_entries], np.append(hops, 0)[of_entries]),
            self._ended(self._gone, gone, left[nodes[3]], hops[nodes[3]]),
            self._ended(
                landings.take(ends),
                np.where(is_command, End.SUNK, End.LOST),
                *(left[ends], hops[ends]),
            ),
            self._ended(landings.take(stays), End.STILL_THERE, left[stays], hops[stays]),
            self._ended(nowhere, End.LOST, into_nowhere, hops_there),
            self._of_sinks(),
            self._of_queues(),
        ]

    def _is_by_port(self, arrivals: Events) -> NDArray[np.bool_]:
        """Which came over a link that ends at the rectangle's edge."""
        x, y, link = arrivals.x, arrivals.y, arrivals.link
        first, last = np.where(link < 2, x, y), np.where(link < 2, self._width, self.height) - 1
        # East and south are where the numbers of columns and rows end.
        ends: NDArray[np.bool_] = np.where((link == 1) | (link == 2), first == last, first == 0)
        return ends & (link < _RAMP)

    def of_origins(self, of_left: Numbers, of_landings: Numbers, origins: Numbers) -> Numbers:
        """What each wavelet's departure from a queue, or landing from a port, has; -1 for none."""
        found: Numbers = np.concatenate([of_left, of_landings, [-1]])[origins]
        return found

    def pe(self, events: Events) -> Numbers:
        """Their PEs by number."""
        return events.x.astype(np.int64) * self.height + events.y

    def _in_queue(self, events: Events) -> Numbers:
        return self.pe(events) * _QUEUES + events.queue

    def _in_channel(self, events: Events) -> Numbers:
        return self.pe(events) * _COLORS + events.color

    def _at(self, events: Events) -> Numbers:
        """PE and cycle as one number."""
        return self.pe(events) * self._span + events.cycle

    def _matched(self, keys: Numbers, others: Numbers) -> Numbers:
        """For the k-th of each key the index of the k-th other of that key."""
        found = partners(keys, others)
        if (found < 0).any():
            raise self._broken("more leaves a queue or a router than came into it")
        return found

    def _left_at(self, arrivals: Events, is_own: NDArray[np.bool_]) -> Numbers:
        """Which left its output queue, of arrivals from the own core; -1 for others.

        One leaves in a cycle.
        """
        order = np.argsort(self._at(self.left))
        known, wanted = self._at(self.left)[order], self._at(arrivals)[is_own]
        places = np.searchsorted(known, wanted)
        if not np.array_equal(np.append(known, -1)[places], wanted):
            raise self._broken("a wavelet came from a core that sent none")
        found = np.full(len(arrivals), -1)
        found[is_own] = order[places]
        return found

    def _nodes(self, parts: Sequence[Events]) -> Numbers:
        """The landing that each departure from a router is of.

        All that leaves a channel in a cycle is its first wavelet. `parts` are landings and what
        lands nowhere, whose sender lies on their link's side; then what stays at its PE.
        """
        near = [self._origin(part) for part in parts[:2]]
        own = [self._in_channel(part) for part in parts[2:]]
        channels = np.concatenate([*near, *own])
        cycles = np.concatenate([part.cycle for part in parts])
        bits = np.concatenate([_direction(part) for part in parts])
        _, first, group = np.unique(
            channels * self._span + cycles, return_index=True, return_inverse=True
        )
        kept = np.flatnonzero(self.landings.number != 0)
        nodes = kept[self._matched(channels[first], self._in_channel(self.landings)[kept])]
        outputs = np.zeros(first.size, np.int64)
        np.bitwise_or.at(outputs, group, bits)
        is_late = cycles[first] <= self.landings.cycle[nodes]
        if is_late.any() or (outputs != self.landings.number[nodes]).any():
            raise self._broken("a wavelet left a router otherwise than its color goes there")
        return nodes[group]

    def _origin(self, arrivals: Events) -> Numbers:
        """Channels that arrivals from other routers come from."""
        steps = np.array([-self.height, self.height, 1, -1])
        is_landing = arrivals.kind == EventKind.LANDING
        color = np.where(is_landing, arrivals.other_color, arrivals.color)
        near: Numbers = self.pe(arrivals) + steps[arrivals.link]
        return near * _COLORS + color

    def _of_entries(self, left: Numbers, hops: Numbers) -> _Branches:
        """Branches that came into a core."""
        entered, taken = self.entered, self._taken
        partner = partners(self._in_channel(entered), self._in_channel(taken))
        if np.count_nonzero(partner >= 0) != len(taken):
            raise self._broken("a core took more wavelets than came")
        ends = np.where(partner >= 0, End.CONSUMED, End.STILL_THERE)
        consumed = np.append(taken.cycle, -1)[partner]
        found = self._ended(entered, ends, left, hops)
        return replace(found, arrived=entered.cycle, consumed=consumed)

    def _of_sinks(self) -> _Branches:
        """Wavelets that went to the host."""
        left = np.flatnonzero(np.isin(self._at(self.left), self._at(self._sinks)))
        return self._ended(self.left.take(left), End.SUNK, left, np.zeros(left.size, np.int64))

    def _of_queues(self) -> _Branches:
        """Wavelets that have not left their output queue."""
        stays = np.ones(len(self.sent), np.bool_)
        stays[self.sent_of_left] = False
        none = np.full(np.count_nonzero(stays), -1)
        found = self._ended(self.sent.take(stays), End.STILL_THERE, none, np.zeros_like(none))
        return replace(found, sent=np.flatnonzero(stays))

    def _ended(self, last: Events, ends: Numbers | End, left: Numbers, hops: Numbers) -> _Branches:
        """Branches by their last events and the wavelets that left as number `left`."""
        none, color = np.full(len(last), -1), last.color.astype(np.int64)
        none_sent = np.full(len(self.landings), -1)
        sent = self.of_origins(self.sent_of_left, none_sent, left)
        ends = np.broadcast_to(ends, none.shape).astype(np.int64)
        return _Branches(ends, self.pe(last), color, sent, left, hops, none, none)

    def _broken(self, told: str) -> OpenwaferError:
        return error(
            "record-broken",
            f"{self._path} does not fit together: {told}",
            help="record the run again, and tell us if that is no help",
        )


def _assembled(join: _Join, parts: Sequence[_Branches]) -> Wavelets:
    """All branches in order; wavelets of the host have numbers behind those of cores."""
    rows = {
        one.name: np.concatenate([getattr(part, one.name) for part in parts])
        for one in fields(_Branches)
    }
    entered, sent = join.entered, rows["sent"]
    num, by_host = sent.size, sent < 0
    number = np.where(by_host, len(join.sent) + np.arange(num), sent)
    landings, origins = join.landings, rows["left"]
    no_landing, no_left = np.full(len(landings), -1), np.full(len(join.left), -1)
    # Branches of one wavelet have its landing from the port in common.
    roots = join.of_origins(no_left, np.arange(len(landings)), origins)
    number = np.where(roots >= 0, len(join.sent) + num + roots, number)
    first = np.append(entered.cycle, np.full(num - len(entered), -1))
    first = np.where(roots >= 0, np.append(landings.cycle, -1)[roots], first)
    cycle = np.where(by_host, first, np.append(join.sent.cycle, -1)[sent])
    sender = np.append(join.pe(join.sent), -1)[sent]
    data = np.where(
        roots >= 0, np.append(landings.data, 0)[roots], np.append(join.sent.data, 0)[sent]
    )
    order = np.lexsort((rows["pe"], number, sender, cycle))
    found = {
        "wavelet": number,
        "color": rows["color"],
        "from_x": np.where(by_host, -1, sender // join.height),
        "from_y": np.where(by_host, -1, sender % join.height),
        "sent": cycle,
        "left": join.of_origins(join.left.cycle, no_landing, origins),
        "x": rows["pe"] // join.height,
        "y": rows["pe"] % join.height,
        **{name: rows[name] for name in ("hops", "arrived", "consumed", "end")},
    }
    found |= {"is_control": data & _CONTROL_BIT != 0, "data": data & _WORD}
    return Wavelets(**{name: one[order] for name, one in found.items()})


def _passages(join: _Join, num_branches: int) -> Passages:
    """All landings, with what became of them there; numbers of wavelets as :func:`_assembled`."""
    landings, origins = join.landings, join.origins
    by_port = len(join.sent) + num_branches + np.arange(len(landings))
    pe, cycle = join.pe(landings), landings.cycle
    found = {
        "wavelet": join.of_origins(join.sent_of_left, by_port, origins),
        "x": landings.x.astype(np.int64),
        "y": landings.y.astype(np.int64),
        "color": landings.color.astype(np.int64),
        "link": landings.link.astype(np.int64),
        "outputs": landings.number.astype(np.int64),
        "landed": cycle,
        "gone": join.gone,
        "stay": _stays(join),
        "is_control": landings.data & _CONTROL_BIT != 0,
        "data": landings.data & _WORD,
    }
    order = np.lexsort((cycle, pe))
    return Passages(**{name: one[order] for name, one in found.items()})


def _stays(join: _Join) -> Numbers:
    """The :class:`Stay` of each landing."""
    landings, gone = join.landings, join.gone
    # The first cycle in which it can be at the next router.
    pe, first = join.pe(landings), landings.cycle + join.hop_cycles
    span = int(max(landings.cycle.max(initial=0), gone.max(initial=0))) + 2
    came = pe * _LINKS + landings.link
    by_all = np.sort(came * span + landings.cycle)
    by_color = np.sort((came * _COLORS + landings.color) * span + landings.cycle)

    def between(keys: Numbers, link: Numbers) -> Numbers:
        """How many of the keys of a link lie in the cycles in which each waited."""
        begin, end = link * span + first, link * span + np.maximum(gone, first)
        num: Numbers = np.searchsorted(keys, end) - np.searchsorted(keys, begin)
        return num

    is_delayed = np.zeros(len(landings), np.bool_)
    for side, step in enumerate((-join.height, join.height, 1, -1)):
        link = (pe + step) * _LINKS + (side ^ 1)
        others = between(by_all, link) - between(by_color, link * _COLORS + landings.color)
        is_delayed |= (landings.number >> side & 1 == 1) & (others > 0)
    waited = gone > first
    stays = np.select([is_delayed & waited, waited], [Stay.DELAYED, Stay.BACK_PRESSURED])
    return np.where(gone < 0, Stay.STILL_THERE, stays)


def _direction(departures: Events) -> Numbers:
    """A bit for the direction in which each leaves its router."""
    kind = departures.kind
    leaves = (kind == EventKind.LOST) | (kind == EventKind.SINK)
    towards = np.where(leaves, departures.link, _RAMP)
    is_arrival = (kind == EventKind.LANDING) | (kind == EventKind.NOWHERE)
    side = np.where(is_arrival, departures.link ^ 1, towards)
    return np.left_shift(1, side.astype(np.int64))


def _ranks(keys: Numbers) -> Numbers:
    """How many of the same key stand before each."""
    order = np.argsort(keys, kind="stable")
    ordered, places = keys[order], np.arange(keys.size)
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: keys.size]
    ranks = np.empty(keys.size, np.int64)
    ranks[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return ranks


def partners(keys: Numbers, others: Numbers) -> Numbers:
    """For the k-th of each key the index of the k-th other of that key; -1 where there is none."""
    most = max(keys.size, others.size, 1)
    wanted, given = keys * most + _ranks(keys), others * most + _ranks(others)
    order = np.argsort(given)
    places = np.searchsorted(given[order], wanted)
    is_found = np.append(given[order], -1)[places] == wanted
    return np.where(is_found, np.append(order, -1)[places], -1)


def _roots(parents: Numbers) -> tuple[Numbers, Numbers]:
    """The first ancestor of each, which is its own parent, and how many steps it is away."""
    depths = (parents != np.arange(parents.size)).astype(np.int64)
    while not np.array_equal(parents[parents], parents):
        depths = depths + depths[parents]
        parents = parents[parents]
    return parents, depths
