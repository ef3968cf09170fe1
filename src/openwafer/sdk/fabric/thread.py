"""Threads of a PE: eight microthreads and the main thread, of which one does a beat a cycle.

High-priority microthreads go first, then medium ones, the main thread (its level can be set), and
low ones, which is what a microthread is without a priority. Among equals the first choice changes
from cycle to cycle.
"""

from collections.abc import Callable
from typing import Final

from openwafer.sdk.fabric import account, check, control, events, overrun, queues, vector
from openwafer.sdk.fabric import beat as planned
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import cells_at, compiled, inlined, lowest_bit
from openwafer.sdk.fabric.rows import (
    core_row,
    fifo_row,
    job_row,
    mailbox_row,
    operand_row,
    processor_row,
    thread_row,
    vector_row,
)
from openwafer.sdk.fabric.state import State
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import FifoAction

TASK_TARGET: Final = int(mb.BlockKind.TASK)
QUEUE_TARGET: Final = int(mb.BlockKind.INPUT_QUEUE)
TEST_OR_SUSPEND: Final = int(FifoAction.TEST_OR_SUSPEND)
TERMINATE: Final = int(FifoAction.TERMINATE)
SUSPEND: Final = int(FifoAction.SUSPEND)
FAULT: Final = int(FifoAction.FAULT)
LEVELS: Final = 5
"""Microthreads have levels 0, 2 and 4, the main thread 1 to 4."""
MAIN_LEVEL: Final = 1
MEDIUM_LEVEL: Final = 2
ALL_LEVELS: Final = 1 | 1 << w.MEDIUM_SHIFT | 1 << w.HIGH_SHIFT
PRIORITIES: Final = w.MICROTHREADS << w.MEDIUM_SHIFT | w.MICROTHREADS << w.HIGH_SHIFT
MAIN_BIT: Final = 1 << w.MAIN_SLOT
SLOT_MASK: Final = w.QUEUES - 1
NO_SLOT: Final = -1

Element = Callable[[int, int, int, int], int]


@compiled
def unblock(s: State, pe: int, target: int, slot: int) -> None:
    """Clear the block of a task, an input queue or a microthread; the operation of a slot asks."""
    if events.is_noted(s, pe):
        events.note(s, w.E_UNBLOCKED, pe, events.of_slot(slot), target, 0)
    kind, number = target >> 8, target & 255
    if kind == TASK_TARGET and not (s[w.G_IS_WSE3] and number < w.QUEUES):
        s[mailbox_row(pe) + mb.BLOCKED] &= ~(1 << number)
        queues.stir(s, pe)
    elif kind in (TASK_TARGET, QUEUE_TARGET):
        s[mailbox_row(pe) + mb.BLOCKED_QUEUES] &= ~(1 << number)
    else:
        s[mailbox_row(pe) + mb.BLOCKED_QUEUES] &= ~(1 << (w.QUEUES + number))
        hold(s, pe)


@compiled
def hold(s: State, pe: int) -> None:
    """Note which microthreads are blocked where the core looks at them in every cycle."""
    held = (s[mailbox_row(pe) + mb.BLOCKED_QUEUES] >> w.QUEUES) & w.MICROTHREADS
    at = core_row(pe) + w.C_THREADS
    s[at] = (s[at] & ~(w.MICROTHREADS << w.HELD_SHIFT)) | held << w.HELD_SHIFT


