"""Queues between core and router, and who is awake."""

from openwafer.sdk.fabric import events
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled, inlined, lowest_bit
from openwafer.sdk.fabric.rows import (
    core_row,
    image_row,
    input_slot,
    mailbox_row,
    output_slot,
    processor_row,
    router_row,
    sleep_row,
)
from openwafer.sdk.fabric.state import State
from openwafer.sdk.program import mailbox as mb

WEST = 0
INNER_MASK = 15
"""Directions to other routers."""
CONTROL_TO_START = 25
"""From the bit of a control wavelet to START_BIT."""
SLOT_MASK = w.QUEUE_SLOTS - 1
WAVELET_MASK = 2 * w.CONTROL_BIT - 1
"""Data and the control bit."""


@inlined
def wake_router(s: State, pe: int) -> None:
    """The router looks at its wavelets in the next cycle."""
    flags = router_row(pe) + w.R_FLAGS
    if s[flags] & w.AWAKE_BIT == 0:
        s[flags] |= w.AWAKE_BIT
        s[w.ROUTER_LIST + s[w.G_ROUTERS]] = pe
        s[w.G_ROUTERS] += 1


@inlined
def wake_core(s: State, pe: int) -> None:
    """The core looks around in this cycle, or in the next one if it has already."""
    awake = s[core_row(pe) + w.C_AWAKE]
    if awake & w.AWAKE_BIT == 0:
        s[core_row(pe) + w.C_AWAKE] = awake | w.AWAKE_BIT
        s[w.CORE_LIST + s[w.G_CORES]] = pe
        s[w.G_CORES] += 1


@inlined
def stir(s: State, pe: int) -> None:
    """A main thread that rests looks again what it can start."""
    if s[core_row(pe) + w.C_MAIN] == w.MAIN_REST:
        s[core_row(pe) + w.C_MAIN] = w.MAIN_IDLE


@inlined
def activate(s: State, pe: int, task: int, cause: int, slot: int) -> None:
    """A task may run once it is not blocked; a record has by what, and by the operation of whom."""
    s[mailbox_row(pe) + mb.ACTIVE] |= 1 << task
    s[sleep_row(pe) + w.Z_READY] |= (1 << task) & ~s[mailbox_row(pe) + mb.BLOCKED]
    stir(s, pe)
    if events.is_noted(s, pe):
        events.note(s, w.E_READY, pe, events.of_slot(slot), task, cause)


@inlined
def neighbour(s: State, pe: int, direction: int) -> int:
    """The PE next to one in direction 0 west, 1 east, 2 south, 3 north; -1 beyond the edge."""
    if (s[router_row(pe) + w.R_FLAGS] >> (w.EDGE_SHIFT + direction)) & 1:
        return -1
    return pe + s[w.G_STEPS + direction]


@inlined
def is_own(s: State, pe: int) -> bool:
    """Whether a PE belongs to this band."""
    return s[w.G_FIRST] <= pe < s[w.G_END]


@inlined
def wake_senders(s: State, pe: int, sides: int) -> None:
    """Wake the routers on some sides of one that has space again; it is awake itself."""
    sides &= INNER_MASK & ~(s[router_row(pe) + w.R_FLAGS] >> w.EDGE_SHIFT)
    while sides:
        direction = lowest_bit(sides)
        sides &= sides - 1
        other = pe + s[w.G_STEPS + direction]
        if s[router_row(other) + w.R_FLAGS] & w.AWAKE_BIT == 0:
            wake_neighbour(s, pe, direction)


@compiled
def wake_neighbour(s: State, pe: int, direction: int) -> None:
    """Wake the router next to a PE, if there is one; another band's is called."""
    other = neighbour(s, pe, direction)
    if other < 0:
        return
    if is_own(s, other):
        wake_router(s, other)
        return
    side = int(direction != WEST)
    s[w.CALLS + side * w.MAX_CALLS + s[w.G_CALLS + side]] = other
    s[w.G_CALLS + side] += 1


@compiled
def wake_around(s: State, pe: int) -> None:
    """Wake a PE's router and its neighbours: it may take wavelets that it did not before."""
    wake_router(s, pe)
    for direction in range(4):
        wake_neighbour(s, pe, direction)


@inlined
def count_in(word: int, queue: int) -> int:
    """Wavelets in a queue, of a core's word about its input or output queues."""
    return (word >> (8 * queue + w.COUNT_SHIFT)) & w.COUNT_MASK


