"""One cycle of all awake routers: first what can leave is decided, then it moves.

Decisions read only what held at the beginning of the cycle, so their order does not matter, but
where several PEs' words for the host share a port: the first one has its time. A wavelet leaves to
all outputs of its route at once or not at all. Each link carries one wavelet a cycle; the color
that comes first changes from cycle to cycle. A wavelet that finds no space, no route or a route
that takes nothing from its side waits. What leaves a band of PEs is put on a list that the next
band lands it from. A port is a link like the others, to a neighbour that has only words and a rate.
"""

from typing import Final

from openwafer.sdk.fabric import channel, control, events, queues, route
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import apart, cells_at, compiled, inlined, lowest_bit
from openwafer.sdk.fabric.rows import (
    core_row,
    output_slot,
    port_row,
    processor_row,
    route_row,
    router_row,
    sink_row,
    source_row,
)
from openwafer.sdk.fabric.state import State

OUTPUT_MOVE: Final = 64
"""Moves with at least this number come from an output queue."""
PORT_MOVE: Final = 128
"""Those with at least this one from a port: its direction above a color."""
PORT_DIRECTION_SHIFT: Final = 5
SIDE_MASK: Final = 7
SWAPPED_SHIFT: Final = 3
"""Above the direction that a wavelet comes from: 1 where it lands on its pair's other color."""


@compiled
def swapped_colors(s: State, pe: int, color: int, direction: int) -> int:
    """Mask: 1, a wavelet lands on its own color; 2, on the other one of its pair."""
    if s[router_row(pe) + w.R_FLAGS] & w.SWAP_BIT == 0:
        return 1
    both = route.SWAP_X_BIT | route.SWAP_Y_BIT
    bits = route.SWAP_X_BIT if direction < 2 else route.SWAP_Y_BIT
    if direction == 4:
        bits = both
    own = s[route_row(pe, color)] & bits
    other = s[route_row(pe, color ^ 1)] & bits
    return int(own != bits) | int(other == bits) << 1


@compiled
def can_land_swapped(s: State, pe: int, color: int, direction: int) -> bool:
    """The same as `can_land` for any router."""
    colors = swapped_colors(s, pe, color, direction)
    if colors & 1 and not channel.accepts(s, pe, color, direction):
        return False
    return colors & 2 == 0 or channel.accepts(s, pe, color ^ 1, direction)


@inlined
def can_land(s: State, pe: int, color: int, direction: int) -> bool:
    """Whether a wavelet can land at a router, on every color that it lands on there."""
    if s[router_row(pe) + w.R_FLAGS] & w.SWAP_BIT:
        return can_land_swapped(s, pe, color, direction)
    return channel.accepts(s, pe, color, direction)


@inlined
def can_enter_core(s: State, pe: int, color: int, wavelet: int) -> bool:
    """Whether the core's queue has space, or a filter keeps the wavelet out."""
    filter_row = control.filter_row(s, pe, color)
    if filter_row >= 0 and not control.passes(s, filter_row, wavelet):
        return True
    queue = queues.queue_of(s, pe, color)
    return queue >= 0 and queues.has_input_space(s, pe, queue)


@inlined
def can_leave(s: State, pe: int, color: int, wavelet: int) -> bool:
    """Whether all outputs of a wavelet take it; what gets lost beyond the edge always can leave.

    The time of ports is taken at once.
    """
    out = (wavelet >> w.OUT_SHIFT) & route.DIRECTIONS_MASK
    if out & route.RAMP_BIT and not can_enter_core(s, pe, color, wavelet):
        return False
    edges = (s[router_row(pe) + w.R_FLAGS] >> w.EDGE_SHIFT) & queues.INNER_MASK
    beyond = out & edges
    out &= queues.INNER_MASK & ~edges
    while out:
        direction = lowest_bit(out)
        out &= out - 1
        if not can_land(s, pe + s[w.G_STEPS + direction], color, direction ^ 1):
            return False
    return beyond == 0 or take_ports(s, pe, color, beyond)


@apart
def take_ports(s: State, pe: int, color: int, directions: int) -> bool:
    """Take the time of all ports among some directions; false where one has none now.

    Not when the wavelet moves: other PEs' words for the host are decided on in this cycle, too.
    """
    for direction in range(4):
        is_led = leads(s, pe, color, directions, direction)
        if is_led and not has_time(s, port_row(pe, direction) + w.N_OUT):
            return False
    for direction in range(4):
        if leads(s, pe, color, directions, direction):
            pass_port(s, port_row(pe, direction) + w.N_OUT)
    return True


