"""The state of one part of one record in the store."""

from enum import StrEnum

import torch

from openwafer.diagnostics import OpenwaferError
from openwafer.training.store.host_buffer import HostBuffer
from openwafer.training.store.layout import KEPT_PARTS, ArrayPlace, Part
from openwafer.training.store.slots import Slots


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
        self._arrays: dict[str, torch.Tensor] = {}
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

    def array(self, place: ArrayPlace) -> torch.Tensor:
        """One array of a part that is in memory, as a tensor of the caller's own."""
        array = self._arrays.get(place.spec.name)
        if array is None:
            array = place.view_in(self.held_buffer().tensor)
            if self.is_resident:
                self._arrays[place.spec.name] = array
        return array.detach()

    def held_buffer(self) -> HostBuffer:
        """The buffer of a part that is in memory."""
        if self.buffer is None:
            raise AssertionError(f"{self} has no buffer")
        return self.buffer
