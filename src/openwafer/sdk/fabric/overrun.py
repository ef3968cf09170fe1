"""Vector operations that go over the end of the variable they begin in.

The machine lets them: they read or write what lies there. Each image has a map of its memory with
the number of each word's variable; an operand that leaves the variable of its first element is told
to the host, once a band for each image, place in the source and operand. Of those that come in the
same cycle the one of the lowest PE counts, so that bands make no difference.

An operation of a register whose address was saved begins where the one before ended. What fabric or
FIFO end early has only touched what it did, so operations that the machine serves are looked at
when they end.
"""

from typing import Final

from openwafer.sdk.arch.generation import MEMORY_WORDS
from openwafer.sdk.fabric import events, queues, vector
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled
from openwafer.sdk.fabric.operand import ADDRESS_MASK
from openwafer.sdk.fabric.rows import (
    image_row,
    job_row,
    map_row,
    operand_row,
    processor_row,
    thread_row,
    vector_row,
)
from openwafer.sdk.fabric.state import State
from openwafer.sdk.program import mailbox as mb

SLOT_SHIFT: Final = 16
"""In who goes over an end: above the operand the thread's slot, then the place in the source."""
PLACE_SHIFT: Final = 32
ENTRY_SHIFT: Final = 16
"""Of an event's number: from the operand to the entry."""
LOW_SHIFT: Final = 16
"""Of its data: first word of the first element, lowest and highest word."""
HIGH_SHIFT: Final = 32
IMAGE_SHIFT: Final = 40
OPERAND_MASK: Final = (1 << SLOT_SHIFT) - 1
SLOT_MASK: Final = 15
WORD_MASK: Final = ADDRESS_MASK
PE_BITS: Final = 20


@compiled
def variable_at(s: State, pe: int, address: int) -> int:
    """Number of the variable that a word of a PE's memory belongs to, as the image's map has it."""
    number = s[image_row(s[processor_row(pe) + w.P_IMAGE]) + w.I_MAP] - 1
    row = map_row(number) + 1
    return (s[row + (address >> 2)] >> (16 * (address & 3))) & ADDRESS_MASK


@compiled
def lies_in_one(s: State, pe: int, one: int, other: int) -> bool:
    """Whether two words belong to one variable of a PE's memory."""
    if min(one, other) < 0 or max(one, other) >= MEMORY_WORDS:
        return False
    variable = variable_at(s, pe, one)
    return variable != mb.NO_VARIABLE and variable == variable_at(s, pe, other)


@compiled
def is_news(s: State, pe: int, where: int, cycle: int) -> bool:
    """Whether a place has not been told of yet, or only later, or of a PE with a higher number."""
    when = cycle << PE_BITS | pe
    for k in range(s[w.G_SEEN]):
        row = w.SEEN + k * w.SEEN_WORDS
        if s[row] == where:
            is_first = when < s[row + 1]
            s[row + 1] = min(when, s[row + 1])
            return is_first
    if s[w.G_SEEN] == w.MAX_SEEN:
        return False
    row = w.SEEN + s[w.G_SEEN] * w.SEEN_WORDS
    s[row], s[row + 1] = where, when
    s[w.G_SEEN] += 1
    return True


@compiled
def look(s: State, pe: int, who: int, first: int, low: int, high: int) -> None:
    """Tell of an operand that leaves the variable it begins in.

    `who` is its place in the source, the thread's slot and the operand's number;
    `first` is the first word of its first element, `low` and `high` are its outermost words.
    """
    low, high = max(low, 0), min(high, ADDRESS_MASK)
    if first >= MEMORY_WORDS or high >= MEMORY_WORDS:
        return
    if lies_in_one(s, pe, first, low) and lies_in_one(s, pe, first, high):
        return
    place, operand = who >> PLACE_SHIFT, who & OPERAND_MASK
    image = s[processor_row(pe) + w.P_IMAGE]
    if not is_news(s, pe, image << IMAGE_SHIFT | place << SLOT_SHIFT | operand, s[w.G_NOW]):
        return
    where = events.of_slot((who >> SLOT_SHIFT) & SLOT_MASK) + events.of_place(place)
    number = operand | s[processor_row(pe) + w.P_ENTRY] << ENTRY_SHIFT
    data = first | low << LOW_SHIFT | high << HIGH_SHIFT
    events.tell(s, w.E_FINDING, pe, where, number, data)
    if s[w.G_STOPS_AT_OVERRUN]:
        queues.fail(s, w.ERROR_OVERRUN, pe, 0, 0)


