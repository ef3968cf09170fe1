"""The channels of a router: for each color what it takes and the wavelets that it holds."""

from openwafer.sdk.fabric import events, queues, route
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled, inlined, lowest_bit
from openwafer.sdk.fabric.rows import channel_row, route_row, router_row
from openwafer.sdk.fabric.state import Array, State


def fill_takes(row: Array, color: int, word: int) -> None:
    """Set the bits of a router's row that follow from a color's route."""
    position = (word >> route.POSITION_SHIFT) & 3
    sides = 0 if word & route.TORN_BIT else word >> (10 * position + 5)
    for direction in range(5):
        at = w.R_TAKES + (direction >> 1)
        shift = w.TAKES_BITS * (direction & 1) + color
        row[at] = (int(row[at]) & ~(1 << shift)) | ((sides >> direction) & 1) << shift


@compiled
def set_route(s: State, pe: int, color: int, word: int) -> None:
    """Give a color another configuration."""
    row = router_row(pe)
    if events.is_noted(s, pe):
        before = s[route_row(pe, color)]
        where = events.of_color(color)
        events.note(s, w.E_SWITCH, pe, where, route.position_of(word), route.position_of(before))
    s[route_row(pe, color)] = word
    sides = 0 if word & route.TORN_BIT else route.receives(word)
    for direction in range(5):
        at = row + w.R_TAKES + (direction >> 1)
        shift = w.TAKES_BITS * (direction & 1) + color
        s[at] = (s[at] & ~(1 << shift)) | ((sides >> direction) & 1) << shift


@inlined
def accepts(s: State, pe: int, color: int, direction: int) -> bool:
    """Whether a router takes a wavelet of a color from a direction now."""
    row = router_row(pe)
    takes = s[row + w.R_TAKES + (direction >> 1)] >> (w.TAKES_BITS * (direction & 1))
    return ((takes & ~(s[row + w.R_BUSY] >> w.FULL_SHIFT)) >> color) & 1 != 0


@inlined
def first(s: State, pe: int, color: int) -> int:
    """The first wavelet of a color."""
    head = (s[router_row(pe) + w.R_HEADS] >> (2 * color)) & 3
    return s[channel_row(pe, color) + head]


@compiled
def earlier_side(s: State, pe: int, color: int, direction: int) -> int:
    """Where the wavelet came from that landed before another one from `direction` did.

    One that went nowhere has left no trace: then it is a side that the color is taken from.
    """
    row = router_row(pe)
    if (s[row + w.R_GONE] >> (w.GONE_SHIFT + color)) & 1 == 0:
        tail = (s[row + w.R_TAILS] >> (2 * color)) & 3
        return (s[channel_row(pe, color) + ((tail - 1) & 3)] >> w.FROM_SHIFT) & 7
    others = route.receives(s[route_row(pe, color)]) & ~(1 << direction)
    return lowest_bit(others) if others else direction


@inlined
def push(s: State, pe: int, color: int, wavelet: int) -> None:
    """Put a wavelet behind those of its color."""
    row = router_row(pe)
    tail = (s[row + w.R_TAILS] >> (2 * color)) & 3
    s[channel_row(pe, color) + tail] = wavelet
    tail = (tail + 1) & 3
    s[row + w.R_TAILS] = (s[row + w.R_TAILS] & ~(3 << (2 * color))) | tail << (2 * color)
    s[row + w.R_BUSY] |= 1 << color
    if (s[row + w.R_HEADS] >> (2 * color)) & 3 == tail:
        s[row + w.R_BUSY] |= 1 << (w.FULL_SHIFT + color)


@inlined
def pop(s: State, pe: int, color: int) -> None:
    """Drop the first wavelet of a color."""
    row = router_row(pe)
    head = ((s[row + w.R_HEADS] >> (2 * color)) + 1) & 3
    s[row + w.R_HEADS] = (s[row + w.R_HEADS] & ~(3 << (2 * color))) | head << (2 * color)
    if (s[row + w.R_BUSY] >> (w.FULL_SHIFT + color)) & 1:
        s[row + w.R_BUSY] &= ~(1 << (w.FULL_SHIFT + color))
        queues.wake_senders(s, pe, route.receives(s[route_row(pe, color)]))
    elif (s[row + w.R_TAILS] >> (2 * color)) & 3 == head:
        s[row + w.R_BUSY] &= ~(1 << color)


@inlined
def note_landing(s: State, pe: int, color: int) -> bool:
    """Remember that a wavelet landed in this cycle; false when one of its color has already."""
    at = router_row(pe) + w.R_LANDED
    if s[at] >> w.LANDED_SHIFT != s[w.G_NOW]:
        s[at] = s[w.G_NOW] << w.LANDED_SHIFT
        if s[router_row(pe) + w.R_GONE] >> w.GONE_SHIFT:
            s[router_row(pe) + w.R_GONE] &= (1 << w.GONE_SHIFT) - 1
    is_first = (s[at] >> color) & 1 == 0
    s[at] |= 1 << color
    return is_first


@inlined
def late_colors(s: State, pe: int) -> int:
    """Mask of colors whose first wavelet has landed too late to leave now.

    A hop takes one or two cycles. What landed in the cycle before is the last of its channel, so it
    is the first only where it is alone.
    """
    row = router_row(pe)
    if s[w.G_HOP] == 1 or s[row + w.R_LANDED] >> w.LANDED_SHIFT != s[w.G_NOW] - 1:
        return 0
    # With one wavelet, and so not with four, a channel's tail is one slot behind its head.
    late = 0
    kept = s[row + w.R_LANDED] & ~(s[row + w.R_GONE] >> w.GONE_SHIFT) & w.COLORS_MASK
    heads, tails = s[row + w.R_HEADS], s[row + w.R_TAILS]
    while kept:
        color = lowest_bit(kept)
        kept &= kept - 1
        if ((tails >> (2 * color)) - (heads >> (2 * color))) & 3 == 1:
            late |= 1 << color
    return late
