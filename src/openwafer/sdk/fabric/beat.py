"""Beats of the simplest operations, which most of a program's beats are.

What they do is what :mod:`openwafer.sdk.fabric.vector` does for every operation; an operation that
could need anything else, and a control wavelet, is left to that.
"""

from collections.abc import Callable

from openwafer.sdk.fabric import operand, queues, vector
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled, inlined
from openwafer.sdk.fabric.rows import core_row, input_slot, job_row, operand_row, vector_row
from openwafer.sdk.fabric.state import State

Element = Callable[[int, int, int, int], int]

PLAN_MASK = 15
WORDS_SHIFT = 4
"""Two bits by operand in a plan: words of an element."""
QUEUE_SHIFT = 12
COLOR_SHIFT = 16
NO_COLOR = 31
WAITS = 0
DONE = 1
UNPLANNED = 2


@compiled
def plan_of(s: State, thread: int) -> int:
    """How an operation's beats go: a plan, and the words of its operands' elements."""
    row = vector_row(s[thread + w.T_OP])
    num_sources = s[row + w.V_SOURCES]
    if s[job_row(thread) + w.J_WIDTH] != 1 or s[job_row(thread) + w.J_OPTIONS] & vector.LOOKED_AT:
        return w.PLAN_ANY
    words = s[row + w.V_DESTINATION_WORDS]
    kinds = num_inputs = 0
    for place in range(num_sources + 1):
        own = operand_row(thread, place)
        kind = s[own + w.O_KIND]
        is_line = kind == w.MEMORY and s[own + w.O_DIMS] == 1
        is_fabric = kind == (w.FABIN if place else w.FABOUT)
        is_plain = is_fabric and s[own + w.O_FLAGS] & ~vector.FLAG_SIMD == 0
        if not (is_line or is_plain or (place and kind == w.SCALAR)):
            return w.PLAN_ANY
        num_inputs += int(kind == w.FABIN)
        kinds |= kind << (4 * place)
        if place:
            words |= s[row + w.V_SOURCE_WORDS + place - 1] << (2 * place)
    if num_inputs > 1:
        return w.PLAN_ANY
    if s[thread + w.T_OP] <= w.LAST_MOVE and kinds == w.FABOUT | w.MEMORY << 4:
        return plan_move(s, thread, w.PLAN_SEND | words << WORDS_SHIFT)
    if s[thread + w.T_OP] <= w.LAST_MOVE and kinds == w.MEMORY | w.FABIN << 4:
        return plan_move(s, thread, w.PLAN_RECEIVE | words << WORDS_SHIFT)
    return w.PLAN_COMPUTE | words << WORDS_SHIFT


@compiled
def plan_move(s: State, thread: int, plan: int) -> int:
    """The plan of a move, with queue and color; address and stride go where the plan is."""
    is_send = plan & PLAN_MASK == w.PLAN_SEND
    memory, fabric = operand_row(thread, int(is_send)), operand_row(thread, int(not is_send))
    s[thread + w.T_ADDRESS] = s[memory + w.O_ADDRESS]
    s[thread + w.T_STRIDE] = s[memory + w.O_STRIDES]
    return (
        plan
        | s[fabric + w.O_QUEUE] << QUEUE_SHIFT
        | min(s[fabric + w.O_COLOR], NO_COLOR) << COLOR_SHIFT
    )


@compiled
def end_plan(s: State, thread: int) -> None:
    """Go on without a plan."""
    plan = s[thread + w.T_PLAN] & PLAN_MASK
    s[thread + w.T_PLAN] = w.PLAN_ANY
    if plan in (w.PLAN_SEND, w.PLAN_RECEIVE):
        memory = operand_row(thread, int(plan == w.PLAN_SEND))
        s[memory + w.O_ADDRESS] = s[thread + w.T_ADDRESS]


@inlined
def element_words(plan: int, place: int) -> int:
    """Words of an operand's element."""
    return (plan >> (WORDS_SHIFT + 2 * place)) & 3


@inlined
def mask_of(num_words: int) -> int:
    """The bits of so many words."""
    return 0xFFFF if num_words == 1 else 0xFFFFFFFF


@inlined
def arrived(s: State, pe: int, queue: int, color: int) -> int:
    """The wavelet that an operand takes now, or -1."""
    word = s[core_row(pe) + w.C_IN]
    if queues.count_in(word, queue) == 0:
        return -1
    slot = input_slot(pe, queue, queues.head_in(word, queue))
    wavelet = s[slot]
    if s[slot + 1] > s[w.G_NOW]:
        return -1
    is_other = (wavelet >> w.COLOR_SHIFT) & 31 != color
    if is_other and color < w.COLORS and s[w.G_IS_WSE3] == 0:
        return -1
    return wavelet


