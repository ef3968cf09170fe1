"""Mistakes of a program: the compiled core's part.

Code tells of its own ones (:mod:`openwafer.sdk.ir.checks`). What an operation in flight uses is
known here, so accesses meanwhile are looked at here, and so are operations that the machine serves.
Each mistake is told once a band for each image, place and operand, as overruns are.

An operation in flight uses all elements of its operands from its begin to its end, also those that
it has moved already or not reached yet: when it reaches them is a matter of time. But what it has
written already may be read. Two operations that both add to the same elements may do so in any
order.
"""

from typing import Final

from openwafer.sdk.arch.generation import MEMORY_WORDS
from openwafer.sdk.arch.vector_ops import MOVE_OF_ANY_WIDTH, VECTOR_OPS
from openwafer.sdk.fabric import control, events, overrun, vector
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled, lowest_bit
from openwafer.sdk.fabric.operand import ADDRESS_MASK, SIGN, WORD_MASK
from openwafer.sdk.fabric.rows import (
    core_row,
    image_row,
    job_row,
    mailbox_row,
    operand_row,
    processor_row,
    thread_row,
    unwritten_row,
    vector_row,
)
from openwafer.sdk.fabric.state import State
from openwafer.sdk.program import mailbox as mb

ANY_WIDTH: Final = VECTOR_OPS[MOVE_OF_ANY_WIDTH].code
ELEMENT_WIDTH: Final = mb.finding_of(mb.Finding.ELEMENT_WIDTH)
READ_IN_FLIGHT: Final = mb.finding_of(mb.Finding.READ_IN_FLIGHT)
WRITE_IN_FLIGHT: Final = mb.finding_of(mb.Finding.WRITE_IN_FLIGHT)
OPERAND_IN_FLIGHT: Final = mb.finding_of(mb.Finding.OPERAND_IN_FLIGHT)
CONTROL_AS_DATA: Final = mb.finding_of(mb.Finding.CONTROL_AS_DATA)
NO_SWITCH: Final = mb.finding_of(mb.Finding.NO_SWITCH)
STREAM_IN_FLIGHT: Final = mb.finding_of(mb.Finding.STREAM_IN_FLIGHT)
OPERAND_OF_STACK: Final = mb.finding_of(mb.Finding.OPERAND_OF_STACK)
STACK: Final = 0
"""Number of the stack in the memory's map."""
ADD16: Final = VECTOR_OPS["add16"].code
ADD_UNSIGNED: Final = mb.finding_of(mb.Finding.WRAPPED, mb.wrap_of("add", "u16"))
ADD_SIGNED: Final = mb.finding_of(mb.Finding.WRAPPED, mb.wrap_of("add", "i16"))
SUB_UNSIGNED: Final = mb.finding_of(mb.Finding.WRAPPED, mb.wrap_of("sub", "u16"))
SUB_SIGNED: Final = mb.finding_of(mb.Finding.WRAPPED, mb.wrap_of("sub", "i16"))
READ_UNWRITTEN: Final = mb.finding_of(mb.Finding.READ_UNWRITTEN)
OPERAND_UNWRITTEN: Final = mb.finding_of(mb.Finding.OPERAND_UNWRITTEN)
MOST_ELEMENTS: Final = 1 << 16
SLOT_SHIFT: Final = 32
"""An event's second word: the two numbers of a finding, the microthread in flight, its place."""
OTHER_PLACE_SHIFT: Final = 36
OTHER_PLACE_MASK: Final = (1 << 20) - 1
COLOR_SHIFT: Final = 56
"""Above the place: 1 more than the color that the operation in flight receives, 0 for none."""
READS: Final = 0
"""An access that meets what an operation has still to write."""
WRITES: Final = 1
"""One that meets all that an operation uses."""
READS_ANY: Final = 2
"""One that meets all that an operation writes."""
WHO_SHIFT: Final = 4
"""In who made a mistake: from the thread's slot to the place in the source."""