@compiled
def start(s: State, pe: int) -> int:
    """Begin the vector operation of a request.

    Returns 1 when the main thread goes on at once, 2 when it waits for the end, 0 when the
    microthread is taken, -1 when the request makes no sense.
    """
    thread = thread_row(pe, w.MAIN_SLOT)
    if not vector.take_request(s, pe, thread) or not vector.bind_queues(s, pe, thread):
        return -1
    vector.take_priority(s, pe, thread)
    s[thread + w.T_LEFT] = vector.length(s, pe, thread)
    issue = s[mailbox_row(pe) + mb.CYCLE] + vector.load_delay(s, pe)
    vector.set_speed(s, thread, issue + s[w.G_BEAT])
    may_plan = s[thread + w.T_LEFT] and s[w.G_HAS_PLANS]
    s[thread + w.T_PLAN] = planned.plan_of(s, thread) if may_plan else w.PLAN_ANY
    slot = w.MAIN_SLOT
    if s[job_row(thread) + w.J_OPTIONS] & vector.ASYNC:
        slot = vector.slot_of(s, pe, thread)
        if slot < 0 or slot >= w.QUEUES:
            return -1
        if (s[core_row(pe) + w.C_THREADS] >> slot) & 1:
            return 0
        chosen = thread_row(pe, slot)
        for k in range(w.THREAD_WORDS):
            s[chosen + k] = s[thread + k]
        for k in range(w.JOB_WORDS):
            s[job_row(chosen) + k] = s[job_row(thread) + k]
    s[core_row(pe) + w.C_THREADS] |= level_bits(s, thread, slot)
    s[processor_row(pe) + w.P_BEGAN] = w.HAD_VECTORS
    s[mailbox_row(pe) + mb.CYCLE] = issue + int(slot < w.MAIN_SLOT)
    if events.is_noted(s, pe):
        note_begin(s, pe, slot, issue)
    check.check_widths(s, pe, slot)
    check.check_flight(s, pe, slot)
    check.mark_flight(s, pe, slot)
    check.check_stack(s, pe, slot)
    if s[thread + w.T_LEFT] == 0:
        has_elements = s[job_row(thread) + w.J_OPTIONS] & vector.SINGLE_STEP == 0
        finish(s, pe, slot, int(has_elements))
    return 1 if slot < w.MAIN_SLOT else 2


@compiled
def count_elements(s: State, thread: int, counters: int) -> None:
    """Count the elements of an operation that ends, and the words of memory that they took."""
    cells = cells_at(counters - 8 * mb.KIND_COUNTS)
    operation, num = s[thread + w.T_OP], s[thread + w.T_DONE]
    cells[operation] += num
    for place in range(s[vector_row(operation) + w.V_SOURCES] + 1):
        kind = s[operand_row(thread, place) + w.O_KIND]
        if kind in (w.MEMORY, w.FIFO):
            cells[0] += num * vector.words_of(s, operation, place)


@compiled
def finish(s: State, pe: int, slot: int, result: int) -> None:
    """End an operation: what it activates, unblocks, stores; the main thread goes on."""
    thread = thread_row(pe, slot)
    planned.end_plan(s, thread)
    overrun.look_at(s, pe, slot)
    check.check_written(s, pe, slot, s[w.G_NOW])
    if result:
        vector.store_accumulator(s, pe, thread)
    vector.save_addresses(s, pe, thread)
    vector.clear_sources(s, pe, thread)
    if s[mailbox_row(pe) + mb.COUNTS]:
        count_elements(s, thread, s[mailbox_row(pe) + mb.COUNTS])
    if events.is_noted(s, pe):
        where = events.of_slot(slot) + events.of_place(s[job_row(thread) + w.J_PLACE])
        done = s[thread + w.T_DONE]
        events.note(s, w.E_OPERATION_END, pe, where, s[thread + w.T_OP], done)
    release(s, pe, slot, w.J_ACTIVATE, w.J_UNBLOCK)
    if s[job_row(thread) + w.J_CONTROL_SEEN]:
        release(s, pe, slot, w.J_CONTROL_ACTIVATE, w.J_CONTROL_UNBLOCK)
    s[core_row(pe) + w.C_THREADS] &= ~((1 if slot == w.MAIN_SLOT else ALL_LEVELS) << slot)
    if slot == w.MAIN_SLOT:
        begun, issued = s[mailbox_row(pe) + mb.CYCLE], s[w.G_NOW] + 1 - s[w.G_BEAT]
        s[mailbox_row(pe) + mb.CYCLE] = max(begun, issued)
        account.end_operation(s, pe, begun)
        s[mailbox_row(pe) + mb.DRAINED] = vector.drained_at(s, pe, thread)
        s[core_row(pe) + w.C_MAIN] = w.MAIN_RESUME
        s[processor_row(pe) + w.P_RESULT] = result


