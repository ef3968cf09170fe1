"""How long a run of instructions takes: one starts a cycle, and none before its operands are there.

The machine executes in order; its compiler puts instructions where their operands are ready. So a
run is issued greedily: of those that are ready, the one with the longest way to the end goes first.
Addresses that no load gives are computed ahead of all loads, as where they step through a loop.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Run:
    """Instructions between two points that nothing moves over, in the order of the program.

    An instruction is known by its number. It takes `slots` issue cycles one after the other, and
    its result is there `latency` cycles after the first of them.
    """

    slots: list[int] = field(default_factory=list)
    latencies: list[int] = field(default_factory=list)
    operands: list[tuple[int, ...]] = field(default_factory=list)
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

    def add(self, slots: int, latency: int, operands: Iterable[int] = ()) -> int:
        """Append an instruction; gives its number."""
        self.slots.append(slots)
        self.latencies.append(latency)
        self.operands.append(tuple(set(operands)))
        return len(self.slots) - 1

    def cycles(self, awaited: Sequence[int] = ()) -> int:
        """Cycles until all are issued and the results of `awaited` are there."""
        if not self.slots:
            return 0
        self._put_addresses_first()
        started = self._issue()
        ends = (start + slots for start, slots in zip(started, self.slots, strict=True))
        ready = (started[number] + self.latencies[number] for number in awaited)
        return max(*ends, *ready, 0)

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
