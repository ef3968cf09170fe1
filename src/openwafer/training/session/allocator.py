"""Asks the C library's allocator to give large freed memory back."""

import ctypes
from typing import Final

M_MMAP_THRESHOLD: Final = -3  # malloc.h of glibc
LARGE_BYTES: Final = 1 << 20


def return_large_blocks() -> None:
    """Have every block of a MiB or more leave the process when it is freed, from here on.

    glibc raises its own threshold to the size of the blocks it sees freed, up to 32 MiB. Tensors
    of that size then come from a heap that fragments, and a process grows with the number of
    layers that pass through it. A C library without ``mallopt`` needs no such thing.

    Source: mallopt(3), notes on the dynamic threshold.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
