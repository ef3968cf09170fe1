"""Gets memory from the kernel page by page: buffers of exact size, and pages that move or leave."""

import ctypes
import mmap
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
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
            # A kernel that has no huge pages refuses the advice.
            with suppress(OSError):
                self._mapping.madvise(mmap.MADV_HUGEPAGE, self._start, self.num_huge_bytes)
        self.tensor = whole[self._start : self._start + num_bytes]

    def window(self, start: int, end: int) -> memoryview:
        """The bytes from `start` to `end`, for I/O and checksums."""
        return memoryview(self._mapping)[self._start + start : self._start + end]

    def clear(self, start: int = 0) -> None:
        """Make the bytes from `start` on zero, by giving their pages back."""
        first = self._start + start
        self._mapping.madvise(mmap.MADV_DONTNEED, first, len(self._mapping) - first)


class SparePages:
    """Pages of buffers whose size nobody wants; `num_bytes` of them."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._givers: list[tuple[HostBuffer, int]] = []

    def add(self, buffer: HostBuffer) -> None:
        """Keep the huge pages of a buffer that nobody uses; the rest of it goes."""
        buffer.clear(buffer.num_huge_bytes)
        self._givers.append((buffer, buffer.num_huge_bytes))
        self.num_bytes += buffer.num_huge_bytes

    def move_to(self, buffer: HostBuffer) -> int:
        """Put pages below a new buffer; return their bytes, which are not spare any more."""
        num_moved = 0
        while self._givers and num_moved < buffer.num_huge_bytes:
            giver, num_held = self._givers.pop()
            size = min(num_held, buffer.num_huge_bytes - num_moved)
            source = giver.tensor.data_ptr() + num_held - size
            if not move_pages(source, buffer.tensor.data_ptr() + num_moved, size):
                self._givers.append((giver, num_held))
                break
            num_moved += size
            if num_held > size:
                self._givers.append((giver, num_held - size))
        self.num_bytes -= num_moved
        return num_moved

    def give_back(self) -> int:
        """Give some pages back to the system; return their bytes, 0 when none were spare."""
        _, num_bytes = self._givers.pop() if self._givers else (None, 0)
        self.num_bytes -= num_bytes
        return num_bytes


PAGE_MAP: Final = Path("/proc/self/pagemap")

# Linux 5.4; see madvise(2). Reclaims pages with their contents: file-backed ones go to their file,
# others to swap or nowhere.
_MADV_PAGEOUT = 21
# Linux 5.7; see mremap(2). The third leaves the old addresses mapped, with nothing behind them.
_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
)


def page_out(tensor: torch.Tensor) -> None:
    """Ask the kernel to take the whole pages below a contiguous host tensor out of memory.

    The next use brings them back. An older kernel ignores the advice.
    """
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > start:
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_PAGEOUT)


def resident_bytes(storage: torch.UntypedStorage) -> int:
    """Bytes of a host storage's whole pages that are in this process's resident set.

    Source: pagemap in the kernel's guide to /proc; the highest bit of a page's 8 bytes says so.
    """
    first = -(-storage.data_ptr() // mmap.PAGESIZE)
    num_pages = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE - first
    if num_pages <= 0:
        return 0
    with PAGE_MAP.open("rb", buffering=0) as file:
        file.seek(8 * first)
        entries = np.frombuffer(file.read(8 * num_pages), dtype=np.uint64)
    return int(np.count_nonzero(entries >> np.uint64(63))) * mmap.PAGESIZE


def move_pages(source: int, target: int, num_bytes: int) -> bool:
    """Move the pages at one address, contents and all, to another; say whether the kernel did.

    Both are in private anonymous mappings; the source reads as zeros afterwards. Huge pages stay
    whole where addresses and size are multiples of theirs.
    """
    flags = _MREMAP_MAYMOVE | _MREMAP_FIXED | _MREMAP_DONTUNMAP
    moved: int | None = _libc.mremap(source, num_bytes, num_bytes, flags, target)
    return moved == target