@compiled
def release(s: State, pe: int, slot: int, activated: int, unblocked: int) -> None:
    """Activate and unblock what two words of an operation's job name."""
    job = job_row(thread_row(pe, slot))
    if s[job + activated] >= 0:
        queues.activate(s, pe, s[job + activated], w.CAUSE_OPERATION, slot)
    if s[job + unblocked] >= 0:
        unblock(s, pe, s[job + unblocked], slot)


@compiled
def note_begin(s: State, pe: int, slot: int, cycle: int) -> None:
    """Note an operation that begins, with its fabric operands."""
    thread = thread_row(pe, slot)
    where = events.of_slot(slot) + events.of_place(s[job_row(thread) + w.J_PLACE])
    turns = min(s[job_row(thread) + w.J_TURNS], w.MOST_TURNS)
    number = s[thread + w.T_OP] | turns << w.TURNS_SHIFT
    number |= min(s[thread + w.T_GAP], w.MOST_GAP) << w.GAP_SHIFT
    target, source = operand_row(thread, 0), vector.first_of(s, thread, w.FABIN)
    if s[target + w.O_KIND] == w.FABOUT:
        number |= s[target + w.O_COLOR] + 1 << w.OTHER_COLOR_SHIFT
        number |= s[target + w.O_QUEUE] + 1 << w.OTHER_QUEUE_SHIFT
    if source >= 0:
        row = operand_row(thread, source)
        where += events.of_queue(s[row + w.O_QUEUE])
    row = events.note(s, w.E_OPERATION, pe, where, number, s[thread + w.T_LEFT])
    s[row + w.E_CYCLE] = cycle


@compiled
def leaves_fifo(s: State, pe: int, thread: int, slot: int) -> bool:
    """What an operation does that found a FIFO empty or full; false where it waits.

    One that ends keeps what is left as the FIFO's length. It gives false when it only tested.
    """
    place = vector.first_of(s, thread, w.FIFO)
    queue = s[operand_row(thread, place) + w.O_QUEUE]
    row = fifo_row(pe, queue)
    action = s[row + (w.F_FULL_ACTION if place == 0 else w.F_EMPTY_ACTION)]
    if action == FAULT:
        queues.fail(s, w.ERROR_FIFO, pe, queue, int(place == 0))
        return False
    if action == SUSPEND or (action == TEST_OR_SUSPEND and slot != w.MAIN_SLOT):
        return False
    s[row + (w.F_WRITE_LENGTH if place == 0 else w.F_READ_LENGTH)] = s[thread + w.T_LEFT]
    finish(s, pe, slot, int(action == TERMINATE))
    return True


@compiled
def compute(s: State, element: Element, pe: int, slot: int, num: int) -> int:
    """The elements of one beat; the payload of its wavelet, where it has one."""
    thread = thread_row(pe, slot)
    operation = s[thread + w.T_OP]
    num_sources = s[vector_row(operation) + w.V_SOURCES]
    is_sent = s[job_row(thread) + w.J_OPERANDS + w.O_KIND] == w.FABOUT
    wavelet = 0
    for number in range(num):
        first = vector.read_source(s, pe, thread, 1, number)
        second = vector.read_source(s, pe, thread, 2, number) if num_sources > 1 else 0
        third = vector.read_source(s, pe, thread, 3, number) if num_sources > 2 else 0
        result = first
        if operation > w.LAST_MOVE:
            result = element(operation, first, second, third)
            if s[job_row(thread) + w.J_OPTIONS] & vector.TELLS_WRAPS:
                check.check_wrap(s, pe, slot, first, second)
        if s[vector_row(operation) + w.V_DESTINATION_WORDS] == 1:
            result &= 0xFFFF
        if is_sent:
            wavelet |= result << (16 * number)
        else:
            vector.write_result(s, pe, thread, result)
    if is_sent:
        wavelet = vector.send(s, pe, thread, wavelet)
    s[w.G_ELEMENTS] += num
    return wavelet


