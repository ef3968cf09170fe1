"""What a simulation was: its machine, what the host has taken of it, what the host waits for."""

from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.fabric.findings import Found
from openwafer.sdk.fabric.machine import Stream, Wavelets
from openwafer.sdk.fabric.report import Lost
from openwafer.sdk.fabric.snapshots import Snapshot


@dataclass(frozen=True)
class Print:
    """Characters that a PE wrote to the log."""

    cycle: int
    x: int
    y: int
    text: str


@dataclass(frozen=True)
class Landing:
    """A wavelet arrived at a router; `link` is W, E, S, N or R, the ramp."""

    cycle: int
    x: int
    y: int
    color: int
    link: str
    is_control: bool
    data: int


@dataclass
class Books:
    """What the host has taken of a machine, and what it has not given to it yet."""

    collected: dict[Stream, deque[int]] = field(default_factory=dict)
    pending: dict[Stream, list[Wavelets]] = field(default_factory=dict)
    prints: list[Print] = field(default_factory=list)
    landings: list[Landing] = field(default_factory=list)
    lost: Counter[Lost] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)

    def copy(self) -> "Books":
        """The same books, to be written on apart from these."""
        return Books(
            {key: words.copy() for key, words in self.collected.items()},
            {key: parts.copy() for key, parts in self.pending.items()},
            self.prints.copy(),
            self.landings.copy(),
            self.lost.copy(),
            self.found.copy(),
        )


@dataclass(frozen=True)
class Moment:
    """A simulation between two cycles: the machine, and the host's side of it."""

    machine: Snapshot
    books: Books
    counters: NDArray[np.int64]


@dataclass(frozen=True)
class Standing:
    """Where an operation of the host stands, which may have several waits.

    Attributes:
        moment: the simulation there.
        num_waits: how many waits of the operation have begun.
        limit: the cycle that the last one of them waits for at most.
    """

    moment: Moment
    num_waits: int
    limit: int
