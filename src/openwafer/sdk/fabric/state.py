"""The machine's state: arrays for the compiled core, and views of them for Python.

Each band of the fabric has its own array. Those of several bands are the same memory, mapped once
for each band, but for their first part: so compiled code finds what is its band's own and what all
share at the same places.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.fabric import words as w

MAP_NORESERVE: Final = 0x4000
"""Linux: address space that no memory is set aside for; `mmap` names it from Python 3.13 on."""
MAP_FIXED: Final = 0x10

Array: TypeAlias = NDArray[np.int64]


class State(Protocol):
    """The array of :mod:`openwafer.sdk.fabric.words`, as compiled code sees it."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


def allocate(width: int, height: int, num_bands: int) -> list[Array]:
    """An empty machine, as an array a band; pages take memory once something is written to them.

    Raises OpenwaferError `fabric-no-memory` when there is no address space.
    """
    num_pes = width * height
    num_words = w.MEMORY_ROWS + num_pes * w.MEMORY_WORDS
    states = [_reserve(num_words) for _ in range(num_bands)]
    if num_bands > 1:
        _share(states)
    for band, state in enumerate(states):
        state[w.G_WIDTH], state[w.G_HEIGHT], state[w.G_NUM_PES] = width, height, num_pes
        state[w.G_STEPS : w.G_STEPS + 4] = (-height, height, 1, -1)
        state[w.G_EVENT_LIMIT] = w.MAX_EVENTS // 4
        state[w.G_BANDS], state[w.G_BAND] = num_bands, band
        state[w.G_ADDRESS] = state.ctypes.data
        addresses = [other.ctypes.data for other in states]
        state[w.G_BAND_ADDRESSES : w.G_BAND_ADDRESSES + num_bands] = addresses
        state[w.G_FIRST] = width * band // num_bands * height
        state[w.G_END] = width * (band + 1) // num_bands * height
    return states


def _reserve(num_words: int) -> Array:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    buffer = mmap.mmap(-1, 8 * num_words, flags=flags)
    # Rows are far apart in some regions: a huge page for each would waste most of it.
    buffer.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(buffer, np.int64)


def _share(states: list[Array]) -> None:
    """Put the same memory behind the own part of all arrays."""
    num_bytes = 8 * (states[0].size - w.OWN_WORDS)
    file = os.memfd_create("fabric")
    os.ftruncate(file, num_bytes)
    map_memory = ctypes.CDLL(None, use_errno=True).mmap
    map_memory.restype = ctypes.c_void_p
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    map_memory.argtypes = (pointer, size, number, number, number, ctypes.c_long)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_SHARED | MAP_FIXED | MAP_NORESERVE
    for state in states:
        wanted = state.ctypes.data + 8 * w.OWN_WORDS
        if map_memory(wanted, num_bytes, protection, flags, file, 0) != wanted:
            reason = os.strerror(ctypes.get_errno())
            raise error(
                "fabric-no-memory",
                f"{num_bytes} bytes of address space for a fabric: {reason}",
                help="simulate with one thread",
            )
    os.close(file)


def band_of(states: Sequence[Array], pe: int) -> int:
    """Number of the band that a PE belongs to."""
    return next(band for band, state in enumerate(states) if pe < state[w.G_END])


class Tables:
    """The regions of a state as arrays of shape (rows, words), or (sets, rows, words)."""

    def __init__(self, state: Array) -> None:
        self._state = state
        self.router = self.view("router")
        self.core = self.view("core")
        self.processor = self.view("processor")
        self.mailbox = self.view("mailbox")
        self.thread = self.view("thread")
        """By slot, then by PE; the others down to FIFOs are alike."""
        self.job = self.view("job")
        self.route = self.view("route")[:, :, 0]
        self.queue = self.view("queue")
        self.channel = self.view("channel")
        self.dsr = self.view("dsr")
        self.fifo = self.view("fifo")
        self.sink = self.view("sink").reshape(-1, w.SINK_WORDS)
        self.taken = self.view("taken")[:, :, 0]
        self.filter = self.view("filter")
        self.image = self.view("image")
        self.map = self.view("map")
        self.vector = self.view("vector")
        self.source = self.view("source")
        self.unwritten = self.view("unwritten")
        self.memory: NDArray[np.uint16] = self.view("memory").view(np.uint16)

    def view(self, name: str) -> Array:
        """The rows of a region that there are PEs for, or all."""
        region, num_pes = w.SHARED[name], int(self._state[w.G_NUM_PES])
        shape = region.shape
        if shape.sets == 1:
            rows = num_pes if shape.is_by_pe else shape.rows
            return self._state[region.start :][: rows * shape.words].reshape(rows, shape.words)
        cells = self._state[region.start : region.end]
        return cells.reshape(shape.sets, shape.rows, shape.words)[:, :num_pes]


def events_of(state: Array) -> Array:
    """What a band has recorded for the host, a row an event."""
    end = w.EVENT + int(state[w.G_EVENTS]) * w.EVENT_WORDS
    return state[w.EVENT : end].reshape(-1, w.EVENT_WORDS)
