"""Config registers by word address; docs/design/wafer-model.md lists their fields.

The addresses and fields of color and switch configurations on WSE-2, and of WSE-3's color and
output queue configurations, appear in public programs. The others are this simulator's own.
"""

from typing import Final

from openwafer.sdk.fabric import channel, clock, queues, route
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled
from openwafer.sdk.fabric.rows import core_row, processor_row, route_row, router_row
from openwafer.sdk.fabric.state import State

WSE2_COLORS: Final = 0x7F20
WSE2_SWITCHES: Final = 0x7F40
WSE3_COLORS: Final = 0x7C00
WSE3_SWITCHES: Final = 0x7C20
WSE3_OUTPUTS: Final = 0x7C40
"""By color: what positions 1-3 transmit to where they change both directions."""
WSE3_OUTPUT_QUEUES: Final = 0x7B80
WSE3_INPUT_QUEUES: Final = 0x7B88
INPUT_FLUSHED: Final = 0x7D00
OUTPUT_FLUSHED: Final = 0x7D01
TEARDOWNS_LOW: Final = 0x7D02
TEARDOWNS_HIGH: Final = 0x7D03
INPUT_STATUS: Final = 0x7D04
"""Bit by queue: empty; from bit 8 on: full."""
OUTPUT_STATUS: Final = 0x7D05
HIGH_TASKS: Final = 0x7D06
"""Four registers: bit by task id with high priority."""
MAIN_PRIORITY: Final = 0x7D0A
FILTERS: Final = 0x7D10
"""Four registers by filter of the PE: limit, largest counter that passes, counter, nothing."""
FILTER_FIELDS: Final = (w.L_LIMIT1, w.L_MAX, w.L_COUNTER)
MOST_FILTERS: Final = 8
PLAIN: Final = 0x7000
"""The first of 4096; those without a meaning here hold what was written."""
INVALID_DIRECTION: Final = 5


@compiled
def plain_row(pe: int, address: int) -> int:
    """Where a plain register lies, four to a word."""
    return w.REGISTER + (address - PLAIN) // 4 * w.PITCH + pe


@compiled
def read_color(word: int) -> int:
    """A color's configuration register."""
    swaps = int(word & route.SWAP_Y_BIT != 0) << 10 | int(word & route.SWAP_X_BIT != 0) << 11
    pop = (word >> route.POP_SHIFT) & 3
    return (word & 1023) | swaps | pop << 12 | int(word & route.TORN_BIT != 0) << 14


@compiled
def with_color(word: int, value: int) -> int:
    """The configuration after a write of its color register."""
    word = route.with_field(word, 0, 1023, value)
    word = route.with_field(word, route.POP_SHIFT, 3, value >> 12)
    word &= ~(route.SWAP_X_BIT | route.SWAP_Y_BIT | route.TORN_BIT)
    if value & 1 << 10:
        word |= route.SWAP_Y_BIT
    if value & 1 << 11:
        word |= route.SWAP_X_BIT
    if value & 1 << 14:
        word |= route.TORN_BIT
    return route.derive(word)


@compiled
def direction_of(mask: int) -> int:
    """Number of the lowest direction of a mask; INVALID_DIRECTION for none."""
    for direction in range(INVALID_DIRECTION):
        if (mask >> direction) & 1:
            return direction
    return INVALID_DIRECTION


@compiled
def read_switch(word: int) -> int:
    """A color's switch register: a nibble by position, ring mode, current position."""
    value = int(word & route.RING_BIT != 0) << 12 | route.position_of(word) << 13
    for number in range(1, 4):
        changes = (word >> (route.CHANGES_SHIFT + 2 * (number - 1))) & 3
        both = (word >> (10 * number)) & 1023
        is_input = changes & 2 != 0
        direction = direction_of(both >> 5 if is_input else both & 31)
        if changes == 0 or (word >> (route.VALID_SHIFT + number - 1)) & 1 == 0:
            direction = INVALID_DIRECTION
        value |= (direction | int(is_input) << 3) << (4 * (number - 1))
    return value


