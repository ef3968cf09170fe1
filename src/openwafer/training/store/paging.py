"""Takes memory out of the resident set without losing what it holds."""

import ctypes
import mmap

import torch

# Linux 5.4; see madvise(2). Reclaims pages with their contents: file-backed ones go to their file,
# others to swap or nowhere.
_MADV_PAGEOUT = 21
_libc = ctypes.CDLL(None, use_errno=True)


def page_out(tensor: torch.Tensor) -> None:
    """Ask the kernel to take the whole pages below a contiguous host tensor out of memory.

    The next use brings them back. An older kernel ignores the advice.
    """
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > start:
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_PAGEOUT)