@inlined
def head_in(word: int, queue: int) -> int:
    """Slot of a queue's first wavelet."""
    return (word >> (8 * queue)) & SLOT_MASK


@inlined
def without_head(word: int, queue: int) -> int:
    """The word about queues after the first wavelet of one has gone."""
    before = (word >> (8 * queue)) & 255
    after = ((before + 1) & SLOT_MASK | before & ~SLOT_MASK) - (1 << w.COUNT_SHIFT)
    if after & w.COUNT_MASK << w.COUNT_SHIFT == 0:
        after &= SLOT_MASK
    return word ^ (before ^ after) << (8 * queue)


@inlined
def byte_of(s: State, row: int, number: int) -> int:
    """A byte of a row of bytes."""
    return (s[row + (number >> 3)] >> (8 * (number & 7))) & 255


@compiled
def set_byte(s: State, row: int, number: int, value: int) -> None:
    """Write one."""
    shift = 8 * (number & 7)
    at = row + (number >> 3)
    s[at] = (s[at] & ~(255 << shift)) | value << shift


@inlined
def queue_of(s: State, pe: int, color: int) -> int:
    """The input queue of a color, or -1."""
    return (byte_of(s, core_row(pe) + w.C_QUEUE_OF, color) & w.QUEUE_MASK) - 1


@inlined
def has_input_space(s: State, pe: int, queue: int) -> bool:
    """Whether an input queue takes one more wavelet."""
    return count_in(s[core_row(pe) + w.C_IN], queue) < s[w.G_DEPTHS + queue]


@inlined
def push_input(s: State, pe: int, bound: int, wavelet: int, ready: int) -> None:
    """Put a wavelet with its color into an input queue; the core sees it from `ready` on.

    `bound` is the queue and whether its wavelets start tasks, as C_QUEUE_OF has it.
    """
    queue = (bound & w.QUEUE_MASK) - 1
    at = core_row(pe) + w.C_IN
    word = s[at]
    slot = input_slot(pe, queue, (head_in(word, queue) + count_in(word, queue)) & SLOT_MASK)
    s[slot] = wavelet
    s[slot + 1] = ready
    start = (bound | (wavelet >> CONTROL_TO_START)) & w.START_BIT
    s[at] = (word + (1 << (8 * queue + w.COUNT_SHIFT))) | start << (8 * queue)
    wake_core(s, pe)


@compiled
def note_entry(s: State, pe: int, bound: int, wavelet: int, link: int) -> None:
    """Note a wavelet that came into an input queue."""
    where = events.of_color((wavelet >> w.COLOR_SHIFT) & 31) + events.of_link(link)
    where += events.of_queue((bound & w.QUEUE_MASK) - 1)
    events.note(s, w.E_ENTERED, pe, where, 0, wavelet & WAVELET_MASK)


@inlined
def input_ready(s: State, pe: int, queue: int) -> int:
    """Cycle from which the first wavelet of an input queue can be had; NEVER when it is empty."""
    word = s[core_row(pe) + w.C_IN]
    if count_in(word, queue) == 0:
        return w.NEVER
    return s[input_slot(pe, queue, head_in(word, queue)) + 1]


@inlined
def input_head(s: State, pe: int, queue: int) -> int:
    """The first wavelet of an input queue."""
    return s[input_slot(pe, queue, head_in(s[core_row(pe) + w.C_IN], queue))]


@inlined
def pop_input(s: State, pe: int, queue: int) -> None:
    """Take the first wavelet of an input queue."""
    if events.is_noted(s, pe):
        note_wavelet(s, w.E_TAKEN, pe, queue, input_head(s, pe, queue))
    drop_input(s, pe, queue)


@compiled
def note_wavelet(s: State, kind: int, pe: int, queue: int, wavelet: int) -> None:
    """Note a wavelet of a queue, which has its color."""
    color = (wavelet >> w.COLOR_SHIFT) & 31
    where = events.of_color(color) + events.of_queue(queue)
    events.note(s, kind, pe, where, 0, wavelet & WAVELET_MASK)


@inlined
def drop_input(s: State, pe: int, queue: int) -> None:
    """Drop the first wavelet of an input queue, from which nobody takes it."""
    word = s[core_row(pe) + w.C_IN]
    if count_in(word, queue) == s[w.G_DEPTHS + queue]:
        wake_router(s, pe)
    s[core_row(pe) + w.C_IN] = without_head(word, queue)


