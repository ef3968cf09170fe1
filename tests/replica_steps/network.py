"""Links of modelled systems: each has one way out and one way in, which messages share in turns."""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias

from simpy import Environment, Event, Resource

Process: TypeAlias = Generator[Event, Any, None]
Told: TypeAlias = Callable[[], object]


class Network:
    """Brings fragments from system to system.

    Messages that leave a system at once take turns, a fragment each, as connections share a link.
    A fragment that arrives takes the receiver's way in for as long as it took the sender's way out.
    A node on its way takes all of it before it passes it on.

    Args:
        clock: of the events.
        num_systems: that it joins.
        rate: bytes a second of a link, each way.
        hop_seconds: until what leaves a system reaches the next one, or a node on its way.
        fragment_bytes: the most that leaves at a turn.
    """

    def __init__(
        self,
        clock: Environment,
        num_systems: int,
        rate: float,
        hop_seconds: float,
        fragment_bytes: int,
    ) -> None:
        self._clock = clock
        self._rate, self._hop_seconds, self._fragment_bytes = rate, hop_seconds, fragment_bytes
        self._ways_out = [Resource(clock) for _ in range(num_systems)]
        self._way_in_is_free = [0.0] * num_systems

    def fragments(self, num_bytes: int) -> list[int]:
        """The bytes of a message, cut."""
        whole, rest = divmod(num_bytes, self._fragment_bytes)
        return [self._fragment_bytes] * whole + [rest] * (rest > 0 or not whole)

    def send(
        self, source: int, targets: Sequence[int], num_bytes: int, hops: int, then: Told
    ) -> Process:
        """Send a message once, which nodes of the network copy where there are several targets.

        Ends when all of it has left, and calls ``then`` when all of it has arrived everywhere.
        """
        fragments = self.fragments(num_bytes)
        # The last one, which is smaller, does not overtake the others.
        way = hops * self._hop_seconds + (hops - 1) * fragments[0] / self._rate
        for number, fragment in enumerate(fragments, 1):
            seconds = fragment / self._rate
            with self._ways_out[source].request() as turn:
                yield turn
                yield self._clock.timeout(seconds)
            told = then if number == len(fragments) else None
            self._after(way, partial(self._take, targets, seconds, told))

    def _take(self, targets: Sequence[int], seconds: float, then: Told | None) -> None:
        """A fragment has come to its targets, each of which takes it after those before."""
        now, free = self._clock.now, self._way_in_is_free
        for target in targets:
            free[target] = max(now, free[target] + seconds)
        if then is not None:
            self._after(max(free[target] for target in targets) - now, then)

    def _after(self, seconds: float, then: Told) -> None:
        def tell(_: Event) -> None:
            then()

        callbacks = self._clock.timeout(seconds).callbacks
        assert callbacks is not None
        callbacks.append(tell)