@compiled
def with_switch(word: int, value: int) -> int:
    """The configuration after a write of its switch register."""
    word = route.with_field(word, route.POSITION_SHIFT, 3, value >> 13)
    word = (word & ~route.RING_BIT) | (route.RING_BIT if value & 1 << 12 else 0)
    for number in range(1, 4):
        nibble = (value >> (4 * (number - 1))) & 15
        direction, changes = nibble & 7, 2 if nibble & 8 else 1
        is_valid = direction < INVALID_DIRECTION
        word = route.with_field(word, route.VALID_SHIFT + number - 1, 1, int(is_valid))
        changes_shift = route.CHANGES_SHIFT + 2 * (number - 1)
        # An invalid position keeps which side it would change: code sets the direction alone.
        word = route.with_field(word, changes_shift, 3, changes)
        if is_valid:
            field = 10 * number + (5 if changes == 2 else 0)
            word = route.with_field(word, field, 31, 1 << direction)
    return route.derive(word)


@compiled
def read_outputs(word: int) -> int:
    """WSE-3: transmit direction of the positions that change both; bit 3 of a nibble is set."""
    value = 0
    for number in range(1, 4):
        changes = (word >> (route.CHANGES_SHIFT + 2 * (number - 1))) & 3
        if changes == 3:
            value |= (direction_of((word >> (10 * number)) & 31) | 8) << (4 * (number - 1))
    return value


@compiled
def with_outputs(word: int, value: int) -> int:
    """The configuration after a write of that register."""
    for number in range(1, 4):
        nibble = (value >> (4 * (number - 1))) & 15
        if nibble & 8:
            changes_shift = route.CHANGES_SHIFT + 2 * (number - 1)
            changes = (word >> changes_shift) & 3
            word = route.with_field(word, changes_shift, 3, changes | 1)
            word = route.with_field(word, 10 * number, 31, 1 << (nibble & 7))
    return route.derive(word)


@compiled
def bank_of(s: State, address: int) -> int:
    """Which register of a color an address is: 0 color, 1 switch, 2 outputs; -1 none."""
    first = WSE3_COLORS if s[w.G_IS_WSE3] else WSE2_COLORS
    offset = address - first
    last_bank = 2 if s[w.G_IS_WSE3] else 1
    if offset < 0 or offset & 31 >= w.COLORS or offset >> 5 > last_bank:
        return -1
    return offset >> 5


@compiled
def queue_status(s: State, pe: int, meta: int, depths: int) -> int:
    """Bit by queue: empty; from bit 8 on: full."""
    value = 0
    for queue in range(w.QUEUES):
        length = queues.count_in(s[core_row(pe) + meta], queue)
        value |= int(length == 0) << queue
        value |= int(length == s[depths + queue]) << (8 + queue)
    return value


@compiled
def read(s: State, pe: int, address: int) -> int:
    """Value of a register."""
    bank = bank_of(s, address)
    if bank >= 0:
        word = s[route_row(pe, address & 31)]
        if bank == 0:
            return read_color(word)
        return read_switch(word) if bank == 1 else read_outputs(word)
    if WSE3_OUTPUT_QUEUES <= address < WSE3_OUTPUT_QUEUES + w.QUEUES:
        return max(0, queues.byte_of(s, processor_row(pe) + w.P_OUT_COLOR, address & 7) - 1) << 4
    if WSE3_INPUT_QUEUES <= address < WSE3_INPUT_QUEUES + w.QUEUES:
        for color in range(w.COLORS):
            if queues.queue_of(s, pe, color) == address & 7:
                return color << 4
        return 0
    return read_status(s, pe, address)


@compiled
def has_filter(s: State, pe: int, address: int) -> bool:
    """Whether a register is one of a filter that the PE has."""
    offset = address - FILTERS
    if offset < 0 or offset >= 4 * MOST_FILTERS or offset & 3 >= len(FILTER_FIELDS):
        return False
    for color in range(w.COLORS):
        word = s[route_row(pe, color)]
        if (word >> route.FILTER_SHIFT) & route.FILTER_MASK == (offset >> 2) + 1:
            return True
    return False


@compiled
def filter_field(s: State, pe: int, address: int) -> int:
    """Where the value of a filter's register lies."""
    offset = address - FILTERS
    row = (
        w.FILTER
        + ((s[router_row(pe) + w.R_FLAGS] >> w.FILTERS_SHIFT) + (offset >> 2)) * w.FILTER_WORDS
    )
    return row + FILTER_FIELDS[offset & 3]