@compiled
def tell(s: State, pe: int, who: int, finding: int, detail: int, cycle: int) -> None:
    """Tell the host of a mistake; `who` is the place in the source, and the thread's slot."""
    place, slot = who >> WHO_SHIFT, who & overrun.SLOT_MASK
    image = s[processor_row(pe) + w.P_IMAGE]
    where = image << overrun.IMAGE_SHIFT | place << overrun.SLOT_SHIFT | finding
    if overrun.is_news(s, pe, where, cycle):
        where = events.of_slot(slot) + events.of_place(place)
        number = finding | s[processor_row(pe) + w.P_ENTRY] << overrun.ENTRY_SHIFT
        row = events.tell(s, w.E_FINDING, pe, where, number, detail)
        s[row + w.E_CYCLE] = cycle


@compiled
def who_runs(s: State, thread: int, slot: int) -> int:
    """The place in the source of a thread's operation, and its slot."""
    return s[job_row(thread) + w.J_PLACE] << WHO_SHIFT | slot


@compiled
def number_at_begin(s: State, thread: int, row: int) -> int:
    """Number of the element that an operand of several dimensions began at."""
    return 0 if s[row + w.O_DIMS] == 1 else overrun.first_number(s, row, s[thread + w.T_DONE])


@compiled
def address_of(s: State, thread: int, row: int, number: int) -> int:
    """First word of an operand's element, by its number from the operation's begin."""
    if s[row + w.O_KIND] == w.POINTER:
        return s[row + w.O_ADDRESS]
    if s[row + w.O_DIMS] == 1:
        return s[row + w.O_BASE] + number * s[row + w.O_STRIDES]
    first = number_at_begin(s, thread, row)
    address, span, left = overrun.begin_of(s, row, first), 0, first + number
    for dim in range(s[row + w.O_DIMS]):
        extent = max(1, s[row + w.O_EXTENTS + dim])
        step = s[row + w.O_STRIDES + dim] + span
        address += left % extent * step
        left //= extent
        span += (extent - 1) * step
    return address


@compiled
def length_of(s: State, thread: int, row: int) -> int:
    """How many elements an operation takes of an operand."""
    if s[row + w.O_KIND] == w.POINTER:
        return 1
    return min(MOST_ELEMENTS, s[thread + w.T_DONE] + s[thread + w.T_LEFT])


@compiled
def still_to_write(s: State, thread: int) -> int:
    """Number of the first element that an operation has not written yet."""
    is_array = s[operand_row(thread, 0) + w.O_KIND] == w.MEMORY
    return s[thread + w.T_DONE] if is_array else 0


@compiled
def takes(s: State, thread: int, place: int, address: int, begin: int) -> bool:
    """Whether a word of memory belongs to one of the elements that an operation takes from `begin`
    on."""
    row = operand_row(thread, place)
    num_words, length = vector.words_of(s, s[thread + w.T_OP], place), length_of(s, thread, row)
    if s[row + w.O_KIND] == w.MEMORY and s[row + w.O_DIMS] != 1:
        for number in range(begin, length):
            if 0 <= address - address_of(s, thread, row, number) < num_words:
                return True
        return False
    stride = s[row + w.O_STRIDES] if s[row + w.O_KIND] == w.MEMORY else 0
    for word in range(num_words):
        way = address - word - address_of(s, thread, row, 0)
        if stride == 0 and way == 0 and begin < length:
            return True
        if stride != 0 and way % stride == 0 and begin <= way // stride < length:
            return True
    return False


@compiled
def is_in_memory(s: State, thread: int, place: int) -> bool:
    """Whether an operand lies in memory."""
    kind = s[operand_row(thread, place) + w.O_KIND]
    return kind in (w.MEMORY, w.POINTER)


@compiled
def adds_to(s: State, thread: int, place: int) -> bool:
    """Whether an operand is what an operation adds to: its destination, and a source as well."""
    if s[thread + w.T_OP] <= w.LAST_MOVE or not is_in_memory(s, thread, 0):
        return False
    own, target = operand_row(thread, place), operand_row(thread, 0)
    for source in range(1, mb.NUM_OPERANDS):
        row = operand_row(thread, source)
        if s[row + w.O_KIND] == w.MEMORY and s[row + w.O_BASE] == s[target + w.O_BASE]:
            return s[own + w.O_BASE] == s[target + w.O_BASE]
    return False


