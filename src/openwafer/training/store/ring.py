"""The bounded memory through which parts on disk pass: read-ahead and write-behind share it.

Buffers have the exact size of their part and are mapped one by one, so the bound is a sum of bytes
and nothing is lost to fragments. Layers of a model mostly have equal sizes; a buffer that comes
free is reused for the next part of that size, and its pages for parts of other sizes.
"""

from collections.abc import Sequence

from openwafer.training.store.host_buffer import HostBuffer
from openwafer.training.store.part_state import PartState
from openwafer.training.store.spare_pages import SparePages


class Ring:
    """At most `num_bytes` of buffers: lent, idle (clean, still holding their part), or spare."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.mapped_bytes = 0
        self._spare: list[HostBuffer] = []
        self._spare_pages = SparePages()
        self._idle: dict[PartState, None] = {}
        self._idle_bytes = 0

    def has_room(self, parts: Sequence[PartState], kept: Sequence[PartState]) -> bool:
        """Whether buffers for `parts` can be had while those of `kept` stay."""
        reusable_bytes = self._idle_bytes
        reusable_bytes -= sum(part.num_bytes for part in set(kept) if part in self._idle)
        reusable_bytes += sum(buffer.num_bytes for buffer in self._spare)
        reusable_bytes += self._spare_pages.num_bytes
        free_bytes = self.num_bytes - self.mapped_bytes + reusable_bytes
        return sum(part.num_bytes for part in parts) <= free_bytes

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
        part.is_loaded = False
        part.read_error = None
