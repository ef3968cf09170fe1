"""Queues between core and router, and who is awake."""

from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled
from openwafer.sdk.fabric.rows import core_row, router_row
from openwafer.sdk.fabric.state import State


@compiled
def wake_router(s: State, pe: int) -> None:
    """The router looks at its wavelets in the next cycle."""
    if s[router_row(pe) + w.R_AWAKE] == 0:
        s[router_row(pe) + w.R_AWAKE] = 1
        s[w.ROUTER_LIST + s[w.G_ROUTERS]] = pe
        s[w.G_ROUTERS] += 1


@compiled
def wake_core(s: State, pe: int) -> None:
    """The core looks around in this cycle, or in the next one if it has already."""
    if s[core_row(pe) + w.C_AWAKE] == 0:
        s[core_row(pe) + w.C_AWAKE] = 1
        s[w.CORE_LIST + s[w.G_CORES]] = pe
        s[w.G_CORES] += 1


@compiled
def neighbour(s: State, pe: int, direction: int) -> int:
    """The PE next to one in direction 0 west, 1 east, 2 south, 3 north; -1 beyond the edge."""
    if (s[router_row(pe) + w.R_EDGES] >> direction) & 1:
        return -1
    if direction < 2:
        return pe - 1 + 2 * direction
    return pe + s[w.G_WIDTH] if direction == 2 else pe - s[w.G_WIDTH]


@compiled
def wake_around(s: State, pe: int) -> None:
    """Wake a PE's router and its neighbours: it may take wavelets that it did not before."""
    wake_router(s, pe)
    for direction in range(4):
        other = neighbour(s, pe, direction)
        if other >= 0:
            wake_router(s, other)


@compiled
def has_input_space(s: State, pe: int, queue: int) -> bool:
    """Whether an input queue takes one more wavelet."""
    return s[core_row(pe) + w.C_IN_META + queue] >> 8 < s[w.G_DEPTHS + queue]


@compiled
def push_input(s: State, pe: int, queue: int, wavelet: int, ready: int) -> None:
    """Put a wavelet with its color into an input queue; the core sees it from `ready` on."""
    core = core_row(pe)
    meta = s[core + w.C_IN_META + queue]
    slot = queue * w.QUEUE_SLOTS + ((meta & 0xFF) + (meta >> 8)) % w.QUEUE_SLOTS
    s[core + w.C_IN_DATA + slot] = wavelet
    s[core + w.C_IN_READY + slot] = ready
    s[core + w.C_IN_META + queue] = meta + 256
    wake_core(s, pe)


@compiled
def input_ready(s: State, pe: int, queue: int) -> int:
    """Cycle from which the first wavelet of an input queue can be had; NEVER when it is empty."""
    core = core_row(pe)
    meta = s[core + w.C_IN_META + queue]
    if meta >> 8 == 0:
        return w.NEVER
    return s[core + w.C_IN_READY + queue * w.QUEUE_SLOTS + (meta & 0xFF)]


@compiled
def input_head(s: State, pe: int, queue: int) -> int:
    """The first wavelet of an input queue."""
    core = core_row(pe)
    return s[core + w.C_IN_DATA + queue * w.QUEUE_SLOTS + (s[core + w.C_IN_META + queue] & 0xFF)]


@compiled
def pop_input(s: State, pe: int, queue: int) -> None:
    """Drop the first wavelet of an input queue."""
    core = core_row(pe)
    meta = s[core + w.C_IN_META + queue]
    if meta >> 8 == s[w.G_DEPTHS + queue]:
        wake_router(s, pe)
    s[core + w.C_IN_META + queue] = ((meta & ~255) - 256) | ((meta & 255) + 1) % w.QUEUE_SLOTS


@compiled
def bind_input(s: State, pe: int, color: int, queue: int) -> None:
    """A color gets another input queue, which takes its wavelets over from the one before."""
    before = s[core_row(pe) + w.C_QUEUE_OF + color] - 1
    s[core_row(pe) + w.C_QUEUE_OF + color] = queue + 1
    wake_router(s, pe)
    num = s[core_row(pe) + w.C_IN_META + before] >> 8 if before >= 0 else 0
    for _ in range(num):
        wavelet, ready = input_head(s, pe, before), input_ready(s, pe, before)
        pop_input(s, pe, before)
        is_own = (wavelet >> w.COLOR_SHIFT) & 31 == color
        push_input(s, pe, queue if is_own else before, wavelet, ready)


@compiled
def has_output_space(s: State, pe: int, queue: int) -> bool:
    """Whether an output queue takes one more wavelet."""
    return s[core_row(pe) + w.C_OUT_META + queue] >> 8 < s[w.G_DEPTHS + w.QUEUES + queue]


@compiled
def push_output(s: State, pe: int, queue: int, wavelet: int) -> None:
    """Put a wavelet with its color into an output queue."""
    core = core_row(pe)
    meta = s[core + w.C_OUT_META + queue]
    slot = queue * w.QUEUE_SLOTS + ((meta & 0xFF) + (meta >> 8)) % w.QUEUE_SLOTS
    s[core + w.C_OUT_DATA + slot] = wavelet
    s[core + w.C_OUT_READY + slot] = s[w.G_NOW] + s[w.G_RAMP_OUT]
    s[core + w.C_OUT_META + queue] = meta + 256
    s[router_row(pe) + w.R_BUSY] |= 1 << (w.COLORS + queue)
    s[w.G_WAVELETS] += 1
    wake_router(s, pe)


@compiled
def pop_output(s: State, pe: int, queue: int) -> int:
    """Take the first wavelet of an output queue."""
    core = core_row(pe)
    meta = s[core + w.C_OUT_META + queue]
    wavelet = s[core + w.C_OUT_DATA + queue * w.QUEUE_SLOTS + (meta & 0xFF)]
    s[core + w.C_OUT_META + queue] = ((meta & ~255) - 256) | ((meta & 255) + 1) % w.QUEUE_SLOTS
    if meta >> 8 == 1:
        s[router_row(pe) + w.R_BUSY] &= ~(1 << (w.COLORS + queue))
    wake_core(s, pe)
    return wavelet


@compiled
def record(s: State, kind: int, pe: int, a: int, b: int) -> None:
    """Add an event for the host; the main loop stops for it before the list is full."""
    row = w.EVENT + s[w.G_EVENTS] * w.EVENT_WORDS
    s[row] = kind
    s[row + 1] = s[w.G_NOW]
    s[row + 2] = pe
    s[row + 3] = a
    s[row + 4] = b
    s[w.G_EVENTS] += 1


@compiled
def fail(s: State, error: int, pe: int, a: int, b: int) -> None:
    """Stop the machine; of several errors in a cycle the one of the lowest PE counts."""
    if s[w.G_ERROR] == 0 or pe < s[w.G_ERROR_PE]:
        s[w.G_ERROR] = error
        s[w.G_ERROR_PE] = pe
        s[w.G_ERROR_A] = a
        s[w.G_ERROR_B] = b