@compiled
def in_flight(s: State, pe: int, address: int, num_words: int, access: int, own: int) -> int:
    """The microthread but its own whose operation an access of memory meets, or -1."""
    active = s[core_row(pe) + w.C_THREADS] & w.MICROTHREADS & ~(1 << own)
    while active:
        slot: int = lowest_bit(active)
        active &= active - 1
        thread = thread_row(pe, slot)
        begin = still_to_write(s, thread) if access == READS else 0
        for place in range(mb.NUM_OPERANDS if access == WRITES else 1):
            for word in range(num_words if is_in_memory(s, thread, place) else 0):
                if takes(s, thread, place, address + word, begin):
                    return slot
    return -1


@compiled
def look_from_code(
    s: State, mailbox: int, place: int, finding: int, first: int, second: int
) -> None:
    """Take what code tells; see :mod:`openwafer.sdk.program.mailbox`."""
    pe = overrun.pe_of(s, mailbox)
    detail = first | second << SLOT_SHIFT
    if finding in (READ_IN_FLIGHT, WRITE_IN_FLIGHT):
        access = WRITES if finding == WRITE_IN_FLIGHT else READS
        slot = in_flight_at(s, pe, first, second, access)
        if slot < 0:
            return
        detail = first | flight_of(s, pe, slot)
    elif finding == STREAM_IN_FLIGHT:
        slot = writer_of_memory(s, pe)
        if slot < 0:
            return
        detail = flight_of(s, pe, slot)
    elif finding == READ_UNWRITTEN and in_flight_at(s, pe, first, second, READS_ANY) >= 0:
        return
    elif finding == OPERAND_UNWRITTEN:
        check_own(s, pe)
        return
    tell(s, pe, place << WHO_SHIFT | w.MAIN_SLOT, finding, detail, s[mailbox_row(pe) + mb.CYCLE])


@compiled
def flight_of(s: State, pe: int, slot: int) -> int:
    """The second word of an event about a microthread's operation."""
    thread = thread_row(pe, slot)
    detail = slot << SLOT_SHIFT
    detail |= (s[job_row(thread) + w.J_PLACE] & OTHER_PLACE_MASK) << OTHER_PLACE_SHIFT
    place = vector.first_of(s, thread, w.FABIN)
    if place >= 0 and s[operand_row(thread, place) + w.O_COLOR] < w.COLORS:
        detail |= (1 + s[operand_row(thread, place) + w.O_COLOR]) << COLOR_SHIFT
    return detail


@compiled
def in_flight_at(s: State, pe: int, address: int, num_bytes: int, access: int) -> int:
    """The microthread that an access of bytes by code meets, or -1."""
    begin, last = address >> 1, (address + num_bytes - 1) >> 1
    return in_flight(s, pe, begin, last - begin + 1, access, w.MAIN_SLOT)


@compiled
def writer_of_memory(s: State, pe: int) -> int:
    """A microthread whose operation writes to memory, or -1."""
    active = s[core_row(pe) + w.C_THREADS] & w.MICROTHREADS
    while active:
        slot: int = lowest_bit(active)
        active &= active - 1
        if is_in_memory(s, thread_row(pe, slot), 0):
            return slot
    return -1


@compiled
def is_line(s: State, thread: int, place: int) -> bool:
    """Whether an operand's elements lie in a line, at equal distances."""
    row = operand_row(thread, place)
    return s[row + w.O_KIND] == w.POINTER or s[row + w.O_DIMS] == 1


@compiled
def stride_of(s: State, thread: int, place: int) -> int:
    """Distance of a line's elements, in words; 0 where they all lie at one place."""
    row = operand_row(thread, place)
    is_one = s[row + w.O_KIND] == w.POINTER or length_of(s, thread, row) == 1
    return 0 if is_one else abs(s[row + w.O_STRIDES])


@compiled
def ends_of(s: State, thread: int, place: int) -> tuple[int, int]:
    """Lowest and highest word of a line."""
    row = operand_row(thread, place)
    first = address_of(s, thread, row, 0)
    last = address_of(s, thread, row, length_of(s, thread, row) - 1)
    more = vector.words_of(s, s[thread + w.T_OP], place) - 1
    return min(first, last), max(first, last) + more


