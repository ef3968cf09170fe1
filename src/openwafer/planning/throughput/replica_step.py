"""The time of a step of our own schedule on several systems, one of which has the store.

A pass brings every layer through stations one after the other: its weights are read in the store,
leave its host and reach the farthest system, which computes; in a backward its gradients are added
from system to system and updated. A station takes the layers in their order, one at a time. The
page docs/guide/scale-out.md derives the terms and says what is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, inf


class Part(StrEnum):
    """What a step may wait for."""

    COMPUTE = "compute"
    STORE = "store"
    LINK = "links between systems"
    HOP = "hops between systems"
    ADDING = "additions of gradients"
    UPDATES = "updates"


@dataclass(frozen=True)
class LayerWork:
    """One layer of a model that streams.

    Attributes:
        forward_seconds, backward_seconds: of a device for one micro-batch; the backward with the
            forward that it makes again.
        weight_bytes: of the room that it takes.
        gradient_bytes: that a push moves; 0 for a frozen layer.
        update_seconds: of the store.
        fetched_bytes: for its forward and for its backward, where a schedule says it; else all its
            weights, and in the backward only if the forward has not left them.
    """

    forward_seconds: float
    backward_seconds: float
    weight_bytes: float
    gradient_bytes: float
    update_seconds: float
    fetched_bytes: tuple[float, float] | None = None


@dataclass(frozen=True)
class StreamedStep:
    """A step of a schedule.

    Attributes:
        layers: in the order of the forward.
        micro_batches: of the whole step.
        room_bytes: that a device has for weights.
        updates_on_fetch: whether layers are updated before the next fetch, and not once their
            gradients are there.
    """

    layers: Sequence[LayerWork]
    micro_batches: int
    room_bytes: float
    updates_on_fetch: bool = False


@dataclass(frozen=True)
class Joined:
    """Systems of one kind, and what joins them.

    Attributes:
        num_systems: each computes its share of the micro-batches; the first has the store.
        link: bytes a second of a system's link, each way.
        hop_seconds: from a system to another, or to a node of the network.
        store: bytes of weights a second that the store hands out.
        adding: bytes of gradients a second that a system adds to a running sum.
        chunk_bytes: of a running sum, or of weights, that pass at once.
        network_copies: whether weights leave the store once, and nodes of the network copy them;
            else each system passes them on to the next, chunk by chunk.
    """

    num_systems: int
    link: float
    hop_seconds: float
    store: float
    adding: float
    chunk_bytes: float
    network_copies: bool = False

    @property
    def depth(self) -> int:
        """Doublings from one system to all."""
        return (self.num_systems - 1).bit_length()


@dataclass(frozen=True)
class ReplicaStep:
    """The time of a step.

    Attributes:
        forward_seconds: until the last layer has been computed.
        backward_seconds: from then until the last update.
        without: seconds of the step if a part took no time.
    """

    forward_seconds: float
    backward_seconds: float
    without: Mapping[Part, float]

    @property
    def seconds(self) -> float:
        """Of the step."""
        return self.forward_seconds + self.backward_seconds

    @property
    def limit(self) -> Part:
        """The part that makes the step longest."""
        return min(self.without, key=self.without.__getitem__)


def replica_step(step: StreamedStep, joined: Joined) -> ReplicaStep:
    """Predict a step on several systems."""
    layers = step.layers
    idle = [replace(layer, forward_seconds=0.0, backward_seconds=0.0) for layer in layers]
    never_updated = [replace(layer, update_seconds=0.0) for layer in layers]
    without = {
        Part.COMPUTE: _passes(replace(step, layers=idle), joined),
        Part.STORE: _passes(step, replace(joined, store=inf)),
        Part.LINK: _passes(step, replace(joined, link=inf)),
        Part.HOP: _passes(step, replace(joined, hop_seconds=0.0)),
        Part.ADDING: _passes(step, replace(joined, adding=inf)),
        Part.UPDATES: _passes(replace(step, layers=never_updated), joined),
    }
    return ReplicaStep(
        *_passes(step, joined), {part: sum(passes) for part, passes in without.items()}
    )


def _passes(step: StreamedStep, joined: Joined) -> tuple[float, float]:
    devices = _Devices(step.room_bytes)
    _forward(step, joined, devices)
    turn = devices.far
    devices.turn()
    return turn, _backward_seconds(step, joined, devices) - turn


@dataclass(frozen=True)
class _Fetch:
    """Seconds in which weights are read, leave the store's host, and reach the other systems.

    Attributes:
        read, sent: of the store and of the link.
        near, far: from then on, until the first system, and the last, can compute with them.
    """

    read: float = 0.0
    sent: float = 0.0
    near: float = 0.0
    far: float = 0.0


@dataclass
class _Devices:
    """When layers are where they are computed, and when they have been.

    A fetch begins as soon as the layers have been computed that its weights take the room of, on
    the first system: the others are as much behind in this as in what they get.

    Attributes:
        room_bytes: for weights.
        read, sent: when the store, and the link of its host, have done what they had to.
        near, far: when the first system, and the last, have computed all layers so far.
    """

    room_bytes: float
    read: float = 0.0
    sent: float = 0.0
    near: float = 0.0
    far: float = 0.0

    def __post_init__(self) -> None:
        self._held: list[float] = []
        self._computed: list[float] = []
        self._begin = 0.0

    def turn(self) -> None:
        """The next pass begins."""
        self._held.clear()
        self._computed.clear()
        self._begin = self.near

    def begin(self, weight_bytes: float) -> float:
        """When there is room for the next layer."""
        self._held.append(weight_bytes)
        held = 0.0
        for index in range(len(self._held) - 1, -1, -1):
            held += self._held[index]
            if held > self.room_bytes and index < len(self._computed):
                return self._computed[index]
        return self._begin

    def fetch(self, now: float, fetch: _Fetch) -> None:
        """Bring a layer whose fetch begins now."""
        self.read = max(now, self.read) + fetch.read
        self.sent = max(self.read, self.sent) + fetch.sent
        self.near = max(self.near, self.sent + fetch.near)
        self.far = max(self.far, self.sent + fetch.far)

    def compute(self, seconds: float) -> None:
        """Compute the layer that has come."""
        self.near += seconds
        self.far += seconds
        self._computed.append(self.near)


def _forward(step: StreamedStep, joined: Joined, devices: _Devices) -> None:
    updated = 0.0
    for layer in step.layers:
        now = devices.begin(layer.weight_bytes)
        if step.updates_on_fetch:
            now = updated = max(now, updated) + layer.update_seconds
        num_bytes = layer.weight_bytes if layer.fetched_bytes is None else layer.fetched_bytes[0]
        if num_bytes:
            devices.fetch(now, _fetch(num_bytes, joined))
        devices.compute(_share(step, joined) * layer.forward_seconds)


def _backward_seconds(step: StreamedStep, joined: Joined, devices: _Devices) -> float:
    """When the step has ended. Layers that the forward has left on the devices are not fetched."""
    seen, computed, weights = 0.0, [], _Weights()
    for layer in reversed(step.layers):
        now = devices.begin(layer.weight_bytes)
        seen += layer.weight_bytes
        num_bytes = layer.weight_bytes if seen > step.room_bytes else 0.0
        if layer.fetched_bytes is not None:
            num_bytes = layer.fetched_bytes[1]
        if num_bytes:
            fetch, copy = _fetch(num_bytes, joined), num_bytes / joined.link
            weights.add(max(now, devices.sent), fetch.sent, copy)
            devices.fetch(now, _beside_gradients(fetch, copy, layer, joined))
            weights.end = devices.sent
        devices.compute(_share(step, joined) * layer.backward_seconds)
        computed.append(_Computed(devices.near, devices.far))
    return _sums_seconds(step, joined, computed, weights)


@dataclass(frozen=True)
class _Computed:
    """When the first system, and the last, have computed a layer of the backward."""

    near: float
    far: float


@dataclass
class _Weights:
    """When the weights of a backward pass over the links.

    Attributes:
        begin, end: of the first and of the last.
        sent: seconds of the link of the store's host.
        copied: seconds of a link that carries them once.
    """

    begin: float = inf
    end: float = 0.0
    sent: float = 0.0
    copied: float = 0.0

    def add(self, begin: float, sent: float, copied: float) -> None:
        """Another layer's."""
        self.begin = min(self.begin, begin)
        self.sent += sent
        self.copied += copied

    @property
    def share(self) -> float:
        """Of the time of links, while they pass."""
        return min(self.copied / (self.end - self.begin), 1.0) if self.end > self.begin else 0.0


