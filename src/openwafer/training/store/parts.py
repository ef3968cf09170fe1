"""The parts of the records: their state, their slots on disk, and the ring that disk parts pass.

A version that a manifest names, or is about to name, is pinned: its slot is never written. So the
newest version goes to the other slot, where later ones replace it until a commit pins it. While a
commit is under way both slots may be pinned; then the next write waits for the commit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.layout import KEPT_PARTS, Part
from openwafer.training.store.pages import HostBuffer, SparePages

NUM_SLOTS = 2


@dataclass(frozen=True)
class Version:
    """Bytes of a part in a slot, with their xxh3_64 checksum in hexadecimal."""

    slot: int
    checksum: str


@dataclass
class Slots:
    """Versions of one part; None stands for a part never written, all of whose bytes are zero.

    `working` is the newest on disk, `committed` the one of the last manifest, `pending` the one of
    the commit under way, where there is one.
    """

    working: Version | None = None
    committed: Version | None = None
    pending: Version | None = None

    def free_slot(self) -> int | None:
        """The slot the next version goes to; None while both are pinned."""
        pinned = {version.slot for version in (self.committed, self.pending) if version}
        if self.working and self.working.slot not in pinned:
            return self.working.slot
        return next((slot for slot in range(NUM_SLOTS) if slot not in pinned), None)

    def pin_working(self) -> None:
        """Make the newest version part of the commit under way."""
        self.pending = self.working

    def settle(self) -> None:
        """The commit is durable: its version replaces the one committed before."""
        self.committed = self.pending
        self.pending = None


class Tier(StrEnum):
    """The home of a part between loans."""

    DRAM = "dram"
    DISK = "disk"


class PartState:
    """Memory, slots and loans of one part. All fields are guarded by the store's monitor.

    A part in DRAM, and one without bytes, keeps its buffer; a part on disk has one only while it is
    in the ring. `offsets` are the places of its slots in the file.
    """

    def __init__(
        self, record: str, part: Part, tier: Tier, num_bytes: int, offsets: tuple[int, ...]
    ) -> None:
        self.record = record
        self.part = part
        self.num_bytes = num_bytes
        self.offsets = offsets
        self.is_resident = tier is Tier.DRAM or num_bytes == 0
        self.is_kept = part in KEPT_PARTS and num_bytes > 0
        self.slots = Slots()
        self.buffer = HostBuffer(num_bytes) if self.is_resident else None
        # Views of the buffer, by name of the array.
        self.arrays: dict[str, torch.Tensor] = {}
        self.is_loaded = self.is_resident
        self.is_reading = False
        self.read_error: OpenwaferError | None = None
        self.num_loans = 0
        # Unreleased loans that may change the bytes; those of them that were waited for; and those
        # that were borrowed before the commit under way, which therefore includes their changes.
        self.num_writable = 0
        self.num_writers = 0
        self.num_owed = 0
        self.is_dirty = False
        self.is_writing = False

    def __str__(self) -> str:
        return f"the {self.part} of record {self.record!r}"

    @property
    def is_evictable(self) -> bool:
        """Nobody needs the buffer: it is lent to nobody, and the disk has the same bytes."""
        in_use = self.num_loans or self.is_reading or self.is_dirty or self.is_writing
        return not (self.is_resident or in_use)

    @property
    def is_empty(self) -> bool:
        """Its bytes are not in memory, nobody reads them, and no read has failed."""
        return not (self.is_loaded or self.is_reading or self.read_error)

    @property
    def is_settled(self) -> bool:
        """No change that belongs to the commit under way is still to come or to be written."""
        return not (self.num_owed or self.is_dirty or self.is_writing)

    @property
    def is_changed(self) -> bool:
        """Whether a part that is kept is not what the last commit has, which is durable."""
        return self.is_kept and (self.is_dirty or self.slots.working != self.slots.committed)

    def held_buffer(self) -> HostBuffer:
        """The buffer of a part that is in memory."""
        if self.buffer is None:
            raise AssertionError(f"{self} has no buffer")
        return self.buffer


class Ring:
    """At most `num_bytes` of buffers: lent, idle (clean, still holding their part), or spare."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.mapped_bytes = 0
        self._spare: list[HostBuffer] = []
        self._spare_pages = SparePages()
        self._idle: dict[PartState, None] = {}
        self._idle_bytes = 0

    def has_room(self, num_bytes: int, kept: Iterable[PartState]) -> bool:
        """Whether so many bytes can be had while the buffers of `kept` stay."""
        reusable_bytes = self._idle_bytes
        reusable_bytes -= sum(part.num_bytes for part in set(kept) if part in self._idle)
        reusable_bytes += sum(buffer.num_bytes for buffer in self._spare)
        reusable_bytes += self._spare_pages.num_bytes
        return num_bytes <= self.num_bytes - self.mapped_bytes + reusable_bytes

    def take(self, num_bytes: int) -> HostBuffer:
        """Return a buffer, whatever it holds, where `has_room` said there is one."""
        while True:
            for buffer in self._spare:
                if buffer.num_bytes == num_bytes:
                    self._spare.remove(buffer)
                    return buffer
            if self.mapped_bytes - self._spare_pages.num_bytes + num_bytes <= self.num_bytes:
                return self._new_buffer(num_bytes)
            if self._spare:
                buffer = self._spare.pop()
                self._spare_pages.add(buffer)
                self.mapped_bytes -= buffer.num_bytes - buffer.num_huge_bytes
            else:
                self.drop(next(iter(self._idle)))

    def _new_buffer(self, num_bytes: int) -> HostBuffer:
        buffer = HostBuffer(num_bytes)
        self.mapped_bytes += num_bytes - self._spare_pages.move_to(buffer)
        while self.mapped_bytes > self.num_bytes:
            self.mapped_bytes -= self._spare_pages.give_back()
        return buffer

    def keep_idle(self, part: PartState) -> None:
        """Keep a clean part until its space is needed, the longest idle going first."""
        self.claim(part)
        self._idle[part] = None
        self._idle_bytes += part.num_bytes

    def claim(self, part: PartState) -> None:
        """Take a part that is about to be lent out of the idle ones."""
        if part in self._idle:
            del self._idle[part]
            self._idle_bytes -= part.num_bytes

    def drop(self, part: PartState) -> None:
        """Forget a part's bytes; its buffer becomes spare."""
        self.claim(part)
        self._spare.append(part.held_buffer())
        part.buffer = None
        part.arrays.clear()
        part.is_loaded = False
        part.read_error = None
