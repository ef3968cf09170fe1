"""Asks the kernel to do with pages what `mmap` has no call for."""

import ctypes
import mmap
from pathlib import Path
from typing import Final

import numpy as np
import torch

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
