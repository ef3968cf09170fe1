"""The machine's state: one array for the compiled core, and views of it for Python."""

import mmap
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.fabric import words as w

MAP_NORESERVE = 0x4000
"""Linux: address space that no memory is set aside for; `mmap` names it from Python 3.13 on."""

Array: TypeAlias = NDArray[np.int64]


class State(Protocol):
    """The array of :mod:`openwafer.sdk.fabric.words`, as compiled code sees it."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


def allocate(num_pes: int) -> Array:
    """An empty machine; pages take memory once something is written to them."""
    num_words = w.MEMORY_ROWS + num_pes * w.MEMORY_WORDS
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    buffer = mmap.mmap(-1, 8 * num_words, flags=flags)
    # Rows are far apart in some regions: a huge page for each would waste most of it.
    buffer.madvise(mmap.MADV_NOHUGEPAGE)
    state = np.frombuffer(buffer, np.int64)
    state[w.G_NUM_PES] = num_pes
    state[w.G_ADDRESS] = state.ctypes.data
    state[w.G_EVENT_LIMIT] = w.MAX_EVENTS // 4
    return state


class Tables:
    """The regions of a state as arrays of shape (rows, words)."""

    def __init__(self, state: Array) -> None:
        num_pes = int(state[w.G_NUM_PES])
        self._state = state
        self.router = self._rows(w.ROUTER, num_pes, w.ROUTER_WORDS)
        self.core = self._rows(w.CORE, num_pes, w.CORE_WORDS)
        self.mailbox = self._rows(w.MAILBOX, num_pes, w.MAILBOX_WORDS)
        threads = self._rows(w.THREADS, num_pes, w.THREADS_WORDS)[:, : w.SLOTS * w.THREAD_WORDS]
        self.thread = np.lib.stride_tricks.as_strided(
            threads,
            (num_pes, w.SLOTS, w.THREAD_WORDS),
            (8 * w.THREADS_WORDS, 8 * w.THREAD_WORDS, 8),
        )
        self.dsr = self._rows(w.DSR, num_pes * w.NUM_DSRS, w.DSR_WORDS)
        self.fifo = self._rows(w.FIFO_ROWS, num_pes * w.FIFOS, w.FIFO_WORDS)
        self.sink = self._rows(w.SINK, num_pes * w.SINKS, 2)
        self.filter = self._rows(w.FILTER, w.MAX_FILTERS, w.FILTER_WORDS)
        self.image = self._rows(w.IMAGE, w.MAX_IMAGES, w.IMAGE_WORDS)
        self.vector = self._rows(w.VECTOR, w.NUM_VECTOR_CODES, w.VECTOR_WORDS)
        self.source = self._rows(w.SOURCE, w.MAX_SOURCES, w.SOURCE_WORDS)
        self.event = self._rows(w.EVENT, w.MAX_EVENTS, w.EVENT_WORDS)
        memory = self._rows(w.MEMORY_ROWS, num_pes, w.MEMORY_WORDS)
        self.memory: NDArray[np.uint16] = memory.view(np.uint16)

    def _rows(self, start: int, rows: int, columns: int) -> Array:
        return self._state[start : start + rows * columns].reshape(rows, columns)