@compiled
def leads(s: State, pe: int, color: int, directions: int, direction: int) -> bool:
    """Whether a direction is among some, and has a port that leads a color out of the fabric."""
    colors = s[port_row(pe, direction) + w.N_COLORS]
    return (directions >> direction) & (colors >> color) & 1 != 0


@inlined
def note_move(s: State, pe: int, what: int) -> None:
    """Add to the list of what moves in this cycle."""
    s[w.MOVES + s[w.G_MOVES]] = pe << 8 | what
    s[w.G_MOVES] += 1


@compiled
def note_crossings(s: State, pe: int, color: int, wavelet: int) -> None:
    """List where a wavelet that moves lands beyond the band."""
    for direction in range(2):
        other = queues.neighbour(s, pe, direction)
        is_out = (wavelet >> (w.OUT_SHIFT + direction)) & 1 and other >= 0
        if is_out and not queues.is_own(s, other):
            side = int(direction != queues.WEST)
            number = s[w.G_CROSSINGS + side]
            at = w.CROSSINGS + (side * w.MAX_CROSSINGS + number) * w.CROSSING_WORDS
            s[at] = other << 8 | color << 3 | direction ^ 1
            s[at + 1] = wavelet
            s[w.G_CROSSINGS + side] = number + 1


@inlined
def decide(s: State, pe: int) -> bool:
    """List the moves of one router; false when it can sleep until somebody wakes it."""
    busy = s[router_row(pe) + w.R_BUSY]
    used = 0
    late = channel.late_colors(s, pe)
    waiting = busy & w.COLORS_MASK & ~late
    # Colors from the first one on, then those before it.
    order = waiting >> s[w.G_FIRST_COLOR] << s[w.G_FIRST_COLOR]
    waiting ^= order
    while order | waiting:
        if order == 0:
            order, waiting = waiting, 0
        color = lowest_bit(order)
        order &= order - 1
        wavelet = channel.first(s, pe, color)
        out = (wavelet >> w.OUT_SHIFT) & route.DIRECTIONS_MASK
        if out & used == 0 and can_leave(s, pe, color, wavelet):
            used |= out
            note_move(s, pe, color)
            if s[w.G_BANDS] > 1:
                note_crossings(s, pe, color, wavelet)
    if busy >> w.PORTS_SHIFT and decide_ports(s, pe):
        used |= 1
    if (busy >> w.COLORS) & 255 and decide_output(s, pe):
        return True
    return used | late != 0


@apart
def decide_ports(s: State, pe: int) -> bool:
    """List what enters through ports: whether something does, or a port lets something wait."""
    busy = s[router_row(pe) + w.R_BUSY]
    is_awake = False
    for direction in range(4):
        port = port_row(pe, direction)
        if busy & w.COLORS_MASK and not has_time(s, port + w.N_OUT):
            is_awake = True
        if (busy >> (w.PORTS_SHIFT + direction)) & 1 == 0:
            continue
        if not has_time(s, port + w.N_IN):
            is_awake = True
            continue
        source = source_of_port(s, pe, direction)
        if source >= 0:
            move = PORT_MOVE | direction << PORT_DIRECTION_SHIFT | s[source + w.S_COLOR]
            note_move(s, pe, move)
            is_awake = True
    return is_awake


@compiled
def source_of_port(s: State, pe: int, direction: int) -> int:
    """The row of the color that may enter through a port now, or -1: as links choose colors."""
    row = s[port_row(pe, direction) + w.N_SOURCE]
    chosen, first = -1, w.COLORS
    while row:
        source = source_row(row - 1)
        row = s[source + w.S_NEXT_ROW]
        color = s[source + w.S_COLOR]
        rank = (color - s[w.G_FIRST_COLOR] + w.COLORS) % w.COLORS
        has_words = s[source + w.S_NEXT] != s[source + w.S_END]
        if has_words and rank < first and can_land(s, pe, color, direction):
            chosen, first = source, rank
    return chosen


