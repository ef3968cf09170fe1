"""How long a run of instructions takes: one starts a cycle, and none before its operands are there.

The machine executes in order; its compiler puts instructions where their operands are ready. So a
run is issued greedily: of those that are ready, the one with the longest way to the end goes first.
Addresses that no load gives are computed ahead of all loads, as where they step through a loop.

Each cycle of a run belongs to one instruction: to the one that is issued in it, or, where none can
be, to the one whose result the next one lacks, of several the last to come.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple


class Share(NamedTuple):
    """Cycles that belong to one place in the source.

    Attributes:
        place: index into the module's places.
        taken: in which its instructions are issued.
        waited: in which nothing is issued, because a result of its instructions is awaited.
    """

    place: int
    taken: int
    waited: int = 0


@dataclass(slots=True)
class Run:
    """Instructions between two points that nothing moves over, in the order of the program.

    An instruction is known by its number. It takes `slots` issue cycles one after the other, and
    its result is there `latency` cycles after the first of them. It belongs to a place in the
    source.
    """

    slots: list[int] = field(default_factory=list)
    latencies: list[int] = field(default_factory=list)
    operands: list[tuple[int, ...]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    paid: set[int] = field(default_factory=set)
    _loads: list[int] = field(default_factory=list)
    _addresses: list[int] = field(default_factory=list)

    def mark_load(self, number: int) -> None:
        """Say that an instruction loads from memory."""
        self._loads.append(number)

    @property
    def has_loads(self) -> bool:
        """Whether an instruction loads from memory."""
        return bool(self._loads)

    def mark_address(self, number: int) -> None:
        """Say that an instruction computes an address."""
        self._addresses.append(number)

    def mark_paid(self, number: int) -> None:
        """Say that the issue cycles of an instruction have been counted before."""
        self.paid.add(number)

    def add(self, slots: int, latency: int, operands: Iterable[int] = (), place: int = 0) -> int:
        """Append an instruction; gives its number."""
        self.slots.append(slots)
        self.latencies.append(latency)
        self.operands.append(tuple(set(operands)))
        self.places.append(place)
        return len(self.slots) - 1

    def issued(self, awaited: Sequence[int] = ()) -> "Issued":
        """How all, at least one, are issued, until the results of `awaited` are there."""
        self._put_addresses_first()
        started = self._issue()
        ends = max(map(add, started, self.slots))
        ready = (started[number] + self.latencies[number] for number in awaited)
        return Issued(self, started, awaited, max((ends, *ready)))

    def _put_addresses_first(self) -> None:
        if not self._addresses or not self._loads:
            return
        loaded = set(self._loads)
        for number, operands in enumerate(self.operands):
            if not loaded.isdisjoint(operands):
                loaded.add(number)
        first = [number for number in self._addresses if number not in loaded]
        for number in self._loads:
            self.operands[number] = tuple({*self.operands[number], *first})

    def _issue(self) -> list[int]:
        """First cycle of each instruction."""
        count = len(self.slots)
        users: list[list[int]] = [[] for _ in range(count)]
        missing = [len(operands) for operands in self.operands]
        for number, operands in enumerate(self.operands):
            for operand in operands:
                users[operand].append(number)
        ways = self._ways(users)
        waiting = [(0, -ways[n], n) for n in range(count) if not missing[n]]
        heapq.heapify(waiting)
        ready: list[tuple[int, int]] = []
        started, since, now = [0] * count, [0] * count, 0
        while waiting or ready:
            now = max(now, waiting[0][0]) if not ready else now
            while waiting and waiting[0][0] <= now:
                _, way, number = heapq.heappop(waiting)
                heapq.heappush(ready, (way, number))
            _, number = heapq.heappop(ready)
            started[number] = now
            for user in users[number]:
                since[user] = max(since[user], now + self.latencies[number])
                missing[user] -= 1
                if not missing[user]:
                    heapq.heappush(waiting, (since[user], -ways[user], user))
            now += self.slots[number]
        return started

    def _ways(self, users: list[list[int]]) -> list[int]:
        """Cycles from each instruction's start to the end of what needs it."""
        ways = [0] * len(users)
        for number in self._users_first(users):
            behind = max((ways[user] for user in users[number]), default=0)
            ways[number] = self.latencies[number] + behind
        return ways

    def _users_first(self, users: list[list[int]]) -> list[int]:
        """All instructions, each behind those that need it."""
        missing = [len(own) for own in users]
        ready = [number for number in range(len(users)) if not missing[number]]
        for number in ready:
            for operand in self.operands[number]:
                missing[operand] -= 1
                if not missing[operand]:
                    ready.append(operand)
        return ready


@dataclass(frozen=True, slots=True)
class Issued:
    """A run that is issued.

    Attributes:
        run: its instructions.
        started: by instruction, the cycle of its start.
        awaited: whose results the end waits for.
        end: the cycle behind the last one.
    """

    run: Run
    started: Sequence[int]
    awaited: Sequence[int]
    end: int

    @property
    def cycles(self) -> int:
        """How long it takes, without what was paid before."""
        return self.end - sum(self.run.slots[number] for number in self.run.paid)

    def shares(self) -> Iterator[Share]:
        """To whom these cycles belong; they add up to all of them."""
        run, free = self.run, 0
        in_order = sorted(range(len(run.slots)), key=lambda n: (self.started[n], run.slots[n]))
        for number in in_order:
            yield from self._wait(free, self.started[number], run.operands[number])
            if number not in run.paid:
                yield Share(run.places[number], run.slots[number])
            free = self.started[number] + run.slots[number]
        yield from self._wait(free, self.end, self.awaited)

    def _wait(self, begin: int, end: int, operands: Iterable[int]) -> Iterator[Share]:
        """The cycles in which nothing is issued: they belong to the last of some results."""
        if end > begin:
            last = min(operands, key=lambda number: (-self._ready(number), number))
            yield Share(self.run.places[last], 0, end - begin)

    def _ready(self, number: int) -> int:
        return self.started[number] + self.run.latencies[number]