@compiled
def read_status(s: State, pe: int, address: int) -> int:
    """Value of a status or plain register."""
    if address in (INPUT_FLUSHED, OUTPUT_FLUSHED):
        return (s[processor_row(pe) + w.P_FLUSHED] >> (8 * (address - INPUT_FLUSHED))) & 255
    if address in (TEARDOWNS_LOW, TEARDOWNS_HIGH):
        return (s[processor_row(pe) + w.P_TEARDOWNS] >> (16 * (address - TEARDOWNS_LOW))) & 0xFFFF
    if address == INPUT_STATUS:
        return queue_status(s, pe, w.C_IN, w.G_DEPTHS)
    if address == OUTPUT_STATUS:
        return queue_status(s, pe, w.C_OUT, w.G_DEPTHS + w.QUEUES)
    if HIGH_TASKS <= address < HIGH_TASKS + 4:
        return (s[processor_row(pe) + w.P_HIGH_TASKS] >> (16 * (address - HIGH_TASKS))) & 0xFFFF
    if address == MAIN_PRIORITY:
        return s[processor_row(pe) + w.P_MAIN_PRIORITY]
    if has_filter(s, pe, address):
        return s[filter_field(s, pe, address)]
    if clock.is_clock(address):
        return clock.read_clock(s, pe, address)
    if PLAIN <= address < PLAIN + w.REGISTERS:
        return (s[plain_row(pe, address)] >> (16 * (address & 3))) & 0xFFFF
    queues.fail(s, w.ERROR_REGISTER, pe, address, 0)
    return 0


@compiled
def write(s: State, pe: int, address: int, value: int) -> None:
    """A register takes a value."""
    bank = bank_of(s, address)
    if bank >= 0:
        word = s[route_row(pe, address & 31)]
        if bank == 0:
            word = with_color(word, value)
        else:
            word = with_switch(word, value) if bank == 1 else with_outputs(word, value)
        channel.set_route(s, pe, address & 31, word)
        if word & (route.SWAP_X_BIT | route.SWAP_Y_BIT):
            s[router_row(pe) + w.R_FLAGS] |= w.SWAP_BIT
        queues.wake_around(s, pe)
    elif WSE3_OUTPUT_QUEUES <= address < WSE3_OUTPUT_QUEUES + w.QUEUES:
        bound = ((value >> 4) & 31) + 1
        queues.set_byte(s, processor_row(pe) + w.P_OUT_COLOR, address & 7, bound)
    elif WSE3_INPUT_QUEUES <= address < WSE3_INPUT_QUEUES + w.QUEUES:
        bind_input(s, pe, address & 7, (value >> 4) & 31)
    else:
        write_status(s, pe, address, value)


@compiled
def bind_input(s: State, pe: int, queue: int, color: int) -> None:
    """An input queue takes another color."""
    for other in range(w.COLORS):
        if queues.queue_of(s, pe, other) == queue:
            queues.set_byte(s, core_row(pe) + w.C_QUEUE_OF, other, 0)
    if color < w.COLORS:
        queues.bind_input(s, pe, color, queue)


@compiled
def write_status(s: State, pe: int, address: int, value: int) -> None:
    """A status or plain register takes a value."""
    if address in (INPUT_FLUSHED, OUTPUT_FLUSHED):
        shift = 8 * (address - INPUT_FLUSHED)
        s[processor_row(pe) + w.P_FLUSHED] = route.with_field(
            s[processor_row(pe) + w.P_FLUSHED], shift, 255, value
        )
    elif HIGH_TASKS <= address < HIGH_TASKS + 4:
        shift = 16 * (address - HIGH_TASKS)
        s[processor_row(pe) + w.P_HIGH_TASKS] = route.with_field(
            s[processor_row(pe) + w.P_HIGH_TASKS], shift, 0xFFFF, value
        )
    elif address == MAIN_PRIORITY:
        s[processor_row(pe) + w.P_MAIN_PRIORITY] = value & 3
    elif has_filter(s, pe, address):
        s[filter_field(s, pe, address)] = value
    elif clock.is_clock(address):
        clock.write_clock(s, pe, address, value)
    elif PLAIN <= address < PLAIN + w.REGISTERS:
        at = plain_row(pe, address)
        s[at] = route.with_field(s[at], 16 * (address & 3), 0xFFFF, value)
    else:
        queues.fail(s, w.ERROR_REGISTER, pe, address, 1)
