"""Snapshots of a run, as many as are of use: their distance follows from how fast the run goes."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.fabric import Standing

SNAPSHOT_SECONDS: Final = 0.1
"""How long the run goes on between two snapshots, as it was the first time."""
_BACK: Final = (1 << 7, 1 << 11, 1 << 15)
"""Cycles that are looked through for the last hit before all since a snapshot are."""


@dataclass(frozen=True)
class Kept:
    """A snapshot: of which operation it is, and where that stood."""

    cycle: int
    operation: int
    standing: Standing


class Snapshots:
    """Those of a run, by cycle; `first` is of its start.

    Args:
        spacing: cycles up to the next one; those up to the others follow from how long they take.
        most: when there are more, every second one is dropped.
    """

    def __init__(self, first: Kept, spacing: int, most: int) -> None:
        self._kept = [first]
        self._most = most
        self._looked_at = time.perf_counter()
        self.spacing = spacing

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def start(self) -> Kept:
        """That of the run's start."""
        return self._kept[0]

    @property
    def last_cycle(self) -> int:
        """Of the last one."""
        return self._kept[-1].cycle

    @property
    def num_bytes(self) -> int:
        """How much memory they take."""
        return sum(one.standing.moment.machine.num_bytes for one in self._kept)

    def begin(self) -> None:
        """The run goes on now."""
        self._looked_at = time.perf_counter()

    def space(self) -> None:
        """Let the next ones lie as many cycles apart as take SNAPSHOT_SECONDS."""
        seconds = time.perf_counter() - self._looked_at
        factor = min(8.0, max(0.125, SNAPSHOT_SECONDS / max(seconds, 1e-6)))
        self.spacing = max(1, int(self.spacing * factor))

    def add(self, made: Kept) -> None:
        """Keep one more, behind all others."""
        self._kept.append(made)
        if len(self._kept) > self._most:
            del self._kept[1:-1:2]
            self.spacing *= 2

    def end_with(self, made: Kept) -> None:
        """Drop those that are not before one, and keep it: the run is another one from there on."""
        self.drop_from(made.cycle)
        self._kept.append(made)

    def drop_from(self, cycle: int) -> None:
        """Drop those of a cycle and behind it, but that of the start."""
        self._kept[1:] = [one for one in self._kept[1:] if one.cycle < cycle]

    def before(self, cycle: int) -> list[Kept]:
        """Those that are not behind a cycle, the last one first."""
        return [one for one in reversed(self._kept) if one.cycle <= cycle]

    def stretches_before(self, cycle: int) -> Iterator[tuple[Kept, int]]:
        """Where to look for a hit: from a cycle on, behind a snapshot; the nearest first.

        Hits cost more than cycles, so the last cycles are looked through before all are.
        """
        for kept in self.before(cycle):
            for back in _BACK:
                if cycle - back > kept.cycle:
                    yield kept, cycle - back
            yield kept, kept.cycle