@inlined
def beat(s: State, element: Element, pe: int, slot: int) -> bool:
    """One beat of an operation; false when it has to wait."""
    thread = thread_row(pe, slot)
    if s[thread + w.T_NEXT] > s[w.G_NOW]:
        return False
    if s[thread + w.T_PLAN] != w.PLAN_ANY:
        outcome = planned.try_plan(s, element, pe, thread)
        if outcome != planned.UNPLANNED:
            if outcome and s[thread + w.T_LEFT] == 0:
                finish(s, pe, slot, 1)
            return outcome != 0
        planned.end_plan(s, thread)
    return any_beat(s, element, pe, slot)


@compiled
def any_beat(s: State, element: Element, pe: int, slot: int) -> bool:
    """One beat of any operation."""
    thread = thread_row(pe, slot)
    if s[job_row(thread) + w.J_ADVANCES]:
        if not vector.send_advance(s, pe, thread):
            return False
        check.check_switch(s, pe, slot, control.ADVANCE_WAVELET)
    elif s[job_row(thread) + w.J_OPTIONS] & vector.FILTER:
        if not vector.drop(s, pe, thread):
            return False
    else:
        num = vector.beat_length(s, thread)
        availability = vector.is_available(s, pe, thread, num)
        if availability < 0 and leaves_fifo(s, pe, thread, slot):
            return True
        if availability < 1:
            return False
        if vector.leaves_control(s, pe, thread):
            s[job_row(thread) + w.J_CONTROL_SEEN] = 1
            s[thread + w.T_LEFT] = 0
        else:
            run_beat(s, element, pe, slot, num)
        note_advance(s, thread)
    if s[thread + w.T_LEFT] == 0 and s[job_row(thread) + w.J_ADVANCES] == 0:
        finish(s, pe, slot, 1)
    return True


@compiled
def run_beat(s: State, element: Element, pe: int, slot: int, num: int) -> None:
    """Compute a beat and count it."""
    thread = thread_row(pe, slot)
    payload = compute(s, element, pe, slot, num)
    if is_command(s, thread):
        check.check_switch(s, pe, slot, payload)
    vector.take_wavelets(s, pe, thread)
    s[thread + w.T_LEFT] -= num
    s[thread + w.T_DONE] += num
    s[thread + w.T_NEXT] = s[w.G_NOW] + s[thread + w.T_GAP]
    if s[job_row(thread) + w.J_CONTROL_SEEN]:
        if vector.ends_on_control(s, thread):
            s[thread + w.T_LEFT] = 0
        else:
            check.check_control(s, pe, thread, slot)


@inlined
def is_command(s: State, thread: int) -> bool:
    """Whether an operation sends control wavelets alone."""
    row = operand_row(thread, 0)
    is_sent = s[row + w.O_KIND] == w.FABOUT
    return is_sent and s[row + w.O_FLAGS] & vector.FLAG_CONTROL != 0


@compiled
def note_advance(s: State, thread: int) -> None:
    """Behind its last element an operation may command its own router."""
    destination = operand_row(thread, 0)
    advances = (
        s[destination + w.O_KIND] == w.FABOUT and s[destination + w.O_FLAGS] & vector.FLAG_ADVANCE
    )
    if s[thread + w.T_LEFT] == 0 and advances:
        s[job_row(thread) + w.J_ADVANCES] = 1


