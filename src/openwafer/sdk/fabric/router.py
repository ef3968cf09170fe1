"""One cycle of all awake routers: first what can leave is decided, then it moves.

Decisions read only what held at the beginning of the cycle, so their order does not matter.
A wavelet leaves to all outputs of its route at once or not at all. Each link carries one wavelet a
cycle; the color that comes first changes from cycle to cycle. A wavelet that finds no space, no
route or a route that takes nothing from its side waits.
"""

from typing import Final

import numpy as np

from openwafer.sdk.fabric import control, queues, route
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled
from openwafer.sdk.fabric.rows import core_row, router_row
from openwafer.sdk.fabric.state import State

OUTPUT_MOVE: Final = 64
"""Moves with at least this number come from an output queue."""
OPPOSITE: Final = np.array([1, 0, 3, 2, 4], np.int64)
SLOT_MASK: Final = 255
_DE_BRUIJN: Final = 0x077CB531
_BIT_OF: Final = np.zeros(32, np.int64)
for _bit in range(32):
    _BIT_OF[((_DE_BRUIJN << _bit) & 0xFFFFFFFF) >> 27] = _bit


@compiled
def lowest_bit(mask: int) -> int:
    """Number of the lowest set bit of a mask of 32 bits that is not 0."""
    number: int = _BIT_OF[(((mask & -mask) * _DE_BRUIJN) & 0xFFFFFFFF) >> 27]
    return number


@compiled
def accepts(s: State, pe: int, color: int, direction: int) -> bool:
    """Whether a router takes a wavelet of a color from a direction now."""
    word = s[router_row(pe) + w.R_ROUTE + color]
    if word & route.TORN_BIT or (route.receives(word) >> direction) & 1 == 0:
        return False
    return s[router_row(pe) + w.R_META + color] >> 8 < w.CHANNEL_DEPTH


@compiled
def swapped_colors(s: State, pe: int, color: int, direction: int) -> int:
    """Mask: 1, a wavelet lands on its own color; 2, on the other one of its pair."""
    if s[router_row(pe) + w.R_HAS_SWAP] == 0:
        return 1
    both = route.SWAP_X_BIT | route.SWAP_Y_BIT
    bits = route.SWAP_X_BIT if direction < 2 else route.SWAP_Y_BIT
    if direction == 4:
        bits = both
    own = s[router_row(pe) + w.R_ROUTE + color] & bits
    other = s[router_row(pe) + w.R_ROUTE + (color ^ 1)] & bits
    return int(own != bits) | int(other == bits) << 1


@compiled
def can_land(s: State, pe: int, color: int, direction: int) -> bool:
    """Whether a wavelet can land at a router, on every color that it lands on there."""
    colors = swapped_colors(s, pe, color, direction)
    if colors & 1 and not accepts(s, pe, color, direction):
        return False
    return colors & 2 == 0 or accepts(s, pe, color ^ 1, direction)


@compiled
def can_enter_core(s: State, pe: int, color: int, wavelet: int) -> bool:
    """Whether the core's queue has space, or a filter keeps the wavelet out."""
    filter_row = control.filter_row(s, pe, s[router_row(pe) + w.R_ROUTE + color])
    if filter_row >= 0 and not control.passes(s, filter_row, wavelet):
        return True
    queue = s[core_row(pe) + w.C_QUEUE_OF + color] - 1
    return queue >= 0 and queues.has_input_space(s, pe, queue)


@compiled
def can_leave(s: State, pe: int, color: int, wavelet: int) -> bool:
    """Whether all outputs of a wavelet take it."""
    out = (wavelet >> w.OUT_SHIFT) & route.DIRECTIONS_MASK
    if out & route.RAMP_BIT and not can_enter_core(s, pe, color, wavelet):
        return False
    for direction in range(4):
        if (out >> direction) & 1:
            other = queues.neighbour(s, pe, direction)
            if other < 0 or not can_land(s, other, color, OPPOSITE[direction]):
                return False
    return True


