"""Foretells which parts a step finds in the store's ring, so that they are not read."""

from collections.abc import Collection, Mapping
from typing import Final

from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.parameter_store import Tier

NOTHING: Final = frozenset[Part]()


class RingForecast:
    """The parts on disk that were used last, as many as the ring has room for.

    What is lent or waits for its write was used last, too, so the order of uses alone decides what
    is still there, however fast the disk and the device are.

    Args:
        layouts, tiers: the records and where their parts live.
        num_bytes: of the ring.
    """

    def __init__(
        self,
        layouts: Mapping[str, RecordLayout],
        tiers: Mapping[tuple[str, Part], Tier],
        num_bytes: int,
    ) -> None:
        self._layouts = layouts
        self._tiers = tiers
        self._num_bytes = num_bytes
        self._held: dict[tuple[str, Part], int] = {}
        self._held_bytes = 0

    def on_disk(self, record: str, part: Part) -> int:
        """Bytes of a part that lives on disk; 0 for one in DRAM."""
        is_on_disk = self._tiers.get((record, part)) is Tier.DISK
        return self._layouts[record].part_bytes(part) if is_on_disk else 0

    def use(self, record: str, parts: Collection[Part], fresh: Collection[Part] = NOTHING) -> int:
        """Lend parts of a record, of which the fresh ones are overwritten; returns bytes read."""
        read_bytes = 0
        for part in parts:
            num_bytes = self.on_disk(record, part)
            is_held = self._forget(record, part)
            if num_bytes:
                self._held[record, part] = num_bytes
                self._held_bytes += num_bytes
            if not is_held and part not in fresh:
                read_bytes += num_bytes
        self._drop_oldest()
        return read_bytes

    def roll_back(self, changed: Collection[tuple[str, Part]]) -> int:
        """Forget parts that were changed; returns the bytes of those in DRAM, which are read."""
        read_bytes = 0
        for record, part in changed:
            self._forget(record, part)
            if self._tiers.get((record, part)) is Tier.DRAM:
                read_bytes += self._layouts[record].part_bytes(part)
        return read_bytes

    def _drop_oldest(self) -> None:
        while self._held_bytes > self._num_bytes:
            self._forget(*next(iter(self._held)))

    def _forget(self, record: str, part: Part) -> bool:
        """Whether the part was there, which it is no more."""
        num_bytes = self._held.pop((record, part), 0)
        self._held_bytes -= num_bytes
        return num_bytes > 0
