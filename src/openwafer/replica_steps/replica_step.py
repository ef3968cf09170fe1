"""The time of a step of our own schedule on several systems, each or one of which has a store.

A pass brings every layer through stations one after the other: its weights are read in the store of
its owner and pass over the links to the farthest system, and all compute; in a backward its
gradients are added from system to system and updated by the owner. A station takes the layers in
their order, one at a time. The page docs/design/step-time-of-systems.md derives the terms and says
what is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, inf

import numpy as np

from openwafer.replica_steps.joined import Joined, way_from
from openwafer.replica_steps.weight_passes import (
    PAIR,
    LayerPass,
    PassingSum,
    Systems,
    Times,
)


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
        owner: the system whose store has it.
    """

    forward_seconds: float
    backward_seconds: float
    weight_bytes: float
    gradient_bytes: float
    update_seconds: float
    fetched_bytes: tuple[float, float] | None = None
    owner: int = 0


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
class ReplicaStep:
    """The time of a step.

    Attributes:
        forward_seconds: until the last layer has been computed.
        backward_seconds: from then until the last update.
    """

    forward_seconds: float
    backward_seconds: float
    _step: StreamedStep
    _joined: Joined

    @property
    def seconds(self) -> float:
        """Of the step."""
        return self.forward_seconds + self.backward_seconds

    def seconds_without(self, part: Part) -> float:
        """Of the step if a part took no time."""
        return sum(_passes(*_without(part, self._step, self._joined)))

    @property
    def limit(self) -> Part:
        """The part that makes the step longest; takes as long as a prediction for each part."""
        return min(Part, key=self.seconds_without)


def replica_step(step: StreamedStep, joined: Joined) -> ReplicaStep:
    """Predict a step on several systems."""
    return ReplicaStep(*_passes(step, joined), step, joined)


def _without(part: Part, step: StreamedStep, joined: Joined) -> tuple[StreamedStep, Joined]:
    layers = step.layers
    match part:
        case Part.COMPUTE:
            idle = [replace(one, forward_seconds=0.0, backward_seconds=0.0) for one in layers]
            return replace(step, layers=idle), joined
        case Part.STORE:
            return step, replace(joined, store=inf)
        case Part.LINK:
            return step, replace(joined, link=inf)
        case Part.HOP:
            return step, replace(joined, hop_seconds=0.0)
        case Part.ADDING:
            return step, replace(joined, adding=inf)
        case Part.UPDATES:
            never_updated = [replace(one, update_seconds=0.0) for one in layers]
            return replace(step, layers=never_updated), joined


def _passes(step: StreamedStep, joined: Joined) -> tuple[float, float]:
    systems = Systems(joined, step.room_bytes)
    computed = systems.walk([_forward(layer, step, joined) for layer in step.layers])
    turn = float(computed[-1].max())
    backward = _backward(step, joined)
    computed = systems.walk(backward)
    return turn, _sums_seconds(step, systems, computed, _Loads(backward, systems)) - turn


def _share(step: StreamedStep, joined: Joined) -> int:
    """Micro-batches of the system that has most."""
    return ceil(step.micro_batches / joined.num_systems)


def _forward(layer: LayerWork, step: StreamedStep, joined: Joined) -> LayerPass:
    num_bytes = layer.weight_bytes if layer.fetched_bytes is None else layer.fetched_bytes[0]
    update = layer.update_seconds if step.updates_on_fetch else 0.0
    seconds = _share(step, joined) * layer.forward_seconds
    return LayerPass(layer.owner, layer.weight_bytes, num_bytes, 0.0, update, seconds)


def _backward(step: StreamedStep, joined: Joined) -> Sequence[LayerPass]:
    """Layers that the forward has left on the devices are not fetched."""
    seen, found = 0.0, []
    for layer in reversed(step.layers):
        seen += layer.weight_bytes
        num_bytes = layer.weight_bytes if seen > step.room_bytes else 0.0
        if layer.fetched_bytes is not None:
            num_bytes = layer.fetched_bytes[1]
        beside = _beside(num_bytes, layer, joined)
        seconds = _share(step, joined) * layer.backward_seconds
        is_summed = layer.gradient_bytes and not joined.network_copies
        total = _passing_sum(layer.gradient_bytes, step, joined) if is_summed else None
        found.append(
            LayerPass(layer.owner, layer.weight_bytes, num_bytes, beside, 0.0, seconds, total)
        )
    return found


def _passing_sum(num_bytes: float, step: StreamedStep, joined: Joined) -> PassingSum:
    chunk = min(joined.chunk_bytes, num_bytes)
    send, add = chunk / joined.link, _share(step, joined) * chunk / joined.adding
    return PassingSum(num_bytes / chunk, send, add)