@compiled
def decide(s: State, pe: int) -> bool:
    """List the moves of one router; false when it can sleep until somebody wakes it."""
    now = s[w.G_NOW]
    row = router_row(pe)
    used = 0
    is_waiting_for_time = False
    first = now % w.COLORS
    everything = s[row + w.R_BUSY] & ((1 << w.COLORS) - 1)
    late = everything & ((1 << first) - 1)
    early = everything ^ late
    while early | late:
        part = early or late
        color = lowest_bit(part)
        early &= ~(1 << color)
        late &= ~(1 << color)
        slot = color * w.CHANNEL_DEPTH + (s[row + w.R_META + color] & SLOT_MASK)
        if s[row + w.R_READY + slot] > now:
            is_waiting_for_time = True
            continue
        wavelet = s[row + w.R_DATA + slot]
        out = (wavelet >> w.OUT_SHIFT) & route.DIRECTIONS_MASK
        if out & used == 0 and can_leave(s, pe, color, wavelet):
            used |= out
            s[w.MOVES + s[w.G_MOVES]] = pe << 8 | color
            s[w.G_MOVES] += 1
    has_sent, is_sending_later = decide_output(s, pe)
    return used != 0 or is_waiting_for_time or has_sent or is_sending_later


@compiled
def decide_output(s: State, pe: int) -> tuple[bool, bool]:
    """List the wavelet that enters from the core: whether there is one, and whether one is late."""
    pending = s[router_row(pe) + w.R_BUSY] >> w.COLORS
    is_late = False
    now = s[w.G_NOW]
    for k in range(w.QUEUES if pending else 0):
        queue = (k + now) % w.QUEUES
        if (pending >> queue) & 1 == 0:
            continue
        slot = queue * w.QUEUE_SLOTS + (s[core_row(pe) + w.C_OUT_META + queue] & SLOT_MASK)
        if s[core_row(pe) + w.C_OUT_READY + slot] > now:
            is_late = True
            continue
        color = (s[core_row(pe) + w.C_OUT_DATA + slot] >> w.COLOR_SHIFT) & 31
        if (s[w.G_SINK_COLORS] >> color) & 1 or can_land(s, pe, color, 4):
            s[w.MOVES + s[w.G_MOVES]] = pe << 8 | OUTPUT_MOVE | queue
            s[w.G_MOVES] += 1
            return True, is_late
    return False, is_late


@compiled
def land(s: State, pe: int, color: int, direction: int, wavelet: int) -> None:
    """A wavelet arrives at a router, which executes its command and chooses its outputs."""
    row = router_row(pe)
    word = s[row + w.R_ROUTE + color]
    out = route.transmits(word)
    data = wavelet & 0xFFFFFFFF
    s[w.G_LANDINGS] += 1
    if s[w.G_LOG]:
        queues.record(s, w.E_LANDING, pe, color << 3 | direction, wavelet & 0x1FFFFFFFF)
    if wavelet & w.CONTROL_BIT:
        command = control.first_command(data)
        if command & control.NO_CORE:
            out &= ~route.RAMP_BIT
        obey(s, pe, color, command)
        after = s[row + w.R_ROUTE + color]
        has_advanced = route.position_of(after) != route.position_of(word)
        if control.pops(word, has_advanced, command):
            data = control.popped(data)
    if out:
        keep(s, pe, color, data | (wavelet & w.CONTROL_BIT) | out << w.OUT_SHIFT, direction)


@compiled
def keep(s: State, pe: int, color: int, wavelet: int, direction: int) -> None:
    """Put a wavelet into a router's channel; another one in the same cycle is an error."""
    row = router_row(pe)
    meta = s[row + w.R_META + color]
    landing = s[w.G_NOW] + s[w.G_HOP]
    if meta >> 8:
        last = color * w.CHANNEL_DEPTH + ((meta & SLOT_MASK) + (meta >> 8) - 1) % w.CHANNEL_DEPTH
        if s[row + w.R_READY + last] == landing:
            earlier = (s[row + w.R_DATA + last] >> w.FROM_SHIFT) & 7
            sides = min(earlier, direction) << 3 | max(earlier, direction)
            queues.fail(s, w.ERROR_CONFLICT, pe, color, sides)
    slot = color * w.CHANNEL_DEPTH + ((meta & SLOT_MASK) + (meta >> 8)) % w.CHANNEL_DEPTH
    s[row + w.R_DATA + slot] = wavelet | direction << w.FROM_SHIFT
    s[row + w.R_READY + slot] = landing
    s[row + w.R_META + color] = meta + 256
    s[row + w.R_BUSY] |= 1 << color
    queues.wake_router(s, pe)


