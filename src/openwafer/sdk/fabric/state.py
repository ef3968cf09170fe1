"""The machine's state: arrays for the compiled core, and views of them for Python.

Each band of the fabric has its own array. Those of several bands are the same memory, mapped once
for each band, but for their first part: so compiled code finds what is its band's own and what all
share at the same places.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.fabric import address_space
from openwafer.sdk.fabric import words as w

Array: TypeAlias = NDArray[np.int64]

_FEWEST_EVENTS: Final = 1 << 16
_FEWEST_SOURCE_WORDS: Final = 1 << 20
_SOURCE_SHARE: Final = 4
"""Where address space is limited, words from the host get one part of so many of what is left."""


class State(Protocol):
    """The array of :mod:`openwafer.sdk.fabric.words`, as compiled code sees it."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


def allocate(width: int, height: int, num_bands: int, num_images: int) -> list[Array]:
    """An empty machine, as an array a band; pages take memory once something is written to them.

    Raises OpenwaferError `fabric-no-memory` when there is no address space.
    """
    num_pes = width * height
    num_words = w.MEMORY_ROWS + num_pes * w.MEMORY_WORDS
    rows = {"event": w.MAX_EVENTS, "source_data": w.MAX_SOURCE_WORDS}
    pages = [(0, 8 * num_words)]
    free = address_space.free_bytes()
    if free is not None:
        rows = _rows_of(num_pes, num_images, free)
        pages = address_space.whole_pages(_extents(num_pes, rows))
    try:
        states = [address_space.reserved(8 * num_words, pages) for _ in range(num_bands)]
        if num_bands > 1:
            address_space.share(states, 8 * w.OWN_WORDS, pages)
    except OSError as cause:
        num_bytes = num_bands * sum(end - begin for begin, end in pages)
        raise _no_memory(width, height, num_bytes, free, cause) from cause
    for band, state in enumerate(states):
        state[w.G_WIDTH], state[w.G_HEIGHT], state[w.G_NUM_PES] = width, height, num_pes
        state[w.G_STEPS : w.G_STEPS + 4] = (-height, height, 1, -1)
        state[w.G_EVENT_LIMIT] = rows["event"] // 4
        state[w.G_SOURCE_ROOM] = rows["source_data"]
        state[w.G_BANDS], state[w.G_BAND] = num_bands, band
        state[w.G_ADDRESS] = state.ctypes.data
        addresses = [other.ctypes.data for other in states]
        state[w.G_BAND_ADDRESSES : w.G_BAND_ADDRESSES + num_bands] = addresses
        state[w.G_FIRST] = width * band // num_bands * height
        state[w.G_END] = width * (band + 1) // num_bands * height
    return states


def _rows_of(num_pes: int, num_images: int, free: int) -> dict[str, int]:
    """Rows that a machine needs of the regions that have none a PE, with `free` bytes left."""
    words = free // _SOURCE_SHARE // 8
    return {
        "event": min(w.MAX_EVENTS, _FEWEST_EVENTS + num_pes * (w.MAX_EVENTS // w.MAX_PES)),
        "filter": min(w.MAX_FILTERS, num_pes * w.COLORS),
        "image": num_images,
        "map": min(w.MAX_MAPS, num_images),
        "source": min(w.MAX_SOURCES, num_pes * w.COLORS),
        "source_data": min(w.MAX_SOURCE_WORDS, max(words, _FEWEST_SOURCE_WORDS)),
    }


def _extents(num_pes: int, rows: Mapping[str, int]) -> Iterator[address_space.Extent]:
    """Where a machine's words lie in its array, in bytes."""
    yield 0, 8 * w.GLOBAL_WORDS
    for name, region in {**w.OWN, **w.SHARED}.items():
        shape = region.shape
        used = num_pes if shape.is_by_pe else rows.get(name, shape.rows)
        for number in range(shape.sets):
            begin = region.start + number * shape.rows * shape.words
            yield 8 * begin, 8 * (begin + used * shape.words)


def _no_memory(
    width: int, height: int, num_bytes: int, free: int | None, cause: OSError
) -> OpenwaferError:
    left = "" if free is None else f", and {free / 2**20:,.0f} MiB are left"
    return error(
        "fabric-no-memory",
        f"{num_bytes / 2**20:,.0f} MiB of address space for {width} x {height} PEs: "
        f"{cause.strerror}{left}",
        help="raise the limit (ulimit -v), or simulate with one thread, or fewer PEs",
    )


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
        self.port = self.view("port")
        self.unwritten = self.view("unwritten")
        self.memory: NDArray[np.uint16] = self.view("memory").view(np.uint16)

    def queued(self, pe: int, queue: int, *, is_input: bool) -> tuple[int, int]:
        """Wavelets in a queue of a PE, and the slot of the first one."""
        word = int(self.core[pe, w.C_IN if is_input else w.C_OUT]) >> (8 * queue)
        return word >> w.COUNT_SHIFT & w.COUNT_MASK, word % w.QUEUE_SLOTS

    def view(self, name: str) -> Array:
        """The rows of a region that there are PEs for, or all."""
        region, num_pes = w.SHARED[name], int(self._state[w.G_NUM_PES])
        shape = region.shape
        if shape.sets == 1:
            rows = num_pes if shape.is_by_pe else shape.rows
            return self._state[region.start :][: rows * shape.words].reshape(rows, shape.words)
        cells = self._state[region.start : region.end]
        return cells.reshape(shape.sets, shape.rows, shape.words)[:, :num_pes]