def _sums_seconds(
    step: StreamedStep, joined: Joined, computed: Sequence[_Computed], weights: _Weights
) -> float:
    """When the last update has ended; the first system sends weights and its gradients.

    A sum begins on the first system while the others are behind by the way of its weights: it
    reaches them no earlier than these did, so that it does not wait for that way a second time.
    """
    first = last = updated = pushed = tail = 0.0
    for layer, ready in zip(reversed(step.layers), computed, strict=True):
        if not layer.gradient_bytes:
            continue
        total = _sum(layer.gradient_bytes, step, joined, weights.share)
        first = max(first, ready.near) + total.turn
        last = max(first + total.stretched(first, weights.end), max(last, ready.far) + total.turn)
        tail = total.way
        if not step.updates_on_fetch:
            updated = max(last, updated) + layer.update_seconds
            tail += layer.update_seconds
        pushed += total.sent
    through_link = computed[0].near + weights.sent + pushed + tail
    return max(updated, last, computed[-1].far, through_link if pushed else 0.0)


def _share(step: StreamedStep, joined: Joined) -> int:
    """Micro-batches of the system that has most."""
    return ceil(step.micro_batches / joined.num_systems)


def _fetch(num_bytes: float, joined: Joined) -> _Fetch:
    """The store reads the weights, its host sends them once; the rest is the way of the last."""
    read = num_bytes / joined.store
    if joined.num_systems == 1:
        return _Fetch(read)
    copy = num_bytes / joined.link
    chunk = min(joined.chunk_bytes, num_bytes) / joined.link
    if joined.network_copies:
        way = joined.depth * joined.hop_seconds + (joined.depth - 1) * chunk
        return _Fetch(read, copy, way, way)
    links = joined.num_systems - 1
    return _Fetch(read, copy, 0.0, links * joined.hop_seconds + (links - 1) * chunk)