@compiled
def lines_meet(s: State, thread: int, place: int, other: int, other_place: int) -> bool:
    """Whether two lines have a word in common; for different strides, whether they may have one."""
    low, high = ends_of(s, thread, place)
    other_low, other_high = ends_of(s, other, other_place)
    if low > other_high or other_low > high:
        return False
    stride = stride_of(s, thread, place)
    if stride == 0 or stride != stride_of(s, other, other_place):
        return True
    way = (other_low - low) % stride
    num_words = vector.words_of(s, s[thread + w.T_OP], place)
    return way < num_words or stride - way < vector.words_of(s, s[other + w.T_OP], other_place)


@compiled
def meets(s: State, thread: int, place: int, other: int, other_place: int) -> int:
    """Where an operand meets one of another operation, a word of memory; -1 if it does not."""
    row, begin = operand_row(thread, place), still_to_write(s, other) if place else 0
    are_lines = is_line(s, thread, place) and is_line(s, other, other_place)
    if are_lines and not lines_meet(s, thread, place, other, other_place):
        return -1
    is_sure = are_lines and stride_of(s, thread, place) == stride_of(s, other, other_place)
    if is_sure and place == 0:
        return address_of(s, thread, row, 0) & ADDRESS_MASK
    if not is_sure and s[w.G_IS_CHECKED] == 0:
        return -1
    for number in range(length_of(s, thread, row)):
        address = address_of(s, thread, row, number)
        for word in range(vector.words_of(s, s[thread + w.T_OP], place)):
            if takes(s, other, other_place, address + word, begin):
                return (address if place else address_of(s, thread, row, 0)) & ADDRESS_MASK
    return -1


@compiled
def meets_any(s: State, thread: int, place: int, other: int) -> int:
    """The same for all operands of the other one of which, or of this, one is written to."""
    for other_place in range(mb.NUM_OPERANDS):
        if (place and other_place) or not is_in_memory(s, other, other_place):
            continue
        if adds_to(s, thread, place) and adds_to(s, other, other_place):
            continue
        address = meets(s, thread, place, other, other_place)
        if address >= 0:
            return address
    return -1


@compiled
def check_flight(s: State, pe: int, slot: int) -> None:
    """Look whether an operation that begins meets one in flight.

    In runs that are not checked only lines of one stride are compared, which takes a few steps.
    """
    thread = thread_row(pe, slot)
    active = s[core_row(pe) + w.C_THREADS] & w.MICROTHREADS & ~(1 << slot)
    while active:
        other_slot = lowest_bit(active)
        active &= active - 1
        other = thread_row(pe, other_slot)
        for place in range(mb.NUM_OPERANDS):
            row = operand_row(thread, place)
            if not is_in_memory(s, thread, place) or length_of(s, thread, row) == 0:
                continue
            address = meets_any(s, thread, place, other)
            if address >= 0:
                detail = s[thread + w.T_OP] | address << mb.OTHER_SHIFT
                detail |= flight_of(s, pe, other_slot)
                who = who_runs(s, thread, slot)
                tell(s, pe, who, OPERAND_IN_FLIGHT | place, detail, s[w.G_NOW])


@compiled
def mark_flight(s: State, pe: int, slot: int) -> None:
    """Mark the stretches of memory that an operation which is in flight now may use."""
    thread, mailbox = thread_row(pe, slot), mailbox_row(pe)
    for place in range(mb.NUM_OPERANDS if s[w.G_IS_CHECKED] and slot != w.MAIN_SLOT else 0):
        row = operand_row(thread, place)
        if not is_in_memory(s, thread, place) or length_of(s, thread, row) == 0:
            continue
        low, high = ends_of(s, thread, place)
        stretches = -1
        if low >= 0 and is_line(s, thread, place):
            first, last = low << 1 >> s[mailbox + mb.STRETCH_SHIFT], high << 1 | 1
            last >>= s[mailbox + mb.STRETCH_SHIFT]
            stretches = (2 << min(last, mb.LAST_STRETCH)) - (1 << min(first, mb.LAST_STRETCH))
        s[mailbox + mb.FLIGHT_USES] |= stretches
        if place == 0:
            s[mailbox + mb.FLIGHT_WRITES] |= stretches