@compiled
def next_input(s: State, pe: int) -> int:
    """The next cycle at which a queue's first wavelet can be had that could not before."""
    soonest = w.NEVER
    waiting = s[core_row(pe) + w.C_IN] & w.COUNTS
    while waiting:
        queue = lowest_bit(waiting) >> 3
        waiting &= ~(255 << (8 * queue))
        at = input_ready(s, pe, queue)
        if s[w.G_NOW] < at < soonest:
            soonest = at
    return soonest


@compiled
def bind_input(s: State, pe: int, color: int, queue: int) -> None:
    """A color gets another input queue, which takes its wavelets over from the one before."""
    before = queue_of(s, pe, color)
    starting = queue if s[w.G_IS_WSE3] else color
    has_task = s[image_row(s[processor_row(pe) + w.P_IMAGE]) + w.I_DATA + starting] != 0
    set_byte(s, core_row(pe) + w.C_QUEUE_OF, color, queue + 1 + w.START_BIT * has_task)
    wake_router(s, pe)
    num = count_in(s[core_row(pe) + w.C_IN], before) if before >= 0 else 0
    for _ in range(num):
        wavelet, ready = input_head(s, pe, before), input_ready(s, pe, before)
        drop_input(s, pe, before)
        has_color = (wavelet >> w.COLOR_SHIFT) & 31 == color
        push_input(s, pe, (queue if has_color else before) + 1 + w.START_BIT, wavelet, ready)


@inlined
def output_ready(s: State, pe: int, queue: int) -> int:
    """Cycle from which an output queue takes a wavelet, as the core knows; NEVER while it is full.

    The core hears of a space some cycles after its wavelet has left.
    """
    word = s[core_row(pe) + w.C_OUT]
    count, depth = count_in(word, queue), s[w.G_DEPTHS + w.QUEUES + queue]
    if count >= depth:
        return w.NEVER
    # The space is that of the wavelet `depth` before, whose slot says since when it is free.
    before = (head_in(word, queue) + count - depth) & SLOT_MASK
    return s[output_slot(pe, queue, before) + 1]


@inlined
def may_send(s: State, pe: int, thread: int, queue: int) -> bool:
    """Whether a thread can put a wavelet into an output queue; it waits until it hears of space."""
    free = output_ready(s, pe, queue)
    if free <= s[w.G_NOW]:
        return True
    if free < w.NEVER:
        s[thread + w.T_NEXT] = free
    return False


@inlined
def push_output(s: State, pe: int, queue: int, wavelet: int) -> None:
    """Put a wavelet with its color into an output queue."""
    if events.is_noted(s, pe):
        note_wavelet(s, w.E_SENT, pe, queue, wavelet)
    at = core_row(pe) + w.C_OUT
    word = s[at]
    slot = output_slot(pe, queue, (head_in(word, queue) + count_in(word, queue)) & SLOT_MASK)
    s[slot] = wavelet
    s[slot + 1] = s[w.G_NOW] + s[w.G_RAMP_OUT]
    s[at] = word + (1 << (8 * queue + w.COUNT_SHIFT))
    s[router_row(pe) + w.R_BUSY] |= 1 << (w.COLORS + queue)
    s[w.G_WAVELETS] += 1
    wake_router(s, pe)


@inlined
def pop_output(s: State, pe: int, queue: int) -> int:
    """Take the first wavelet of an output queue."""
    word = s[core_row(pe) + w.C_OUT]
    if count_in(word, queue) == 1:
        s[router_row(pe) + w.R_BUSY] &= ~(1 << (w.COLORS + queue))
    s[core_row(pe) + w.C_OUT] = without_head(word, queue)
    wake_core(s, pe)
    slot = output_slot(pe, queue, head_in(word, queue))
    s[slot + 1] = s[w.G_NOW] + s[w.G_PLACE_KNOWN]
    if events.is_noted(s, pe):
        note_wavelet(s, w.E_LEFT, pe, queue, s[slot])
    return s[slot]


@compiled
def fail(s: State, error: int, pe: int, a: int, b: int) -> None:
    """Stop the machine; of several errors in a cycle the one of the lowest PE counts."""
    if s[w.G_ERROR] == 0 or pe < s[w.G_ERROR_PE]:
        s[w.G_ERROR] = error
        s[w.G_ERROR_PE] = pe
        s[w.G_ERROR_A] = a
        s[w.G_ERROR_B] = b
