"""What the slots of a PE do in a cycle: seen once a cycle in which the core is awake, and booked.

While a core sleeps, its slots go on with what they did: whatever could change that wakes it. A
cycle of an operation has the first of these that holds: its beat, a pause that follows from its
pace, the block of its microthread, an input queue without a wavelet for it, an output queue without
space, a FIFO, and another thread's beat.
"""

from openwafer.sdk.fabric import account, beat, fifo, processor, queues, vector
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled, inlined, lowest_bit
from openwafer.sdk.fabric.rows import (
    account_row,
    core_row,
    fifo_row,
    job_row,
    mailbox_row,
    operand_row,
    thread_row,
)
from openwafer.sdk.fabric.state import State
from openwafer.sdk.program import mailbox as mb


@compiled
def book(s: State, pe: int, beaten: int) -> None:
    """Book what a PE's slots do from now on; `beaten` is the slot of its beat, or NO_SLOT."""
    at = account_row(pe, w.MAIN_SLOT) + w.A_SLOTS
    before, now = s[at], 0
    active = s[core_row(pe) + w.C_THREADS] & w.MICROTHREADS
    if 0 <= beaten < w.MAIN_SLOT:
        active |= 1 << beaten
    while active:
        slot = lowest_bit(active)
        active &= active - 1
        own = (before >> (w.STATE_BITS * slot)) & w.STATE_MASK
        now |= state_of(s, pe, slot, beaten, own) << (w.STATE_BITS * slot)
    changed = before ^ now
    if changed:
        s[at] = now
    while changed:
        slot = lowest_bit(changed) // w.STATE_BITS
        changed &= ~(w.STATE_MASK << (w.STATE_BITS * slot))
        own = (now >> (w.STATE_BITS * slot)) & w.STATE_MASK
        account.enter(s, pe, slot, own, s[w.G_NOW])
    book_main(s, pe, beaten)


@compiled
def book_main(s: State, pe: int, beaten: int) -> None:
    """The same for the main thread where no change of its own is booked.

    Its operations take the time of their issue, by which beats are late.
    """
    main = s[core_row(pe) + w.C_MAIN]
    if main == w.MAIN_VECTOR:
        issued, begun = s[w.G_NOW] - s[w.G_BEAT], s[mailbox_row(pe) + mb.CYCLE]
        if issued >= begun:
            account.begin_operation(s, pe, begun)
            own = s[account_row(pe, w.MAIN_SLOT) + w.A_STATE]
            state = state_of(s, pe, w.MAIN_SLOT, beaten, own)
            account.enter(s, pe, w.MAIN_SLOT, state, issued)
    elif main == w.MAIN_IDLE or main == w.MAIN_REST:
        state = w.IN_BLOCKED_TASK if has_blocked_task(s, pe) else w.IN_NOTHING
        account.enter(s, pe, w.MAIN_SLOT, state, s[w.G_NOW])


@compiled
def state_of(s: State, pe: int, slot: int, beaten: int, before: int) -> int:
    """What the operation of a slot does in this cycle; `before` is what the slot did up to now."""
    if slot == beaten:
        return w.IN_BEAT
    thread, now = thread_row(pe, slot), s[w.G_NOW]
    if slot == w.MAIN_SLOT and s[job_row(thread) + w.J_HELD_UP] == now:
        return w.IN_LOST_BEAT
    output = output_of(s, thread)
    free = queues.output_ready(s, pe, output) if output >= 0 else 0
    # Threads that wait for space sleep until they hear of it.
    if s[thread + w.T_NEXT] > now and s[thread + w.T_NEXT] != free:
        return w.IN_PAUSE
    if (s[core_row(pe) + w.C_THREADS] >> (w.HELD_SHIFT + slot)) & 1:
        return w.IN_BLOCKED_THREAD
    awaited = awaited_input(s, pe, thread)
    if awaited >= 0:
        return w.IN_INPUT + awaited
    if free > now:
        return w.IN_OUTPUT + output
    if s[thread + w.T_PLAN] == w.PLAN_ANY and not has_fifos(s, pe, thread):
        return w.IN_FIFO
    # What has come since the beats of this cycle were chosen counts from the next one on.
    return w.IN_LOST_BEAT if beaten >= 0 else before


@inlined
def output_of(s: State, thread: int) -> int:
    """The output queue of an operation, or -1; moves by a plan have it there."""
    plan = s[thread + w.T_PLAN]
    kind = plan & beat.PLAN_MASK
    if kind == w.PLAN_SEND or kind == w.PLAN_RECEIVE:
        return (plan >> beat.QUEUE_SHIFT) & 15 if kind == w.PLAN_SEND else -1
    target = operand_row(thread, 0)
    return s[target + w.O_QUEUE] if s[target + w.O_KIND] == w.FABOUT else -1


@inlined
def awaited_input(s: State, pe: int, thread: int) -> int:
    """The first input queue that has no wavelet for an operation, or -1."""
    plan = s[thread + w.T_PLAN]
    kind = plan & beat.PLAN_MASK
    if kind == w.PLAN_SEND or kind == w.PLAN_RECEIVE:
        queue = (plan >> beat.QUEUE_SHIFT) & 15
        is_reader = kind == w.PLAN_RECEIVE
        has_come = is_reader and beat.arrived(s, pe, queue, plan >> beat.COLOR_SHIFT) >= 0
        return queue if is_reader and not has_come else -1
    return unready_input(s, pe, thread)


@compiled
def unready_input(s: State, pe: int, thread: int) -> int:
    """The same for any operation; behind its last element it needs none."""
    if s[job_row(thread) + w.J_ADVANCES]:
        return -1
    for number in range(1, mb.NUM_OPERANDS):
        row = operand_row(thread, number)
        if s[row + w.O_KIND] == w.FABIN:
            is_ready = queues.input_ready(s, pe, s[row + w.O_QUEUE]) <= s[w.G_NOW]
            if not is_ready or not vector.has_color(s, pe, row):
                return s[row + w.O_QUEUE]
    return -1


@compiled
def has_fifos(s: State, pe: int, thread: int) -> bool:
    """Whether all FIFOs of an operation have what its next beat needs."""
    num = vector.beat_length(s, thread)
    for number in range(mb.NUM_OPERANDS):
        row = operand_row(thread, number)
        if s[row + w.O_KIND] == w.FIFO:
            buffer = fifo_row(pe, s[row + w.O_QUEUE])
            is_reader = number > 0
            if is_reader and not fifo.has_elements(s, buffer, num):
                return False
            if not is_reader and not fifo.has_space(s, buffer, num):
                return False
    return True


@compiled
def has_blocked_task(s: State, pe: int) -> bool:
    """Whether a task of an idle PE could run if it were not blocked."""
    mailbox = mailbox_row(pe)
    if s[mailbox + mb.ACTIVE] & s[mailbox + mb.BLOCKED]:
        return True
    waiting = s[core_row(pe) + w.C_IN] & w.COUNTS
    if (s[mailbox + mb.BLOCKED] | s[mailbox + mb.BLOCKED_QUEUES]) == 0:
        return False
    while waiting:
        queue = lowest_bit(waiting) >> 3
        waiting &= ~(255 << (8 * queue))
        if queues.input_ready(s, pe, queue) <= s[w.G_NOW]:
            color = (queues.input_head(s, pe, queue) >> w.COLOR_SHIFT) & 31
            is_blocked = processor.is_queue_blocked(s, pe, queue, color)
            if is_blocked and not processor.is_awaited(s, pe, queue):
                return True
    return False