@inlined
def decide_output(s: State, pe: int) -> bool:
    """List the wavelet that enters from the core: whether there is one, or one that is late."""
    pending = (s[router_row(pe) + w.R_BUSY] >> w.COLORS) & 255
    is_late = False
    now = s[w.G_NOW]
    first = now % w.QUEUES
    while pending:
        queue = (lowest_bit((pending | pending << w.QUEUES) >> first) + first) % w.QUEUES
        pending &= ~(1 << queue)
        slot = output_slot(pe, queue, queues.head_in(s[core_row(pe) + w.C_OUT], queue))
        if s[slot + 1] > now:
            is_late = True
            continue
        color = (s[slot] >> w.COLOR_SHIFT) & 31
        if (s[w.G_SINK_COLORS] >> color) & 1:
            if not is_let_out(s, pe, color):
                is_late = True
                continue
        elif not can_land(s, pe, color, 4):
            continue
        note_move(s, pe, OUTPUT_MOVE + queue)
        return True
    return is_late


@compiled
def is_let_out(s: State, pe: int, color: int) -> bool:
    """Whether a word for the host may leave the core: its port, if it takes one, has time.

    The port is taken at once, as several PEs share it.
    """
    way = s[sink_row(s, pe, color) + w.K_WAY]
    if way == 0:
        return True
    if not has_time(s, way):
        return False
    pass_port(s, way)
    return True


@inlined
def keep(s: State, pe: int, color: int, direction: int, wavelet: int, out: int) -> None:
    """Hold a wavelet that landed until all directions of `out` take it."""
    if out:
        kept = wavelet & 0x1FFFFFFFF | out << w.OUT_SHIFT | direction << w.FROM_SHIFT
        channel.push(s, pe, color, kept)
        queues.wake_router(s, pe)
    else:
        s[router_row(pe) + w.R_GONE] |= 1 << (w.GONE_SHIFT + color)
        if wavelet & w.CONTROL_BIT == 0:
            tell_nowhere(s, pe, color, direction, wavelet, w.NO_OUTPUT)


@compiled
def tell_nowhere(s: State, pe: int, color: int, direction: int, wavelet: int, why: int) -> None:
    """Tell that a wavelet vanishes at a router."""
    where = events.of_color(color) + events.of_link(direction)
    events.tell(s, w.E_NOWHERE, pe, where, why, wavelet & queues.WAVELET_MASK)


@inlined
def land(s: State, pe: int, color: int, side: int, wavelet: int) -> None:
    """A wavelet arrives at a router, which chooses its outputs.

    `side` is the direction that it comes from; above it, 1 where it came on its pair's other color.
    """
    is_first = channel.note_landing(s, pe, color)
    s[w.G_LANDINGS] += 1
    if is_first and wavelet & w.CONTROL_BIT == 0 and not events.is_noted(s, pe):
        out = route.transmits(s[route_row(pe, color)])
        keep(s, pe, color, side & SIDE_MASK, wavelet, out)
    else:
        land_notably(s, pe, color, side, wavelet, is_first)


@compiled
def land_notably(s: State, pe: int, color: int, side: int, wavelet: int, is_first: bool) -> None:
    """The same for one that is noted, has a command, or is not the first.

    The router executes the command. Two of a color in a cycle are an error.
    """
    direction = side & SIDE_MASK
    word = s[route_row(pe, color)]
    out = route.transmits(word)
    data = wavelet & 0xFFFFFFFF
    if not is_first:
        earlier = channel.earlier_side(s, pe, color, direction)
        sides = min(earlier, direction) << 3 | max(earlier, direction)
        queues.fail(s, w.ERROR_CONFLICT, pe, color, sides)
    if wavelet & w.CONTROL_BIT:
        command = control.first_command(data)
        if command & control.NO_CORE:
            out &= ~route.RAMP_BIT
        obey(s, pe, color, command)
        if wavelet & w.OWN_ROUTER_BIT:
            out = 0
        after = s[route_row(pe, color)]
        has_advanced = route.position_of(after) != route.position_of(word)
        if control.pops(word, has_advanced, command):
            data = control.popped(data)
    if events.is_noted(s, pe):
        where = events.of_color(color) + events.of_link(direction)
        number = out | (color ^ (side >> SWAPPED_SHIFT)) + 1 << w.OTHER_COLOR_SHIFT
        events.note(s, w.E_LANDING, pe, where, number, wavelet & queues.WAVELET_MASK)
    keep(s, pe, color, direction, data | (wavelet & w.CONTROL_BIT), out)


@compiled
def obey(s: State, pe: int, color: int, command: int) -> None:
    """Execute a control wavelet's command at a router."""
    word = s[route_row(pe, color)]
    changed = control.executed(word, command)
    if changed == word:
        return
    channel.set_route(s, pe, color, changed)
    s[w.G_SWITCHES] += 1
    queues.wake_around(s, pe)
    if command & 3 == control.TEARDOWN:
        s[processor_row(pe) + w.P_TEARDOWNS] |= 1 << color
        queues.stir(s, pe)
        queues.wake_core(s, pe)


