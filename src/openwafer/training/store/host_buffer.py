"""Page-aligned host memory of exact size, outside malloc's arenas."""

import mmap
from typing import Final

import torch

HUGE_BYTES: Final = 2 << 20


class HostBuffer:
    """`num_bytes` of private anonymous memory, zero at first; it goes when its last view dies.

    Malloc keeps freed blocks in its arenas and rounds large ones up, so that nobody could predict
    the resident set; an anonymous mapping costs its size and nothing else. The first
    `num_huge_bytes` lie in huge pages.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.num_huge_bytes = num_bytes // HUGE_BYTES * HUGE_BYTES
        # Addresses to spare let the first huge page begin where one can.
        spare_bytes = HUGE_BYTES if self.num_huge_bytes else 0
        # A mapping cannot be empty: without bytes it is one page that nobody touches.
        self._mapping = mmap.mmap(
            -1,
            max(num_bytes + spare_bytes, mmap.PAGESIZE),
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        )
        whole = torch.frombuffer(self._mapping, dtype=torch.uint8)
        self._start = -whole.data_ptr() % HUGE_BYTES if self.num_huge_bytes else 0
        if self.num_huge_bytes:
            self._mapping.madvise(mmap.MADV_HUGEPAGE, self._start, self.num_huge_bytes)
        self.tensor = whole[self._start : self._start + num_bytes]

    def window(self, start: int, end: int) -> memoryview:
        """The bytes from `start` to `end`, for I/O and checksums."""
        return memoryview(self._mapping)[self._start + start : self._start + end]

    def clear(self, start: int = 0) -> None:
        """Make the bytes from `start` on zero, by giving their pages back."""
        first = self._start + start
        self._mapping.madvise(mmap.MADV_DONTNEED, first, len(self._mapping) - first)
