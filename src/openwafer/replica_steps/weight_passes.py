"""When weights come to several systems, and when these have computed with them.

A chunk of weights leaves their owner and passes from system to system in their order, each as far
behind as it takes from the owner to there. Weights of one owner follow each other; those of several
take turns, chunk by chunk, on the links of three and more systems. In a backward they overtake sums
of gradients, whose chunks they wait for.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, inf
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.replica_steps.joined import Joined, way_from

Times: TypeAlias = NDArray[np.float64]
"""Seconds, by system."""
PAIR = 2
ALMOST = 1 + 1e-9
"""Times that a sum of seconds may be off by rounding."""


@dataclass(frozen=True)
class PassingSum:
    """The sum of a layer's gradients, which passes from system to system.

    Attributes:
        num_chunks: of it.
        send_seconds, add_seconds: of one on a link, and of its additions in a system.
        begin: when the first system begins to send it.
    """

    num_chunks: float
    send_seconds: float
    add_seconds: float
    begin: float = 0.0

    @property
    def slower_seconds(self) -> float:
        """Of a chunk, as systems add and send at the same time, each another one."""
        return max(self.send_seconds, self.add_seconds)

    @property
    def end(self) -> float:
        """When the first system has sent it."""
        return self.begin + self.num_chunks * self.slower_seconds

    def is_met_behind(self, num_systems: int, weights_end: float) -> bool:
        """Whether weights overtake it on no link between so many; see :meth:`delays`."""
        return weights_end - self.end >= (num_systems - 1) * self.add_seconds

    def delays(self, weights_end: float, hops: NDArray[np.int64]) -> Times:
        """By how much weights that overtake it come later, by hop.

        On each link where they are beside it they wait for a chunk, if it sends just then. It falls
        behind them by its additions.

        Args:
            weights_end: when the first system has sent the last chunk of the weights.
            hops: numbers of links behind the first system.
        """
        if not self.add_seconds:
            return np.zeros(len(hops))
        until_met, until_past = (
            max(weights_end - sent, 0.0) / self.add_seconds for sent in (self.end, self.begin)
        )
        beside = np.clip(hops.astype(np.float64), until_met, until_past) - until_met
        share = self.send_seconds / self.slower_seconds
        waits: Times = beside * share * self.send_seconds
        return waits


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
        total: of its gradients, which begins when it has been computed.
    """

    owner: int
    held_bytes: float
    fetched_bytes: float
    beside_seconds: float
    update_seconds: float
    compute_seconds: float
    total: PassingSum | None = None


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
        self._sums: deque[PassingSum] = deque()

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
                if (total := layers[next_one].total) is not None:
                    self._begin_sum(total)
            else:
                flow, self.end, is_beside = links.advance()
                ready[flow.index] = self._ready(flow, layers[flow.index], is_beside=is_beside)
        return found

    def _begin_sum(self, total: PassingSum) -> None:
        """On the first system, when that has sent those before."""
        begin = float(self.computed[0])
        if self._sums:
            begin = max(begin, self._sums[-1].end)
        self._sums.append(replace(total, begin=begin))

    def _rooms(self, layers: Sequence[LayerPass]) -> list[int]:
        """The layer that has to have been computed before there is room for one; -1 is none."""
        held = [layer.held_bytes for layer in layers]
        rooms, first = [], 0
        for last in range(len(layers)):
            # Rounded once, as the room is that some layers meet exactly: differences would drift.
            while first <= last and fsum(held[first : last + 1]) > self._room_bytes:
                first += 1
            rooms.append(min(first, last) - 1)
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
        last = min(joined.chunk_bytes, num_bytes) / joined.link
        return _Flow(index, owner, begin, seconds, last, self.wanted.copy())

    def _ready(self, flow: "_Flow", layer: LayerPass, *, is_beside: bool) -> Times:
        """When a flow that has just left its owner has come to a system, and has been passed on.

        Its last chunk is passed on in turns with one of another flow that is beside it.
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
        asked = hop + joined.turn_seconds
        hops = np.arange(size - 1)
        # Weights that come later meet those even later that these meet on no link.
        while self._sums and self._sums[0].is_met_behind(size, end):
            self._sums.popleft()
        lags = hops * (hop + chunk) + sum(total.delays(end, hops) for total in self._sums)
        sent = np.maximum(end, flow.wanted[order[1:]] + asked - lags + flow.seconds)
        sent = np.maximum.accumulate(sent)
        ready = np.empty(size)
        ready[order[1:]] = sent + lags + hop
        ready[order[0]] = sent[0]
        ready[order[1:-1]] = np.maximum(ready[order[1:-1]], sent[1:] + lags[1:] + is_beside * chunk)
        return ready


@dataclass(frozen=True)
class _Flow:
    """Weights on their way.

    Attributes:
        index: of the layer in the pass.
        owner: where they come from.
        begin: when they leave it, if nothing else does.
        seconds: that a link takes for them alone.
        last_seconds: of those, for the last chunk.
        wanted: when systems have asked for them.
    """

    index: int
    owner: int
    begin: float
    seconds: float
    last_seconds: float
    wanted: Times


class _Links:
    """Carries flows: those of one owner one after the other, those of several in turns.

    Two systems have a link for each of two owners; on more, the flows of all share links. Of flows
    that take turns one has the last chunk first: the others wait for it.
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

    def advance(self) -> tuple[_Flow, float, bool]:
        """The next flow that ends, when, and whether another one is then beside it."""
        while True:
            heads = [queue[0] for queue in self._queues.values() if queue]
            active = [flow for flow in heads if flow.begin <= self._now]
            begins = min((flow.begin for flow in heads if flow.begin > self._now), default=inf)
            served = self._served(active) if self._has_shares else active
            slower = len(served) if self._has_shares else 1
            first = min(served, key=self._left_of, default=None)
            last = 0.0 if first is None or slower == 1 else first.last_seconds
            ends = inf if first is None else self._now + (self._left_of(first) - last) * slower
            passed, self._now = min(begins, ends) - self._now, min(begins, ends)
            for flow in served:
                self._left[flow.index] -= passed / slower
            if first is not None and ends <= begins and not last:
                self._queues[first.owner].popleft()
                return first, ends, len(active) > 1

    def _served(self, active: Sequence[_Flow]) -> Sequence[_Flow]:
        """Those that take turns, or the one that has its last turn."""
        at_last = [flow for flow in active if self._left_of(flow) <= flow.last_seconds * ALMOST]
        return at_last[:1] or active

    def _left_of(self, flow: _Flow) -> float:
        return self._left[flow.index]
