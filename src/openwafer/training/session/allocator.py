"""Tells the C library's allocator which large freed memory to keep and which to give back.

The kernel fills each page of a new mapping with zeros, and a hypervisor may have to find a page for
it besides. A step makes and frees a gradient for every weight, so during steps large blocks come
from the heap, which keeps its pages. All else that is large is mapped, and leaves the process when
it is freed: of blocks that live for long between others, the heap would keep the holes.

Source: mallopt(3) of glibc. A C library without ``mallopt`` is left as it is.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # malloc.h of glibc
M_MMAP_THRESHOLD: Final = -3
M_MMAP_MAX: Final = -4
DEFAULT_MMAP_MAX: Final = 65536
LARGE_BYTES: Final = 1 << 20
LARGEST_INT: Final = (1 << 31) - 1


def return_large_blocks() -> None:
    """Map new blocks of a MiB or more, from here on, and keep what the heap has.

    glibc raises its own threshold to the size of the blocks it sees freed, up to 32 MiB. Tensors
    of that size then come from a heap that fragments, and a process grows with the number of
    layers that pass through it.
    """
    _tune(M_MMAP_THRESHOLD, LARGE_BYTES)
    _tune(M_TRIM_THRESHOLD, LARGEST_INT)


@contextmanager
def keeping_freed_memory() -> Iterator[None]:
    """Context of a step: large blocks come from the heap, which uses its pages again."""
    _tune(M_MMAP_MAX, 0)
    try:
        yield
    finally:
        _tune(M_MMAP_MAX, DEFAULT_MMAP_MAX)


def _tune(parameter: int, value: int) -> None:
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(parameter, value)