@compiled
def level_bits(s: State, thread: int, slot: int) -> int:
    """A microthread's bits in the core's word about threads, by its priority."""
    bits = 1 << slot
    if slot < w.QUEUES and s[job_row(thread) + w.J_PRIORITY] == 1:
        bits |= 1 << (w.MEDIUM_SHIFT + slot)
    if slot < w.QUEUES and s[job_row(thread) + w.J_PRIORITY] >= 2:
        bits |= 1 << (w.HIGH_SHIFT + slot)
    return bits


@inlined
def step_equals(s: State, element: Element, pe: int, threads: int) -> int:
    """At most one beat of some microthreads, or of the main thread alone; its slot, or NO_SLOT."""
    is_main = threads == MAIN_BIT
    first = (s[w.G_NOW] + 1) & SLOT_MASK
    order = 1 if is_main else ((threads | threads << w.QUEUES) >> first) & w.MICROTHREADS
    while order:
        slot = w.MAIN_SLOT if is_main else (lowest_bit(order) + first) & SLOT_MASK
        order &= order - 1
        if beat(s, element, pe, slot):
            if not is_main:
                hold_up_main(s, pe)
            return slot
    return NO_SLOT


@compiled
def hold_up_main(s: State, pe: int) -> None:
    """The main thread's beat takes a cycle more, if it is in the middle of one."""
    thread = thread_row(pe, w.MAIN_SLOT)
    left = s[thread + w.T_NEXT] - s[w.G_NOW]
    if s[core_row(pe) + w.C_THREADS] & MAIN_BIT and 0 < left < s[job_row(thread) + w.J_HOLDS]:
        s[thread + w.T_NEXT] += 1
        s[job_row(thread) + w.J_HELD_UP] = s[w.G_NOW]


@compiled
def step_level(s: State, element: Element, pe: int, threads: int) -> int:
    """The same, for priorities."""
    return step_equals(s, element, pe, threads)


@compiled
def step_levels(s: State, element: Element, pe: int, ready: int) -> int:
    """At most one beat of threads of several priorities; its slot, or NO_SLOT."""
    threads = s[core_row(pe) + w.C_THREADS]
    main_level = MAIN_LEVEL + s[processor_row(pe) + w.P_MAIN_PRIORITY]
    high = (threads >> w.HIGH_SHIFT) & ready
    medium = (threads >> w.MEDIUM_SHIFT) & ready
    low = ready & w.MICROTHREADS & ~(high | medium)
    for level in range(LEVELS - 1, -1, -1):
        is_main = level == main_level and ready >> w.MAIN_SLOT
        slot = step_level(s, element, pe, MAIN_BIT) if is_main else NO_SLOT
        if slot == NO_SLOT and level & 1 == 0:
            mask = low if level == 0 else (medium if level == MEDIUM_LEVEL else high)
            slot = step_level(s, element, pe, mask & w.MICROTHREADS)
        if slot != NO_SLOT:
            return slot
    return NO_SLOT


@inlined
def step_threads(s: State, element: Element, pe: int) -> int:
    """At most one beat of the PE; its slot, or NO_SLOT."""
    threads = s[core_row(pe) + w.C_THREADS]
    ready = threads & ~(threads >> w.HELD_SHIFT) & w.ALL_SLOTS
    is_equal = threads & PRIORITIES == 0 and ready <= MAIN_BIT
    return step_equals(s, element, pe, ready) if is_equal else step_levels(s, element, pe, ready)


@compiled
def next_beat(s: State, pe: int) -> int:
    """The next cycle at which time alone lets a thread or a queue go on; NEVER for none."""
    now = s[w.G_NOW]
    soonest = w.NEVER
    active = s[core_row(pe) + w.C_THREADS] & w.ALL_SLOTS
    while active:
        at = s[thread_row(pe, lowest_bit(active)) + w.T_NEXT]
        active &= active - 1
        if now < at < soonest:
            soonest = at
    return soonest