@compiled
def first_number(s: State, row: int, num: int) -> int:
    """Number of the element that an operand of several dimensions began at, `num` elements ago."""
    number, size = 0, 1
    for dim in range(s[row + w.O_DIMS]):
        number += s[row + w.O_INDEX + dim] * size
        if s[row + w.O_EXTENTS + dim] == w.NEVER:
            break
        size *= max(1, s[row + w.O_EXTENTS + dim])
    return (number - num) % size


@compiled
def begin_of(s: State, row: int, number: int) -> int:
    """Address of element 0 of an operand whose operation began at that number."""
    begin, span = s[row + w.O_BASE], 0
    for dim in range(s[row + w.O_DIMS]):
        extent = max(1, s[row + w.O_EXTENTS + dim])
        step = s[row + w.O_STRIDES + dim] + span
        begin -= number % extent * step
        number //= extent
        span += (extent - 1) * step
    return begin


@compiled
def reach(s: State, row: int, num: int) -> tuple[int, int]:
    """How far below and above element 0 the first `num` elements of an operand lie.

    Strides count from the last element of the inner dimensions; behind the last one an operand goes
    on from there, as if it had one more dimension.
    """
    left, span = num - 1, 0
    low = high = whole_low = whole_high = 0
    for dim in range(s[row + w.O_DIMS] + 1):
        is_more = dim == s[row + w.O_DIMS]
        extent = w.NEVER if is_more else max(1, s[row + w.O_EXTENTS + dim])
        step = span if is_more else s[row + w.O_STRIDES + dim] + span
        index = left % extent
        left //= extent
        low, high = low + index * step, high + index * step
        if index:
            low = min(low, whole_low + min(0, (index - 1) * step))
            high = max(high, whole_high + max(0, (index - 1) * step))
        if is_more:
            break
        whole_low += min(0, (extent - 1) * step)
        whole_high += max(0, (extent - 1) * step)
        span += (extent - 1) * step
    return low, high


@compiled
def look_at_memory(s: State, pe: int, slot: int, place: int) -> None:
    """Look at an operand in memory of an operation that ends."""
    thread = thread_row(pe, slot)
    row, num = operand_row(thread, place), s[thread + w.T_DONE]
    more_words = vector.words_of(s, s[thread + w.T_OP], place) - 1
    index = 0
    if (
        s[row + w.O_FLAGS] & vector.FLAG_WAVELET_INDEX
        and s[job_row(thread) + w.J_OPTIONS] & vector.HAS_INDEX
    ):
        index = s[job_row(thread) + w.J_INDEX]
    if s[row + w.O_DIMS] == 1:
        # The address lies in the row's first cache line, the base that it began at does not.
        begin = s[row + w.O_ADDRESS] - num * s[row + w.O_STRIDES]
        way = (num - 1) * s[row + w.O_STRIDES]
        low, high = min(0, way), max(0, way)
        if lies_in_one(s, pe, min(begin - index, begin + low), begin + high + more_words):
            return
    else:
        number = first_number(s, row, num)
        begin = begin_of(s, row, number)
        low, high = reach(s, row, number + num)
    first, high = begin - index, high + more_words
    who = s[thread + w.T_OP] << mb.OPERAND_SHIFT | place
    who |= slot << SLOT_SHIFT | s[job_row(thread) + w.J_PLACE] << PLACE_SHIFT
    look(s, pe, who, first & ADDRESS_MASK, min(first, begin + low), begin + high)


@compiled
def look_at(s: State, pe: int, slot: int) -> None:
    """Look at what an operation has touched that ends now."""
    thread = thread_row(pe, slot)
    image = image_row(s[processor_row(pe) + w.P_IMAGE])
    if s[thread + w.T_DONE] == 0 or s[image + w.I_MAP] == 0:
        return
    for place in range(s[vector_row(s[thread + w.T_OP]) + w.V_SOURCES] + 1):
        if s[operand_row(thread, place) + w.O_KIND] == w.MEMORY:
            look_at_memory(s, pe, slot, place)


@compiled
def pe_of(s: State, mailbox: int) -> int:
    """The PE of a mailbox, by its native address."""
    return ((mailbox - s[w.G_ADDRESS]) // 8 - w.MAILBOX) // mb.MAILBOX_WORDS


@compiled
def look_from_code(s: State, mailbox: int, place: int, operand: int, first: int, last: int) -> None:
    """Look at what compiled code shows; see :mod:`openwafer.sdk.program.mailbox`."""
    pe = pe_of(s, mailbox)
    operation, number = operand >> mb.OPERAND_SHIFT, operand & mb.OPERAND_MASK
    num_words = vector.words_of(s, operation, number) if operation else 1 + (number >> 1)
    high = max(first, last) + num_words - 1
    who = operand | w.MAIN_SLOT << SLOT_SHIFT | place << PLACE_SHIFT
    look(s, pe, who, first, min(first, last), high)
