"""Address space for the machine's arrays: whole where it is free, else the pages that are used.

An array has room for the largest machine, since compiled code knows its places. Where the system
sets a limit on address space, only what a machine uses of it is mapped; the holes lie where the
system puts nothing else, far from both ends of a gap of many terabytes.
"""

import ctypes
import errno
import mmap
import os
import resource
import weakref
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

MAP_NORESERVE: Final = 0x4000
"""Linux: address space that no memory is set aside for; `mmap` names it from Python 3.13 on."""
MAP_FIXED: Final = 0x10
MAP_FIXED_NOREPLACE: Final = 0x100000
_END_OF_PROGRAMS: Final = 1 << 47
"""Addresses from here on are the system's own."""

PAGE_BYTES: Final = mmap.PAGESIZE
_PAGE_MAP: Final = Path("/proc/self/pagemap")
_HAS_MEMORY: Final = np.uint64(3 << 62)
"""Of a page's word there: it is in memory, or was moved out of it."""

Extent: TypeAlias = tuple[int, int]
"""Begin and end, in bytes."""

_LIBRARY: Final = ctypes.CDLL(None, use_errno=True)
_LIBRARY.mmap.restype = ctypes.c_void_p
_LIBRARY.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_LIBRARY.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBRARY.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED: Final = ctypes.c_void_p(-1).value


def free_bytes() -> int | None:
    """Address space that the process may still take; None where nothing limits it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return max(0, limit - taken * mmap.PAGESIZE)


def whole_pages(extents: Iterable[Extent]) -> list[Extent]:
    """Extents rounded to pages, in order, and joined where they touch."""
    pages: list[Extent] = []
    size = mmap.PAGESIZE
    for begin, end in sorted(extents):
        first, last = begin // size * size, -(-end // size) * size
        if pages and first <= pages[-1][1]:
            pages[-1] = pages[-1][0], max(pages[-1][1], last)
        else:
            pages.append((first, last))
    return pages


class _Memory:
    """What an array's address space belongs to: it is given back when the array is gone.

    From the byte `shared_from` on it shows a file of memory, which other arrays show as well.
    """

    def __init__(self, address: int, num_bytes: int) -> None:
        self.address = address
        self.file = -1
        self.shared_from = num_bytes
        self.__array_interface__ = {
            "version": 3,
            "typestr": "<i8",
            "shape": (num_bytes // 8,),
            "data": (address, False),
        }


def reserved(num_bytes: int, extents: Sequence[Extent]) -> NDArray[np.int64]:
    """An array of zeros of which nothing outside of `extents` may be touched.

    Pages take memory once something is written to them. Raises OSError where address space lacks.
    """
    is_whole = extents == [(0, num_bytes)]
    address = None if is_whole else _middle_of_a_gap(num_bytes)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    mapped: list[Extent] = []
    try:
        for begin, end in extents:
            wanted = None if address is None else address + begin
            place = 0 if wanted is None else MAP_FIXED_NOREPLACE
            at = _map(wanted, end - begin, flags | place)
            mapped.append((at, end - begin))
            # Rows are far apart in some regions: a huge page for each would waste most of it.
            _LIBRARY.madvise(at, end - begin, mmap.MADV_NOHUGEPAGE)
    except OSError:
        _give_back(mapped)
        raise
    memory = _Memory(mapped[0][0] - extents[0][0], num_bytes)
    weakref.finalize(memory, _give_back, mapped).atexit = False
    return np.asarray(memory)


def share(arrays: Sequence[NDArray[np.int64]], start: int, extents: Sequence[Extent]) -> None:
    """Put the same memory behind all arrays, from the byte `start` on. Raises OSError."""
    file = os.memfd_create("fabric")
    try:
        os.ftruncate(file, 8 * arrays[0].size - start)
        flags = mmap.MAP_SHARED | MAP_FIXED | MAP_NORESERVE
        for array in arrays:
            for begin, end in extents:
                first = max(begin, start)
                if first < end:
                    address = array.ctypes.data + first
                    _map(address, end - first, flags, file, first - start)
    except OSError:
        os.close(file)
        raise
    memory = _memory_of(arrays[0])
    memory.file, memory.shared_from = file, start
    weakref.finalize(memory, os.close, file).atexit = False


def written_pages(array: NDArray[np.int64], extents: Sequence[Extent]) -> list[NDArray[np.int64]]:
    """For each extent, numbers of the array's pages that may hold something else than zeros.

    Others take memory once they are read where arrays share it, so they should be let alone. The
    array is one of :func:`reserved`, the first one where several share; then all extents lie in
    what is shared, or none.
    """
    memory = _memory_of(array)
    if extents and extents[0][0] >= memory.shared_from:
        return [_pages_of_file(memory, *extent) for extent in extents]
    try:
        with _PAGE_MAP.open("rb") as page_map:
            return [_pages_of_map(page_map, memory, *extent) for extent in extents]
    except OSError:
        # The system tells nothing of pages; a hole of an array's own takes no memory when read.
        return [np.arange(begin // PAGE_BYTES, -(-end // PAGE_BYTES)) for begin, end in extents]


def _pages_of_map(page_map: BinaryIO, memory: _Memory, begin: int, end: int) -> NDArray[np.int64]:
    first = begin // PAGE_BYTES
    num_pages = -(-end // PAGE_BYTES) - first
    page_map.seek(8 * (memory.address // PAGE_BYTES + first))
    words = np.frombuffer(page_map.read(8 * num_pages), np.uint64)
    return first + np.flatnonzero(words & _HAS_MEMORY)


def _pages_of_file(memory: _Memory, begin: int, end: int) -> NDArray[np.int64]:
    parts = [np.zeros(0, np.int64)]
    at, behind = begin - memory.shared_from, end - memory.shared_from
    while at < behind:
        try:
            at = os.lseek(memory.file, at, os.SEEK_DATA)
        except OSError as cause:
            if cause.errno != errno.ENXIO:
                raise
            break
        hole = min(os.lseek(memory.file, at, os.SEEK_HOLE), behind)
        parts.append(np.arange(at // PAGE_BYTES, -(-hole // PAGE_BYTES)))
        at = hole
    return np.concatenate(parts) + memory.shared_from // PAGE_BYTES


def _memory_of(array: NDArray[np.int64]) -> _Memory:
    return cast(_Memory, array.base)


def _map(address: int | None, num_bytes: int, flags: int, file: int = -1, offset: int = 0) -> int:
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    at = _LIBRARY.mmap(address, num_bytes, protection, flags, file, offset)
    if at == _FAILED or (address is not None and at != address):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(at)


def _give_back(mapped: Iterable[Extent]) -> None:
    for address, num_bytes in mapped:
        _LIBRARY.munmap(address, num_bytes)


def _middle_of_a_gap(num_bytes: int) -> int:
    """A page in the middle of the largest range of addresses that nothing uses."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    used = [tuple(int(part, 16) for part in line.split()[0].split("-")) for line in lines]
    gaps = [(one[1], other[0]) for one, other in pairwise(used) if other[1] <= _END_OF_PROGRAMS]
    end, begin = max(gaps, key=lambda gap: gap[1] - gap[0])
    middle = (end + begin - num_bytes) // 2
    return max(end, middle) // mmap.PAGESIZE * mmap.PAGESIZE
