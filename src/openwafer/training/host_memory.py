"""This process's host memory: how much it has, and what of freed memory the C library keeps.

It is read from Linux's `/proc/self/status`. Anonymous, file-backed and shared pages are kept apart,
because only the first and the last count against a machine's memory for certain: file pages are
cache that the kernel takes back.

The kernel fills each page of a new mapping with zeros, and a hypervisor may have to find a page for
it besides. A step makes and frees a gradient for every weight, so during steps large blocks come
from the heap, which keeps its pages. All else that is large is mapped, and leaves the process when
it is freed: of blocks that live for long between others, the heap would keep the holes.

What the heap keeps is more than a step needs. A tensor's block begins at a multiple of 64 bytes; to
place one, glibc looks for a hole that is 112 bytes larger, and a block that is freed between two
others leaves one that is 96 larger. So a tensor seldom comes to lie where one of its size was
freed, and a deep model or several micro-batches would let the heap grow to several times what is in
use. Beyond a limit, such holes go back to the kernel.

Source: mallopt(3), malloc_trim(3) and ``_int_memalign`` of glibc. A C library without these
functions is left as it is.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Final

from openwafer.diagnostics import error

OWN_STATUS = Path("/proc/self/status")
_FIELDS = (b"RssAnon", b"RssFile", b"RssShmem", b"VmHWM")


@dataclass(frozen=True)
class HostMemory:
    """Bytes of resident pages by kind, and the kernel's own peak of their sum."""

    anonymous_bytes: int
    file_bytes: int
    shared_bytes: int
    peak_bytes: int

    @property
    def resident_bytes(self) -> int:
        return self.anonymous_bytes + self.file_bytes + self.shared_bytes


def read_host_memory(status: Path = OWN_STATUS) -> HostMemory:
    """The state of this process, or of the one whose status file is given; 20 microseconds.

    Raises:
        OpenwaferError: ``host-memory-unreadable`` where there is no Linux `/proc`.
    """
    try:
        text = status.read_bytes()
    except OSError as cause:
        raise error(
            "host-memory-unreadable",
            f"cannot read {status}: {cause.strerror}",
            help="host memory is measured on Linux with /proc mounted",
        ) from cause
    try:
        return HostMemory(*(_field_bytes(text, name) for name in _FIELDS))
    except ValueError as cause:
        raise error(
            "host-memory-unreadable",
            f"{status} lacks one of the fields {', '.join(name.decode() for name in _FIELDS)}",
            help="host memory is measured on Linux 4.5 or later",
        ) from cause


def _field_bytes(text: bytes, name: bytes) -> int:
    start = text.index(name + b":") + len(name) + 1
    return 1024 * int(text[start : text.index(b"kB", start)])


M_TRIM_THRESHOLD: Final = -1  # malloc.h of glibc
M_MMAP_THRESHOLD: Final = -3
M_MMAP_MAX: Final = -4
DEFAULT_MMAP_MAX: Final = 65536
LARGE_BYTES: Final = 1 << 20
LARGEST_INT: Final = (1 << 31) - 1
# Of the limit: what a heap may keep beyond it before its holes are worth their page faults.
MARGIN: Final = 1 / 16
INTERVAL_SECONDS: Final = 0.01


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


@contextmanager
def returning_holes(limit_bytes: int | None) -> Iterator[None]:
    """Context in which the heap's holes go back to the kernel when the process is too large.

    Args:
        limit_bytes: of the resident set, which may be a sixteenth larger; ``None`` is no limit.
    """
    library = _library()
    if limit_bytes is None or not hasattr(library, "malloc_trim"):
        yield
        return
    ended = Event()
    arguments = (limit_bytes, library.malloc_trim, ended)
    thread = Thread(target=_return_holes, args=arguments, name="heap", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _return_holes(limit_bytes: int, trim: Callable[[int], int], ended: Event) -> None:
    margin_bytes = limit_bytes * MARGIN
    tried_at = limit_bytes + margin_bytes
    while not ended.wait(INTERVAL_SECONDS):
        if read_host_memory().resident_bytes > tried_at:
            trim(0)
            # What is left is in use, and would be looked through in vain again.
            left_bytes = read_host_memory().resident_bytes
            tried_at = max(limit_bytes, left_bytes) + margin_bytes


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _tune(parameter: int, value: int) -> None:
    library = _library()
    if hasattr(library, "mallopt"):
        library.mallopt(parameter, value)
