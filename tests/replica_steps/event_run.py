"""Walks the schedule of a step on modelled systems, and tells when the last event has come.

What is modelled: on each system a device that computes a layer after the other, a link, a thread
that adds gradients, and a store that reads and updates its records one by one. What moves when is
the schedule's and the collectives': weights are broadcast by their owners in the order of the
fetches, in chunks from each system to the next, or copied by nodes of the network; the running sum
of a record passes from system to system in chunks, and from the last one to the owner.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from simpy import AllOf, Environment, Event, Store

from openwafer.replica_steps import Joined
from openwafer.replica_steps.joined import way_from
from openwafer.training.stream.plan.step_time import ScheduledStep
from openwafer.training.stream.schedule import Kind, UpdateTiming
from tests.replica_steps.network import Network, Process

FIRST: Final = 0


@dataclass(frozen=True)
class ModelledStep:
    """A step on several systems.

    Attributes:
        scheduled: the step of each.
        rates: of what is between and beside the devices.
        blocks: how many micro-batches each system has.
        owners: the system whose store has a record; of those that are not named it is the first.
    """

    scheduled: ScheduledStep
    rates: Joined
    blocks: Sequence[int]
    owners: Mapping[str, int] = field(default_factory=dict)

    def owner_of(self, record: str) -> int:
        """The system whose store has a record."""
        return self.owners.get(record, FIRST)


@dataclass(frozen=True)
class EventTimes:
    """Seconds of a step.

    Attributes:
        forward: from its first event until all systems have computed the last layer.
        backward: from then until all systems have ended and all is updated.
    """

    forward: float
    backward: float

    @property
    def step(self) -> float:
        """All of it."""
        return self.forward + self.backward


def run_events(step: ModelledStep) -> EventTimes:
    """Walk a step from its first event to its last."""
    clock = Environment()
    walk = _Step(clock, step)
    clock.run(until=AllOf(clock, [clock.process(one) for one in walk.processes()]))
    return EventTimes(walk.turned, float(clock.now) - walk.turned)


class _Step:
    """What happens on all systems; each method that yields is one process."""

    def __init__(self, clock: Environment, step: ModelledStep) -> None:
        self._clock, self._step, self._rates = clock, step, step.rates
        self._scheduled = step.scheduled
        self._systems = range(len(step.blocks))
        rates = step.rates
        self._network = Network(
            clock, len(self._systems), rates.link, rates.hop_seconds, int(rates.chunk_bytes)
        )
        self._records_of = {visit.layer: visit.records for visit in self._scheduled.visits}
        actions = self._scheduled.schedule.actions
        self._owners = {
            n: step.owner_of(action.target)
            for n, action in enumerate(actions)
            if action.kind is Kind.FETCH
        }
        self._ways = {o: way_from(o, len(self._systems)) for o in self._owners.values()}
        self._pushes = [action.target for action in actions if action.kind is Kind.PUSH]
        self._is_on_fetch = self._scheduled.schedule.timing is UpdateTiming.ON_FETCH
        # By the position of a fetch: its owner has read it. By that and a system: its room is
        # there; a copy is asked for; it has come and been passed on, and is computed with.
        self._is_read = {position: Event(clock) for position in self._owners}
        self._has_room = self._events(self._owners)
        self._is_wanted = self._events(self._owners)
        self._is_ready = self._events(self._owners)
        # By record and system: all of its own gradients are there.
        self._is_given = self._events(self._pushes)
        # By record and system: it takes the running sum, which leaves the other end only then.
        self._is_asked_for = self._events(self._pushes)
        self._is_updated = {record: Event(clock) for record in self._pushes}
        self._to_update = [Store(clock) for _ in self._systems]
        # Chunks of weights that have come, by system and owner.
        self._weights: dict[tuple[int, int], Store] = defaultdict(partial(Store, clock))
        self._running = [Store(clock) for _ in self._systems]
        self._summed: Store = Store(clock)
        # When the last system went over to its backward pass.
        self.turned = 0.0

    def _events(self, keys: Iterable[object]) -> Mapping[object, list[Event]]:
        return {key: [Event(self._clock) for _ in self._systems] for key in keys}

    def processes(self) -> Iterable[Process]:
        """All that have to end."""
        yield from map(self._walk, self._systems)
        for system in self._systems:
            yield self._read(system)
            yield self._update(system)
        if len(self._systems) > 1:
            yield from map(self._ask_all, self._systems)
            for owner in sorted(set(self._owners.values())):
                for system in self._systems:
                    yield self._broadcast_all(system, owner)
            yield from map(self._fold_all, self._systems)
        yield self._take_sums()

    # Devices.

    def _walk(self, system: int) -> Process:
        held: dict[str, int] = {}
        block = self._step.blocks[system]
        for position, action in enumerate(self._scheduled.schedule.actions):
            match action.kind:
                case Kind.FETCH:
                    held[action.target] = position
                    self._has_room[position][system].succeed()
                case Kind.FORWARD | Kind.BACKWARD:
                    records = self._records_of[action.target]
                    yield AllOf(self._clock, [self._is_ready[held[r]][system] for r in records])
                    takes = self._scheduled.layers[action.target]
                    is_forward = action.kind is Kind.FORWARD
                    each = takes.forward if is_forward else takes.backward
                    yield self._clock.timeout(block * each)
                    if is_forward:
                        self.turned = float(self._clock.now)
                case Kind.PUSH:
                    self._is_given[action.target][system].succeed()
                case Kind.UPDATE:
                    if self._is_on_fetch and system == self._step.owner_of(action.target):
                        self._to_update[system].put(action.target)
                case Kind.READ | Kind.RELEASE:
                    pass

    # The stores.

    def _read(self, system: int) -> Process:
        actions = self._scheduled.schedule.actions
        waits = {record for record in self._pushes if self._is_on_fetch}
        for position in self._fetches_of(system):
            yield self._has_room[position][system]
            if actions[position].target in waits:
                yield self._is_updated[actions[position].target]
            yield self._clock.timeout(actions[position].num_bytes / self._rates.store)
            self._is_read[position].succeed()
            if len(self._systems) == 1:
                self._is_ready[position][system].succeed()

    def _fetches_of(self, owner: int) -> Sequence[int]:
        return [position for position, found in self._owners.items() if found == owner]

    def _update(self, system: int) -> Process:
        for _ in (one for one in self._pushes if self._step.owner_of(one) == system):
            record = yield self._to_update[system].get()
            yield self._clock.timeout(self._scheduled.updates[record])
            self._is_updated[record].succeed()

    def _take_sums(self) -> Process:
        """Records whose sums are complete go to their updates."""
        if len(self._systems) == 1:
            for record in self._pushes:
                yield self._is_given[record][FIRST]
                self._sum_is_there(record)
            return
        missing = {record: len(self._chunks(record)) for record in self._pushes}
        while any(missing.values()):
            record = yield self._summed.get()
            missing[record] -= 1
            if not missing[record]:
                self._sum_is_there(record)

    def _sum_is_there(self, record: str) -> None:
        if not self._is_on_fetch:
            self._to_update[self._step.owner_of(record)].put(record)

    # Weights.

    def _ask_all(self, system: int) -> Process:
        """Tell the system before, fetch by fetch, that there is room.

        A system begins broadcasts in one order, and one of its own when it has read the record.
        """
        for position, owner in self._owners.items():
            yield self._is_read[position] if owner == system else self._has_room[position][system]
            self._clock.process(self._ask(position, system))

    def _ask(self, position: int, system: int) -> Process:
        if not self._rates.network_copies:
            yield self._clock.timeout(self._rates.hop_seconds + self._rates.turn_seconds)
        self._is_wanted[position][system].succeed()

    def _broadcast_all(self, system: int, owner: int) -> Process:
        """A system's part of each broadcast of an owner, in the order of the fetches."""
        for position in self._fetches_of(owner):
            if system == owner:
                yield self._is_read[position]
            if self._rates.network_copies:
                yield from self._copy_in_network(position, system)
            else:
                yield from self._relay(position, system)

    def _relay(self, position: int, system: int) -> Process:
        """Pass chunks on as they come, to a system that has room for them."""
        owner, way = self._owners[position], self._ways[self._owners[position]]
        to = [*way, None][way.index(system) + 1]
        if to is not None:
            yield self._is_wanted[position][to]
        for chunk in self._network.fragments(self._scheduled.schedule.actions[position].num_bytes):
            if system != owner:
                yield self._weights[system, owner].get()
            if to is not None:
                arrived = partial(self._weights[to, owner].put, position)
                yield from self._network.send(system, [to], chunk, 1, arrived)
        self._is_ready[position][system].succeed()

    def _copy_in_network(self, position: int, system: int) -> Process:
        owner = self._owners[position]
        if system != owner:
            return
        yield AllOf(self._clock, self._is_wanted[position])
        num_bytes = self._scheduled.schedule.actions[position].num_bytes
        depth = (len(self._systems) - 1).bit_length()
        arrived = partial(self._all_have_come, position)
        others = [one for one in self._systems if one != owner]
        yield from self._network.send(owner, others, num_bytes, depth, arrived)

    def _all_have_come(self, position: int) -> None:
        for is_ready in self._is_ready[position]:
            is_ready.succeed()

    # Gradients.

    def _chunks(self, record: str) -> list[int]:
        return self._network.fragments(self._scheduled.sizes[record].gradients)

    def _fold_all(self, system: int) -> Process:
        """Add a system's parts to the running sums, in the order in which the first one pushes."""
        leaving: Store = Store(self._clock)
        sending = self._clock.process(self._send_sums(system, leaving))
        parts = self._step.blocks[system] - (system == FIRST)
        for record in self._pushes:
            yield self._is_given[record][system]
            self._is_asked_for[record][system].succeed()
            for chunk in self._chunks(record):
                if system != FIRST:
                    yield self._running[system].get()
                yield self._clock.timeout(parts * chunk / self._rates.adding)
                leaving.put(chunk)
        yield sending

    def _send_sums(self, system: int, leaving: Store) -> Process:
        is_last = system == self._systems[-1]
        for record in self._pushes:
            to = self._step.owner_of(record) if is_last else system + 1
            inbox = self._summed if is_last else self._running[to]
            if not is_last:
                yield self._is_asked_for[record][to]
            if to != system:
                yield self._clock.timeout(self._rates.hop_seconds + self._rates.turn_seconds)
            for _ in self._chunks(record):
                chunk = yield leaving.get()
                if to == system:
                    inbox.put(record)
                else:
                    yield from self._network.send(
                        system, [to], chunk, 1, partial(inbox.put, record)
                    )