@compiled
def land_swapped(s: State, pe: int, color: int, direction: int, wavelet: int) -> None:
    """A wavelet lands on its color, on the other one of its pair, on both, or nowhere."""
    colors = swapped_colors(s, pe, color, direction)
    if colors == 0:
        tell_nowhere(s, pe, color, direction, wavelet, w.NO_COLOR)
    for is_other in range(2):
        if (colors >> is_other) & 1:
            land(s, pe, color ^ is_other, direction | is_other << SWAPPED_SHIFT, wavelet)


@inlined
def land_everywhere(s: State, pe: int, color: int, direction: int, wavelet: int) -> None:
    """A wavelet lands on its color, at some routers on others."""
    if s[router_row(pe) + w.R_FLAGS] & w.SWAP_BIT:
        land_swapped(s, pe, color, direction, wavelet)
    else:
        land(s, pe, color, direction, wavelet)


@inlined
def enter_core(s: State, pe: int, color: int, wavelet: int) -> None:
    """A wavelet leaves through the ramp, unless a filter keeps it out."""
    filter_row = control.filter_row(s, pe, color)
    if filter_row >= 0:
        is_in = control.passes(s, filter_row, wavelet)
        control.count(s, filter_row, wavelet)
        s[filter_row + (w.L_PASSED if is_in else w.L_DROPPED)] += 1
        if not is_in:
            if events.is_noted(s, pe):
                where = events.of_color(color)
                events.note(s, w.E_FILTERED, pe, where, 0, wavelet & queues.WAVELET_MASK)
            return
    kept = (wavelet & 0x1FFFFFFFF) | color << w.COLOR_SHIFT
    bound = queues.byte_of(s, core_row(pe) + w.C_QUEUE_OF, color)
    queues.push_input(s, pe, bound, kept, s[w.G_NOW] + s[w.G_RAMP_IN])
    if events.is_noted(s, pe):
        queues.note_entry(s, pe, bound, kept, 4)


@apart
def leave_rectangle(s: State, pe: int, color: int, directions: int, wavelet: int) -> None:
    """A wavelet leaves the rectangle: through a port to the host, else it is lost."""
    for direction in range(4):
        if (directions >> direction) & 1 == 0:
            continue
        where = events.of_color(color) + events.of_link(direction)
        if not leads(s, pe, color, directions, direction):
            events.tell(s, w.E_LOST, pe, where, 0, 0)
            continue
        events.tell(s, w.E_SINK, pe, where, 0, wavelet & queues.WAVELET_MASK)
        wanted = port_row(pe, direction) + w.N_WANTED
        s[wanted] -= 1
        if s[wanted] == 0:
            s[w.G_WANTED] -= 1


@inlined
def has_time(s: State, way: int) -> bool:
    """Whether one of a port's ways moves a word now."""
    return s[way + w.N_NEXT] <= s[w.G_NOW] << w.PORT_CYCLE_SHIFT


@compiled
def pass_port(s: State, way: int) -> None:
    """A word passes a port on one of its ways; a pause before does not make up for later ones."""
    now = s[w.G_NOW]
    if s[way + w.N_COUNT] == 0:
        s[way + w.N_FIRST] = now
    s[way + w.N_LAST] = now
    s[way + w.N_COUNT] += 1
    # What a rate leaves of a cycle counts, or a port would be slower than its rate.
    earliest = ((now - 1) << w.PORT_CYCLE_SHIFT) + 1
    s[way + w.N_NEXT] = max(s[way + w.N_NEXT], earliest) + s[way + w.N_PERIOD]


@apart
def enter_rectangle(s: State, pe: int, color: int, direction: int) -> None:
    """A word of the host lands at the router behind a port."""
    port = port_row(pe, direction)
    row, taken, has_more = s[port + w.N_SOURCE], -1, False
    while row:
        source = source_row(row - 1)
        row = s[source + w.S_NEXT_ROW]
        if s[source + w.S_COLOR] == color:
            taken = s[source + w.S_NEXT]
            s[source + w.S_NEXT] = taken + 1
            if taken + 1 == s[source + w.S_END]:
                s[w.G_SOURCES] -= 1
        has_more |= s[source + w.S_NEXT] != s[source + w.S_END]
    if not has_more:
        s[router_row(pe) + w.R_BUSY] &= ~(1 << (w.PORTS_SHIFT + direction))
    pass_port(s, port + w.N_IN)
    land_everywhere(s, pe, color, direction, s[w.SOURCE_DATA + taken])


