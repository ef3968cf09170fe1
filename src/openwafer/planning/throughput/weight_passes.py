"""When weights come to several systems, and when these have computed with them.

A chunk of weights leaves their owner and passes from system to system, each as far behind as it
takes from the owner to there. Weights of one owner follow each other; those of several share the
links that they have in common, which are all but one of a ring of three and more.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.planning.throughput.joined import Joined

Times: TypeAlias = NDArray[np.float64]
"""Seconds, by system."""
PAIR = 2


@dataclass(frozen=True)
class Sum:
    """The sum of a layer's gradients over all systems.

    Attributes:
        seconds: in which a system adds and sends it, and no other.
        link_share: of that time, in which it sends.
        chunk_seconds: of a chunk on a link.
        later: seconds by which its chunk passes through a system more slowly than one of weights.
    """

    seconds: float
    link_share: float
    chunk_seconds: float
    later: float


@dataclass(frozen=True)
class _Passing:
    """A sum on its way.

    Attributes:
        total: the sum.
        begin: when the first system begins to send it.
    """

    total: Sum
    begin: float

    @property
    def end(self) -> float:
        """When the first system has sent it."""
        return self.begin + self.total.seconds

    def delays(self, end: float, hops: Times) -> Times:
        """By how much weights whose last chunk the first system has sent come later, by hop.

        They overtake the sum, and wait for a chunk of it on each link where they are beside it.
        """
        first, last = (max(end - t, 0.0) / self.total.later for t in (self.end, self.begin))
        beside: Times = np.clip(hops, first, last) - first
        return beside * self.total.link_share * self.total.chunk_seconds


@dataclass(frozen=True)
class LayerPass:
    """A layer in a pass.

    Attributes:
        owner: the system whose store has it.
        held_bytes: of the room that it takes.
        fetched_bytes: of its weights; 0 where they are there.
        beside_seconds: of gradients that links carry in turns with them.
        update_seconds: of the owner, before it reads them.
        compute_seconds: of each system.
        total: of its gradients, which begins then.
    """

    owner: int
    held_bytes: float
    fetched_bytes: float
    beside_seconds: float
    update_seconds: float
    compute_seconds: float
    total: Sum | None = None


class Systems:
    """When each system has done what it does for the layers so far; arrays are by system.

    Attributes:
        joined: what joins them.
        read, updated: when its store has read, and updated.
        wanted: when it has asked for all weights so far: it asks for one layer after the other.
        computed: when its device has computed.
        begin, end: of the weights of the last pass, on their owners' links.
    """

    def __init__(self, joined: Joined, room_bytes: float) -> None:
        self.joined, self._room_bytes = joined, room_bytes
        self.read, self.updated, self.wanted, self.computed = np.zeros((4, joined.num_systems))
        self.begin = self.end = 0.0
        self._sums: list[_Passing] = []

    def walk(self, layers: Sequence[LayerPass]) -> Sequence[Times]:
        """Make a pass: when each layer has been computed."""
        found: list[Times] = []
        links = _Links(self.joined.num_systems)
        rooms = self._rooms(layers)
        ready: dict[int, Times] = {}
        begun, before = 0, self.computed
        self.begin, self.end = inf, 0.0
        while len(found) < len(layers):
            while begun < len(layers) and rooms[begun] < len(found):
                room = before if rooms[begun] < 0 else found[rooms[begun]]
                flow = self._flow(begun, layers[begun], room)
                if flow is None:
                    ready[begun] = np.zeros_like(room)
                else:
                    self.begin = min(self.begin, flow.begin)
                    links.put(flow)
                begun += 1
            if (next_one := len(found)) in ready:
                started = np.maximum(self.computed, ready.pop(next_one))
                self.computed = started + layers[next_one].compute_seconds
                found.append(self.computed)
                self._begin_sum(layers[next_one].total)
            else:
                flow, self.end, num_others = links.advance()
                ready[flow.index] = self._ready(flow, layers[flow.index], num_others)
        return found

    def _begin_sum(self, total: "Sum | None") -> None:
        if total is None:
            return
        begin = float(self.computed[0])
        if self._sums:
            begin = max(begin, self._sums[-1].end)
        self._sums.append(_Passing(total, begin))

    def _rooms(self, layers: Sequence[LayerPass]) -> list[int]:
        """The layer that has to have been computed before there is room for one; -1 is none."""
        rooms = []
        for last in range(len(layers)):
            held, index = 0.0, last
            while index >= 0 and held + layers[index].held_bytes <= self._room_bytes:
                held += layers[index].held_bytes
                index -= 1
            rooms.append(min(index, last - 1))
        return rooms

    def _flow(self, index: int, layer: LayerPass, room: Times) -> "_Flow | None":
        """The weights of a layer that has room, if they are not there."""
        owner, joined, num_bytes = layer.owner, self.joined, layer.fetched_bytes
        current = float(room[owner])
        if layer.update_seconds:
            current = max(current, self.updated[owner]) + layer.update_seconds
            self.updated[owner] = current
        if not num_bytes:
            return None
        self.read[owner] = max(current, self.read[owner]) + num_bytes / joined.store
        self.wanted = np.maximum(self.wanted, room)
        self.wanted[owner] = max(self.wanted[owner], self.read[owner])
        begin = float(self.wanted.max() if joined.network_copies else self.wanted[owner])
        is_sent = joined.num_systems > 1
        seconds = num_bytes / joined.link + layer.beside_seconds if is_sent else 0.0
        return _Flow(index, owner, begin, seconds, self.wanted.copy())

    def _ready(self, flow: "_Flow", layer: LayerPass, num_others: int) -> Times:
        """When a flow that has just left its owner has come to a system, and has been passed on.

        Its last chunk takes turns with one of each of the others that are on their way.
        """
        end, joined, size = self.end, self.joined, self.joined.num_systems
        chunk = min(joined.chunk_bytes, layer.fetched_bytes) / joined.link
        if size == 1:
            return np.full(1, end)
        if joined.network_copies:
            # Nodes copy what has come to them.
            way = joined.depth * joined.hop_seconds + (joined.depth - 1) * chunk
            return np.full(size, end + way)
        order, hop = way_from(flow.owner, size), joined.hop_seconds
        hops = np.arange(size - 1)
        lags = hops * (hop + chunk) + sum(one.delays(end, hops) for one in self._sums)
        sent = np.maximum(end, flow.wanted[order[1:]] + hop - lags + flow.seconds)
        sent = np.maximum.accumulate(sent)
        ready = np.empty(size)
        ready[order[1:]] = sent + lags + hop
        ready[order[0]] = sent[0]
        ready[order[1:-1]] = np.maximum(
            ready[order[1:-1]], sent[1:] + lags[1:] + min(num_others, 1) * chunk
        )
        return ready


def way_from(owner: int, num_systems: int) -> NDArray[np.int64]:
    """Systems in the order in which a record passes from each to the next: theirs, behind the owner."""
    others = np.delete(np.arange(num_systems), owner)
    return np.concatenate([[owner], others])


@dataclass(frozen=True)
class _Flow:
    """Weights on their way.

    Attributes:
        index: of the layer in the pass.
        owner: where they come from.
        begin: when they leave it, if nothing else does.
        seconds: that a link takes for them alone.
        wanted: when systems have asked for them.
    """

    index: int
    owner: int
    begin: float
    seconds: float
    wanted: Times


class _Links:
    """Carries flows: those of one owner one after the other, those of several at once.

    Two systems have a link for each of two owners; on more, the flows of all share links.
    """

    def __init__(self, num_systems: int) -> None:
        self._has_shares = num_systems > PAIR
        self._queues: dict[int, deque[_Flow]] = {}
        self._left: dict[int, float] = {}
        self._now = 0.0

    def put(self, flow: _Flow) -> None:
        """Another flow, which begins no earlier than those of its owner before."""
        self._queues.setdefault(flow.owner, deque()).append(flow)
        self._left[flow.index] = flow.seconds

    def advance(self) -> tuple[_Flow, float, int]:
        """The next flow that ends, when, and how many others then share links with it."""
        while True:
            heads = [queue[0] for queue in self._queues.values() if queue]
            active = [flow for flow in heads if flow.begin <= self._now]
            begins = min((flow.begin for flow in heads if flow.begin > self._now), default=inf)
            slower = len(active) if self._has_shares else 1
            first = min(active, key=lambda flow: self._left[flow.index], default=None)
            ends = inf if first is None else self._now + self._left[first.index] * slower
            passed, self._now = min(begins, ends) - self._now, min(begins, ends)
            for flow in active:
                self._left[flow.index] -= passed / slower
            if first is not None and ends <= begins:
                self._queues[first.owner].popleft()
                return first, ends, slower - 1
