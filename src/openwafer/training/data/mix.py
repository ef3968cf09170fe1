"""Several sources in fixed shares of the samples; the position alone decides which source."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.config import InvalidFieldError
from openwafer.training.data.sources import DataSource

PERIOD: Final = 1000
"""Positions after which the order of sources repeats: shares are kept to a thousandth."""


@dataclass(frozen=True)
class MixedSource:
    """One of several sources.

    Attributes:
        share: of the samples, beside the shares of the others; they need no sum of 1.
        source: its documents.
    """

    share: float
    source: DataSource


Sources = DataSource | tuple[MixedSource, ...]


def parts_of(sources: Sources) -> tuple[DataSource, ...]:
    """The one, or those of a mix."""
    return (sources,) if isinstance(sources, DataSource) else tuple(m.source for m in sources)


def shares_of(sources: Sources) -> tuple[float, ...]:
    """Those of a mix, which are none of one source."""
    return () if isinstance(sources, DataSource) else tuple(mixed.share for mixed in sources)


def check_sources(sources: Sources) -> None:
    """Refuse a mix without sources, and shares that are not above zero or too small to be kept."""
    if sources == ():
        raise InvalidFieldError(
            "source",
            "expected a source, or several with shares, found an empty list",
            help="name one, for example {kind: text, paths: [corpus/*.txt]}",
        )
    check_shares(shares_of(sources))


def check_shares(shares: Sequence[float], key: str = "source") -> None:
    """Refuse shares of which one is not above zero, or too small to be kept."""
    for number, share in enumerate(shares, start=1):
        # Written so that what is no number fails, too.
        if not 0 < share < float("inf"):
            raise InvalidFieldError(
                key,
                f"expected shares above zero, found {share:g} of source {number}",
                help="leave a source out of which nothing is wanted",
            )
        if share * PERIOD < sum(shares):
            raise InvalidFieldError(
                key,
                f"source {number} has {share / sum(shares):.2g} of the samples, expected at least "
                f"{1 / PERIOD:g}",
                help="raise its share, or put its documents into another source",
            )


@dataclass(frozen=True)
class Mix:
    """Which source each position of the endless stream of samples takes a sample of.

    Each position goes to the source that is furthest behind its share, so that every stretch of
    positions has all sources in their shares, to one sample each.

    Attributes:
        shares: of the sources, in any unit.
    """

    shares: tuple[float, ...]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Positions of each source among ``PERIOD``: its share by the method of largest rests."""
        wanted = np.array(self.shares) / sum(self.shares) * PERIOD
        counts = np.maximum(np.floor(wanted).astype(np.int64), 1)
        for _ in range(PERIOD - int(counts.sum())):
            counts[np.argmax(wanted - counts)] += 1
        return counts

    @cached_property
    def _slots(self) -> NDArray[np.int64]:
        """The source of each position of a period."""
        slots = np.empty(PERIOD, np.int64)
        done = np.zeros_like(self.counts)
        for position in range(PERIOD):
            slots[position] = np.argmax(self.counts * (position + 1) - done * PERIOD)
            done[slots[position]] += 1
        return slots

    @cached_property
    def _earlier(self) -> NDArray[np.int64]:
        """How many positions before each of a period have the same source."""
        earlier = np.empty(PERIOD, np.int64)
        for source, count in enumerate(self.counts):
            earlier[self._slots == source] = np.arange(count)
        return earlier

    def draw(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source of each position, and the position in that source's own endless stream."""
        periods, places = np.divmod(positions, PERIOD)
        sources = self._slots[places]
        return sources, periods * self.counts[sources] + self._earlier[places]