@inlined
def move_channel(s: State, pe: int, color: int) -> None:
    """A color's first wavelet leaves to all its outputs of this band."""
    wavelet = channel.first(s, pe, color)
    channel.pop(s, pe, color)
    out = (wavelet >> w.OUT_SHIFT) & route.DIRECTIONS_MASK
    if out & route.RAMP_BIT:
        enter_core(s, pe, color, wavelet)
    edges = s[router_row(pe) + w.R_FLAGS] >> w.EDGE_SHIFT
    if out & edges & queues.INNER_MASK:
        leave_rectangle(s, pe, color, out & edges & queues.INNER_MASK, wavelet)
    out &= queues.INNER_MASK & ~edges
    while out:
        direction = lowest_bit(out)
        out &= out - 1
        other = pe + s[w.G_STEPS + direction]
        if queues.is_own(s, other):
            land_everywhere(s, other, color, direction ^ 1, wavelet)


@inlined
def move_output(s: State, pe: int, queue: int) -> None:
    """The first wavelet of an output queue enters the router, or goes to the host."""
    wavelet = queues.pop_output(s, pe, queue)
    color = (wavelet >> w.COLOR_SHIFT) & 31
    if (s[w.G_SINK_COLORS] >> color) & 1 == 0:
        land_everywhere(s, pe, color, 4, wavelet)
        return
    where = events.of_color(color) + events.of_queue(queue)
    events.tell(s, w.E_SINK, pe, where, 0, wavelet & 0xFFFFFFFF)
    sink = sink_row(s, pe, color)
    s[sink + w.K_SENT] += 1
    if s[sink + w.K_SENT] == s[sink + w.K_WANTED]:
        s[w.G_WANTED] -= 1


@compiled
def answer_calls(s: State) -> None:
    """Wake the routers that the bands beside this one called."""
    for side in range(2):
        band = s[w.G_BAND] + (1 if side == 0 else -1)
        if 0 <= band < s[w.G_BANDS]:
            other = cells_at(s[w.G_BAND_ADDRESSES + band])
            for k in range(other[w.G_CALLS + side]):
                queues.wake_router(s, other[w.CALLS + side * w.MAX_CALLS + k])


@compiled
def land_crossings(s: State) -> None:
    """Land what the bands beside this one sent."""
    for side in range(2):
        band = s[w.G_BAND] + (1 if side == 0 else -1)
        if 0 <= band < s[w.G_BANDS]:
            other = cells_at(s[w.G_BAND_ADDRESSES + band])
            at = w.CROSSINGS + side * w.MAX_CROSSINGS * w.CROSSING_WORDS
            for _ in range(other[w.G_CROSSINGS + side]):
                where = other[at]
                land_everywhere(s, where >> 8, (where >> 3) & 31, where & 7, other[at + 1])
                at += w.CROSSING_WORDS


@compiled
def decide_all(s: State) -> None:
    """List all moves of a cycle."""
    s[w.G_MOVES] = 0
    s[w.G_CROSSINGS] = s[w.G_CROSSINGS + 1] = 0
    s[w.G_FIRST_COLOR] = s[w.G_NOW] % w.COLORS
    if s[w.G_BANDS] > 1:
        answer_calls(s)
    awake = s[w.G_ROUTERS]
    kept = 0
    for i in range(awake):
        pe = s[w.ROUTER_LIST + i]
        if decide(s, pe):
            s[w.ROUTER_LIST + kept] = pe
            kept += 1
        else:
            s[router_row(pe) + w.R_FLAGS] &= ~w.AWAKE_BIT
    s[w.G_ROUTERS] = kept


@compiled
def move_all(s: State) -> None:
    """Do them."""
    s[w.G_CALLS] = s[w.G_CALLS + 1] = 0
    for i in range(s[w.G_MOVES]):
        pe, what = s[w.MOVES + i] >> 8, s[w.MOVES + i] & 255
        if what < OUTPUT_MOVE:
            move_channel(s, pe, what)
        elif what < PORT_MOVE:
            move_output(s, pe, what - OUTPUT_MOVE)
        else:
            enter_rectangle(s, pe, what & 31, (what >> PORT_DIRECTION_SHIFT) & 3)
    if s[w.G_BANDS] > 1:
        land_crossings(s)