def _beside(num_bytes: float, layer: LayerWork, joined: Joined) -> float:
    """Weights take turns on a link with the gradients of a layer that made room for them.

    What these have sent while the store reads is gone, and they get no more turns than the weights.
    Of two systems the second sends weights on a link that sums do not take to it.
    """
    if joined.num_systems == PAIR and layer.owner:
        return 0.0
    left = max(layer.gradient_bytes / joined.link - num_bytes / joined.store, 0.0)
    return min(left, num_bytes / joined.link)


class _Loads:
    """What links carry in a backward; arrays are by system.

    Attributes:
        share: of the time of a link that weights take, while they pass.
        out, come: seconds of all on the link out of a system, and on the one into it.
    """

    def __init__(self, layers: Sequence[LayerPass], systems: Systems) -> None:
        joined, size = systems.joined, systems.joined.num_systems
        self._link = joined.link
        self.out, self.come = np.zeros((2, size))
        for layer in layers:
            others = np.arange(size) != layer.owner
            seconds = layer.fetched_bytes / joined.link
            sending = [layer.owner] if joined.network_copies else way_from(layer.owner, size)[:-1]
            self.out[sending] += seconds
            self.come[others] += seconds
        passing = systems.end - systems.begin
        self.share = min(float(self.out.max()) / passing, 1.0) if passing > 0 else 0.0

    def add_sum(self, owner: int, num_bytes: float) -> None:
        """Of the gradients of a layer, which a system sends before the next one has taken them."""
        seconds, last = num_bytes / self._link, len(self.out) - 1
        self.out[:last] += seconds
        self.come[1:] = np.maximum(self.come[1:] + seconds, self.out[:last])
        if owner != last:
            self.out[last] += seconds
            self.come[owner] += seconds


def _sums_seconds(
    step: StreamedStep, systems: Systems, computed: Sequence[Times], loads: _Loads
) -> float:
    """When the last update has ended.

    A sum begins on the first system while the others may be behind by the way of its weights: it
    comes to each of them no earlier than these did.
    """
    size = systems.joined.num_systems
    ended = np.zeros(size)
    updated, tail = systems.updated, 0.0
    for layer, ready in zip(reversed(step.layers), computed, strict=True):
        if not layer.gradient_bytes:
            continue
        ended, tail = np.maximum(ended, ready), 0.0
        if size > 1:
            total = _sum(layer.gradient_bytes, step, systems.joined, loads.share)
            stays = layer.owner == size - 1
            ended[layer.owner] += total.coming_back if 0 < layer.owner < size - 1 else 0.0
            ended, tail = total.ended(ended, systems.end), total.way * (size - 1 - stays)
            ended[-1] -= stays * total.leaving
            loads.add_sum(layer.owner, layer.gradient_bytes)
        if not step.updates_on_fetch:
            owner = layer.owner
            updated[owner] = max(ended[-1], updated[owner]) + layer.update_seconds
            tail += layer.update_seconds
    busiest = max(loads.out.max(), loads.come.max())
    through_link = computed[0].min() + busiest + tail if busiest else 0.0
    return float(max(updated.max(), ended.max(), computed[-1].max(), through_link))


@dataclass(frozen=True)
class _Sum:
    """The sum of a layer's gradients over all systems.

    Attributes:
        turn: seconds in which a system adds and sends it, and no other.
        leaving: of those, what only a system takes that sends it: not one that owns it.
        way: seconds that the last of it then takes through the next system.
        coming_back: what an owner takes longer between the first system and the last: the sum
            passes twice over the link into it, on its way to the last and back.
        slower: how many times as long while weights pass.
    """

    turn: float
    leaving: float
    way: float
    coming_back: float
    slower: float

    def ended(self, begin: Times, end_of_weights: float) -> Times:
        """When each system has added and sent it, none of which begins before it may."""
        ended, num_ways = begin + self.turn, len(begin) - 1
        shared = max(end_of_weights - float(ended[0]), 0.0)
        alone = max(num_ways * self.way - shared / self.slower, 0.0)
        each = min(shared + alone, num_ways * self.way * self.slower) / num_ways
        ways = np.arange(len(begin)) * each
        latest: Times = np.maximum.accumulate(ended - ways)
        return latest + ways


def _sum(num_bytes: float, step: StreamedStep, joined: Joined, weights_share: float) -> _Sum:
    """Systems add and send at the same time, each another chunk, as fast as the slower of both.

    A system asks for a layer's sum when it has added the one before: until the first chunk has come
    it adds nothing. The last chunk goes on alone, and each system adds its parts to it. It
    shares the links with weights, while these pass.
    """
    one = _passing_sum(num_bytes, step, joined)
    way = one.send_seconds + joined.hop_seconds + one.add_seconds
    asked = joined.hop_seconds + joined.turn_seconds
    turn = asked + way + (one.num_chunks - 1) * one.slower_seconds
    leaving = asked + one.send_seconds + joined.hop_seconds
    twice = max(2 * one.send_seconds, one.add_seconds)
    coming_back = (one.num_chunks - 1) * (twice - one.slower_seconds)
    return _Sum(turn, leaving, way, coming_back, 1 + one.send_seconds * weights_share / way)
