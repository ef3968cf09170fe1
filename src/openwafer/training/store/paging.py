"""What the kernel does with pages at our word, beyond what `mmap` has."""

import ctypes
import mmap

import torch

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


def move_pages(source: int, target: int, num_bytes: int) -> bool:
    """Move the pages at one address, contents and all, to another; say whether the kernel did.

    Both are in private anonymous mappings; the source reads as zeros afterwards. Huge pages stay
    whole where addresses and size are multiples of theirs.
    """
    flags = _MREMAP_MAYMOVE | _MREMAP_FIXED | _MREMAP_DONTUNMAP
    moved: int | None = _libc.mremap(source, num_bytes, num_bytes, flags, target)
    return moved == target