@compiled
def obey(s: State, pe: int, color: int, command: int) -> None:
    """Execute a control wavelet's command at a router."""
    word = s[router_row(pe) + w.R_ROUTE + color]
    changed = control.executed(word, command)
    if changed == word:
        return
    s[router_row(pe) + w.R_ROUTE + color] = changed
    s[w.G_SWITCHES] += 1
    queues.wake_around(s, pe)
    if command & 3 == control.TEARDOWN:
        s[core_row(pe) + w.C_TEARDOWNS] |= 1 << color
        queues.wake_core(s, pe)


@compiled
def land_everywhere(s: State, pe: int, color: int, direction: int, wavelet: int) -> None:
    """A wavelet lands on its color, on the other one of its pair, or on both."""
    colors = swapped_colors(s, pe, color, direction)
    if colors & 1:
        land(s, pe, color, direction, wavelet)
    if colors & 2:
        land(s, pe, color ^ 1, direction, wavelet)


@compiled
def enter_core(s: State, pe: int, color: int, wavelet: int) -> None:
    """A wavelet leaves through the ramp, unless a filter keeps it out."""
    filter_row = control.filter_row(s, pe, s[router_row(pe) + w.R_ROUTE + color])
    is_in = True
    if filter_row >= 0:
        is_in = control.passes(s, filter_row, wavelet)
        control.count(s, filter_row, wavelet)
    if is_in:
        queue = s[core_row(pe) + w.C_QUEUE_OF + color] - 1
        ready = s[w.G_NOW] + s[w.G_RAMP_IN]
        kept = (wavelet & 0x1FFFFFFFF) | color << w.COLOR_SHIFT
        queues.push_input(s, pe, queue, kept, ready)


@compiled
def move_channel(s: State, pe: int, color: int) -> None:
    """A color's first wavelet leaves to all its outputs."""
    row = router_row(pe)
    meta = s[row + w.R_META + color]
    wavelet = s[row + w.R_DATA + color * w.CHANNEL_DEPTH + (meta & SLOT_MASK)]
    s[row + w.R_META + color] = ((meta & ~255) - 256) | ((meta & 255) + 1) % w.CHANNEL_DEPTH
    if meta >> 8 == 1:
        s[row + w.R_BUSY] &= ~(1 << color)
    if meta >> 8 == w.CHANNEL_DEPTH:
        queues.wake_around(s, pe)
    out = (wavelet >> w.OUT_SHIFT) & route.DIRECTIONS_MASK
    if out & route.RAMP_BIT:
        enter_core(s, pe, color, wavelet)
    for direction in range(4):
        if (out >> direction) & 1:
            other = queues.neighbour(s, pe, direction)
            land_everywhere(s, other, color, OPPOSITE[direction], wavelet)


@compiled
def move_output(s: State, pe: int, queue: int) -> None:
    """The first wavelet of an output queue enters the router, or goes to the host."""
    wavelet = queues.pop_output(s, pe, queue)
    color = (wavelet >> w.COLOR_SHIFT) & 31
    if (s[w.G_SINK_COLORS] >> color) & 1 == 0:
        land_everywhere(s, pe, color, 4, wavelet)
        return
    queues.record(s, w.E_SINK, pe, color, wavelet & 0xFFFFFFFF)
    sink = w.SINK + 2 * (pe * w.SINKS + s[w.G_SINK_SLOT + color])
    s[sink] += 1
    if s[sink] == s[sink + 1]:
        s[w.G_WANTED] -= 1


@compiled
def step_routers(s: State) -> None:
    """One cycle of all awake routers."""
    s[w.G_MOVES] = 0
    awake = s[w.G_ROUTERS]
    kept = 0
    for i in range(awake):
        pe = s[w.ROUTER_LIST + i]
        if decide(s, pe):
            s[w.ROUTER_LIST + kept] = pe
            kept += 1
        else:
            s[router_row(pe) + w.R_AWAKE] = 0
    s[w.G_ROUTERS] = kept
    for i in range(s[w.G_MOVES]):
        pe, what = s[w.MOVES + i] >> 8, s[w.MOVES + i] & 255
        if what & OUTPUT_MOVE:
            move_output(s, pe, what & 63)
        else:
            move_channel(s, pe, what)