@inlined
def next_from_memory(s: State, pe: int, row: int, num_words: int) -> int:
    """A memory operand's next element."""
    value = operand.load(s, pe, s[row + w.O_ADDRESS], num_words)
    s[row + w.O_ADDRESS] += s[row + w.O_STRIDES]
    return value


@inlined
def next_to_memory(s: State, pe: int, row: int, num_words: int, value: int) -> None:
    """Store a memory operand's next element."""
    operand.store(s, pe, s[row + w.O_ADDRESS], num_words, value)
    s[row + w.O_ADDRESS] += s[row + w.O_STRIDES]


@inlined
def send(s: State, pe: int, thread: int, plan: int) -> int:
    """One word from memory to the fabric."""
    queue = (plan >> QUEUE_SHIFT) & 15
    if not queues.may_send(s, pe, thread, queue):
        return WAITS
    value = operand.load(s, pe, s[thread + w.T_ADDRESS], element_words(plan, 1))
    s[thread + w.T_ADDRESS] += s[thread + w.T_STRIDE]
    value &= mask_of(element_words(plan, 0))
    queues.push_output(s, pe, queue, value | plan >> COLOR_SHIFT << w.COLOR_SHIFT)
    return DONE


@inlined
def receive(s: State, pe: int, thread: int, plan: int) -> int:
    """One word from the fabric to memory."""
    queue = (plan >> QUEUE_SHIFT) & 15
    wavelet = arrived(s, pe, queue, plan >> COLOR_SHIFT)
    if wavelet < 0:
        return WAITS
    if wavelet & w.CONTROL_BIT:
        return UNPLANNED
    queues.pop_input(s, pe, queue)
    value = wavelet & mask_of(element_words(plan, 1))
    operand.store(s, pe, s[thread + w.T_ADDRESS], element_words(plan, 0), value)
    s[thread + w.T_ADDRESS] += s[thread + w.T_STRIDE]
    return DONE


@inlined
def source_value(s: State, pe: int, thread: int, place: int, wavelet: int) -> int:
    """A source's element of a beat; `wavelet` is what the fabric brought."""
    row = operand_row(thread, place)
    num_words = element_words(s[thread + w.T_PLAN], place)
    if num_words == 0:
        return 0
    if s[row + w.O_KIND] == w.MEMORY:
        return next_from_memory(s, pe, row, num_words)
    if s[row + w.O_KIND] == w.SCALAR:
        return s[row + w.O_VALUE]
    return wavelet & mask_of(num_words)


@compiled
def compute(s: State, element: Element, pe: int, thread: int) -> int:
    """One element of an operation on memory, scalars and the fabric."""
    destination, input_row, wavelet = operand_row(thread, 0), -1, 0
    for place in range(1, 4):
        row = operand_row(thread, place)
        if s[row + w.O_KIND] == w.FABIN:
            input_row = row
            wavelet = arrived(s, pe, s[row + w.O_QUEUE], s[row + w.O_COLOR])
    if wavelet < 0:
        return WAITS
    is_sent = s[destination + w.O_KIND] == w.FABOUT
    if is_sent and not queues.may_send(s, pe, thread, s[destination + w.O_QUEUE]):
        return WAITS
    if wavelet & w.CONTROL_BIT:
        return UNPLANNED
    first = source_value(s, pe, thread, 1, wavelet)
    second = source_value(s, pe, thread, 2, wavelet)
    third = source_value(s, pe, thread, 3, wavelet)
    operation = s[thread + w.T_OP]
    value = first if operation <= w.LAST_MOVE else element(operation, first, second, third)
    if input_row >= 0:
        queues.pop_input(s, pe, s[input_row + w.O_QUEUE])
    num_words = element_words(s[thread + w.T_PLAN], 0)
    if is_sent:
        value = (value & mask_of(num_words)) | s[destination + w.O_COLOR] << w.COLOR_SHIFT
        queues.push_output(s, pe, s[destination + w.O_QUEUE], value)
    else:
        next_to_memory(s, pe, destination, num_words, value & mask_of(num_words))
    return DONE


@inlined
def try_plan(s: State, element: Element, pe: int, thread: int) -> int:
    """A beat of an operation with a plan: DONE, WAITS, or UNPLANNED and nothing has changed."""
    plan = s[thread + w.T_PLAN]
    if plan & PLAN_MASK == w.PLAN_SEND:
        outcome = send(s, pe, thread, plan)
    elif plan & PLAN_MASK == w.PLAN_RECEIVE:
        outcome = receive(s, pe, thread, plan)
    else:
        outcome = compute(s, element, pe, thread)
    if outcome == DONE:
        s[thread + w.T_LEFT] -= 1
        s[thread + w.T_DONE] += 1
        s[thread + w.T_NEXT] = s[w.G_NOW] + s[thread + w.T_GAP]
        s[w.G_ELEMENTS] += 1
    return outcome