@compiled
def check_widths(s: State, pe: int, slot: int) -> None:
    """Look whether an operation that begins is made for the elements of its operands' variables."""
    thread = thread_row(pe, slot)
    has_map = s[image_row(s[processor_row(pe) + w.P_IMAGE]) + w.I_MAP] != 0
    if s[thread + w.T_OP] == ANY_WIDTH or not has_map:
        return
    for place in range(s[vector_row(s[thread + w.T_OP]) + w.V_SOURCES] + 1):
        row = operand_row(thread, place)
        base = s[row + w.O_BASE] & ADDRESS_MASK
        if s[row + w.O_KIND] != w.MEMORY or base >= MEMORY_WORDS:
            continue
        variable = overrun.variable_at(s, pe, base)
        own = variable & mb.WIDTH_MASK
        wanted = vector.words_of(s, s[thread + w.T_OP], place)
        takes_parts = s[row + w.O_STRIDES] == own and s[row + w.O_WORDS] == wanted
        if variable != mb.NO_VARIABLE and own not in (0, wanted) and not takes_parts:
            detail = s[thread + w.T_OP] | base << mb.OTHER_SHIFT | own << SLOT_SHIFT
            who = who_runs(s, thread, slot)
            tell(s, pe, who, ELEMENT_WIDTH | place, detail, s[w.G_NOW])


@compiled
def touched(s: State, thread: int, row: int, number: int) -> int:
    """First word of an element that an operation has moved which ends now."""
    if s[row + w.O_KIND] == w.MEMORY and s[row + w.O_DIMS] == 1:
        left = s[thread + w.T_DONE] - number
        return (s[row + w.O_ADDRESS] - left * s[row + w.O_STRIDES]) & ADDRESS_MASK
    return address_of(s, thread, row, number) & ADDRESS_MASK


@compiled
def check_own(s: State, pe: int) -> None:
    """The same for an operation that code has run by itself, as the mailbox's request says."""
    thread = thread_row(pe, w.MAIN_SLOT)
    vector.take_request(s, pe, thread)
    s[thread + w.T_DONE] = vector.length(s, pe, thread)
    for place in range(mb.NUM_OPERANDS):
        row = operand_row(thread, place)
        if s[row + w.O_KIND] == w.MEMORY:
            s[row + w.O_ADDRESS] += s[thread + w.T_DONE] * s[row + w.O_STRIDES]
    check_written(s, pe, w.MAIN_SLOT, s[mailbox_row(pe) + mb.CYCLE] + s[w.G_BEAT] - 1)


@compiled
def check_written(s: State, pe: int, slot: int, cycle: int) -> None:
    """Note what an operation that ends has written; tell of what it read that nothing wrote."""
    thread = thread_row(pe, slot)
    last = s[vector_row(s[thread + w.T_OP]) + w.V_SOURCES] if s[w.G_IS_CHECKED] else -1
    for number in range(s[thread + w.T_DONE] if last >= 0 else 0):
        for place in range(last, -1, -1):
            if not is_in_memory(s, thread, place):
                continue
            address = touched(s, thread, operand_row(thread, place), number)
            if place and adds_at(s, thread, address, number):
                continue
            for word in range(address, address + vector.words_of(s, s[thread + w.T_OP], place)):
                look_at_word(s, pe, slot, place, word, cycle)


@compiled
def adds_at(s: State, thread: int, address: int, number: int) -> bool:
    """Whether an operation writes an element where it read it.

    Published programs add to variables that the loader has filled with zeros.
    """
    if s[operand_row(thread, 0) + w.O_KIND] != w.MEMORY:
        return False
    return touched(s, thread, operand_row(thread, 0), number) == address