def _beside_gradients(fetch: _Fetch, copy: float, layer: LayerWork, joined: Joined) -> _Fetch:
    """The fetch takes turns on the link with the gradients of a layer that made room for it.

    What these have sent while the store reads is gone, and they get no more turns than one copy.
    """
    if joined.num_systems == 1:
        return fetch
    left = max(layer.gradient_bytes / joined.link - fetch.read, 0.0)
    return replace(fetch, sent=fetch.sent + min(left, copy))


@dataclass(frozen=True)
class _Sum:
    """The sum of a layer's gradients over all systems.

    Attributes:
        turn: seconds in which a system adds and sends it, and no other.
        way: seconds that it then takes to the store.
        slower: how many times as long the way is while weights pass.
        sent: seconds of the first system's link.
    """

    turn: float
    way: float
    slower: float
    sent: float

    def stretched(self, begin: float, end_of_weights: float) -> float:
        """Seconds of the way, part of it while weights pass."""
        shared = max(end_of_weights - begin, 0.0)
        if self.way * self.slower <= shared:
            return self.way * self.slower
        return shared + self.way - shared / self.slower


def _sum(num_bytes: float, step: StreamedStep, joined: Joined, weights_share: float) -> _Sum:
    """Systems add and send at the same time, each another chunk, as fast as the slower of both.

    A system asks for a layer's sum when it has added the one before: until the first chunk has come
    it adds nothing. The last chunk goes on alone: all parts but the first one are added to it. It
    shares the links with weights, while these pass.
    """
    if joined.num_systems == 1:
        return _Sum(0.0, 0.0, 1.0, 0.0)
    chunk = min(joined.chunk_bytes, num_bytes)
    send, hop = chunk / joined.link, joined.hop_seconds
    part = chunk / joined.adding
    add = _share(step, joined) * part
    turn = 2 * hop + send + add + (num_bytes / chunk - 1) * max(send, add)
    ways = joined.num_systems - 1
    way = ways * (send + hop) + (step.micro_batches - 1) * part - add
    slower = 1 + ways * send * weights_share / way
    return _Sum(turn, way, slower, num_bytes / joined.link)