@compiled
def look_at_word(s: State, pe: int, slot: int, place: int, word: int, cycle: int) -> None:
    """The same for a word of an element."""
    at, bit = unwritten_row(pe) + (word >> 6), 1 << (word & 63)
    if word >= MEMORY_WORDS or s[at] & bit == 0:
        return
    if place == 0:
        s[at] &= ~bit
    elif in_flight(s, pe, word, 1, READS_ANY, slot) < 0:
        thread = thread_row(pe, slot)
        detail = s[thread + w.T_OP] | word << mb.OTHER_SHIFT
        tell(s, pe, who_runs(s, thread, slot), OPERAND_UNWRITTEN | place, detail, cycle)


@compiled
def sign_of(s: State, pe: int, thread: int) -> int:
    """The mark of signed or unsigned integers that an operation's first variable has, or 0."""
    if s[image_row(s[processor_row(pe) + w.P_IMAGE]) + w.I_MAP] == 0:
        return 0
    for place in range(mb.NUM_OPERANDS):
        base = s[operand_row(thread, place) + w.O_BASE] & ADDRESS_MASK
        if is_in_memory(s, thread, place) and base < MEMORY_WORDS:
            return overrun.variable_at(s, pe, base) & (mb.SIGNED | mb.UNSIGNED)
    return 0


@compiled
def check_wrap(s: State, pe: int, slot: int, first: int, second: int) -> None:
    """Tell of a sum, or difference, of 16-bit integers that their type cannot hold."""
    thread = thread_row(pe, slot)
    a, b, least = first & WORD_MASK, second & WORD_MASK, 0
    is_sum, sign = s[thread + w.T_OP] == ADD16, sign_of(s, pe, thread)
    finding = ADD_UNSIGNED if is_sum else SUB_UNSIGNED
    if sign == mb.SIGNED:
        a, b, least = a - ((a & SIGN) << 1), b - ((b & SIGN) << 1), -SIGN
        finding = ADD_SIGNED if is_sum else SUB_SIGNED
    result = a + b if is_sum else a - b
    if sign and not least <= result <= least + WORD_MASK:
        detail = first & WORD_MASK | (second & WORD_MASK) << SLOT_SHIFT
        tell(s, pe, who_runs(s, thread, slot), finding, detail, s[w.G_NOW])


@compiled
def check_stack(s: State, pe: int, slot: int) -> None:
    """Look whether an asynchronous operation begins on memory that its function gives back."""
    thread = thread_row(pe, slot)
    if slot == w.MAIN_SLOT or s[image_row(s[processor_row(pe) + w.P_IMAGE]) + w.I_MAP] == 0:
        return
    for place in range(s[vector_row(s[thread + w.T_OP]) + w.V_SOURCES] + 1):
        row = operand_row(thread, place)
        base = s[row + w.O_BASE] & ADDRESS_MASK
        if s[row + w.O_KIND] != w.MEMORY or base >= MEMORY_WORDS:
            continue
        if overrun.variable_at(s, pe, base) == STACK:
            detail = s[thread + w.T_OP] | base << mb.OTHER_SHIFT
            tell(s, pe, who_runs(s, thread, slot), OPERAND_OF_STACK | place, detail, s[w.G_NOW])


@compiled
def check_control(s: State, pe: int, thread: int, slot: int) -> None:
    """Tell of a control wavelet that an operation took for data."""
    place = vector.first_of(s, thread, w.FABIN)
    row = operand_row(thread, place)
    if s[row + w.O_FLAGS] & vector.FLAG_TRANSFORM:
        return
    detail = s[thread + w.T_OP] | min(s[row + w.O_COLOR], 31) << mb.OTHER_SHIFT
    tell(s, pe, who_runs(s, thread, slot), CONTROL_AS_DATA, detail, s[w.G_NOW])


@compiled
def check_switch(s: State, pe: int, slot: int, payload: int) -> None:
    """Tell of a switch command that was sent on a color without switch positions."""
    thread = thread_row(pe, slot)
    color = s[operand_row(thread, 0) + w.O_COLOR]
    if control.turns_switch(payload) and (s[w.G_SWITCHED] >> color) & 1 == 0:
        detail = s[thread + w.T_OP] | color << mb.OTHER_SHIFT
        tell(s, pe, who_runs(s, thread, slot), NO_SWITCH, detail, s[w.G_NOW])
