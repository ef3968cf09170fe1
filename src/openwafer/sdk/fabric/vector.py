"""Vector operations with an operand that only the machine can serve, one beat at a time.

The length is the extent of the first source that is a descriptor and not empty, else that of the
destination, else 1; a length that was set for a FIFO limits it. With a fabric or FIFO operand a
beat is one element (two in SIMD mode); without, as many as the operation's rate and its strides
allow, as :mod:`openwafer.sdk.arch.pace` says. A control wavelet that ends an operation is its last
element on WSE-3; on WSE-2 it stays in the queue for who reads it next.
"""

from typing import Final

from openwafer.sdk.arch import pace
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.fabric import control, fifo, operand, queues
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled
from openwafer.sdk.fabric.rows import (
    core_row,
    dsr_row,
    fifo_row,
    image_row,
    job_row,
    mailbox_row,
    operand_row,
    processor_row,
    vector_row,
)
from openwafer.sdk.fabric.state import State
from openwafer.sdk.program import descriptor as dsd
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.input_queues import OUTPUT_QUEUE

FIRST_FLOAT: Final = VECTOR_OPS["faddh"].code
GIVEN_DSD: Final = int(mb.OperandKind.DSD)
FLAG_CONTROL: Final = int(dsd.DsdFlag.CONTROL)
FLAG_SIMD: Final = int(dsd.DsdFlag.SIMD)
FLAG_ADVANCE: Final = int(dsd.DsdFlag.ADVANCE_SWITCH)
FLAG_WAVELET_INDEX: Final = int(dsd.DsdFlag.WAVELET_INDEX)
FLAG_ZERO_FIRST: Final = int(dsd.DsdFlag.ZERO_FIRST)
FLAG_ZERO_SECOND: Final = int(dsd.DsdFlag.ZERO_SECOND)
FLAG_TRANSFORM: Final = int(dsd.DsdFlag.HAS_CONTROL_TRANSFORM)
ASYNC: Final = int(mb.Option.ASYNC)
SAVE_ADDRESS: Final = int(mb.Option.SAVE_ADDRESS)
SINGLE_STEP: Final = int(mb.Option.SINGLE_STEP)
TERMINATE: Final = int(mb.Option.TERMINATE_ON_CONTROL)
HAS_INDEX: Final = int(mb.Option.HAS_INDEX)
FILTER: Final = int(mb.Option.FILTER)
TELLS_WRAPS: Final = int(mb.Option.TELLS_WRAPS)
LOOKED_AT: Final = FILTER | TELLS_WRAPS
"""Options by which each element is looked at."""
TRANSFORM_MARK: Final = 3 << 30
NUM_OPTIONS: Final = 6


stride_gap = compiled(pace.stride_gap)
paced_cycles = compiled(pace.paced_cycles)
read_turns = compiled(pace.read_turns)
turned_cycles = compiled(pace.turned_cycles)
load_cycles = compiled(pace.load_cycles)
drain_cycles = compiled(pace.drain_cycles)


@compiled
def take_request(s: State, pe: int, thread: int) -> bool:
    """Fill a thread's row from the mailbox; false when an operand is none."""
    row = mailbox_row(pe)
    s[thread + w.T_OP] = s[row + mb.OPERATION]
    s[job_row(thread) + w.J_OPTIONS] = s[row + mb.OPTIONS]
    s[job_row(thread) + w.J_ACTIVATE] = s[row + mb.ACTIVATE]
    s[job_row(thread) + w.J_UNBLOCK] = s[row + mb.UNBLOCK]
    s[job_row(thread) + w.J_CONTROL_ACTIVATE] = s[row + mb.CONTROL_ACTIVATE]
    s[job_row(thread) + w.J_CONTROL_UNBLOCK] = s[row + mb.CONTROL_UNBLOCK]
    s[job_row(thread) + w.J_MICROTHREAD] = s[row + mb.MICROTHREAD]
    s[job_row(thread) + w.J_INDEX] = s[row + mb.INDEX]
    s[job_row(thread) + w.J_PRIORITY] = s[row + mb.PRIORITY]
    s[job_row(thread) + w.J_PLACE] = s[row + mb.PLACE]
    s[job_row(thread) + w.J_CONTROL_SEEN] = 0
    s[thread + w.T_DONE] = 0
    s[job_row(thread) + w.J_ADVANCES] = 0
    for place in range(mb.NUM_OPERANDS):
        target = operand_row(thread, place)
        if not operand.decode(s, pe, place, target):
            return False
        if s[target + w.O_DSR]:
            take_dsr_options(s, pe, thread, s[target + w.O_DSR] - 1)
        if s[job_row(thread) + w.J_OPTIONS] & HAS_INDEX:
            operand.add_index(s, target, s[job_row(thread) + w.J_INDEX])
        s[target + w.O_BASE] = s[target + w.O_ADDRESS]
        scale_strides(s, target, words_of(s, s[thread + w.T_OP], place))
    first = operand_row(thread, 1)
    s[job_row(thread) + w.J_ACCUMULATOR] = s[first + w.O_VALUE]
    return True


@compiled
def words_of(s: State, operation: int, place: int) -> int:
    """Words of an operation's element: 0 is the destination."""
    row = vector_row(operation)
    return s[row + (w.V_SOURCE_WORDS + place - 1 if place else w.V_DESTINATION_WORDS)]


@compiled
def scale_strides(s: State, row: int, num_words: int) -> None:
    """Strides count elements of the operation, whatever the array holds."""
    own = s[row + w.O_WORDS]
    if s[row + w.O_KIND] != w.MEMORY or own == num_words or own == 0:
        return
    for dim in range(s[row + w.O_DIMS]):
        s[row + w.O_STRIDES + dim] = s[row + w.O_STRIDES + dim] * num_words // own


@compiled
def take_dsr_options(s: State, pe: int, thread: int, number: int) -> None:
    """What was given when a DSR was loaded holds for the operations on it."""
    row = dsr_row(pe, number)
    s[job_row(thread) + w.J_OPTIONS] |= s[row + w.D_OPTIONS] & ~SAVE_ADDRESS
    for k in range(1, NUM_OPTIONS):
        if s[job_row(thread) + w.J_OPTIONS + k] < 0:
            s[job_row(thread) + w.J_OPTIONS + k] = s[row + w.D_OPTIONS + k]
    if s[job_row(thread) + w.J_PRIORITY] < 0:
        s[job_row(thread) + w.J_PRIORITY] = s[row + w.D_OPTIONS + NUM_OPTIONS]


@compiled
def first_of(s: State, thread: int, kind: int) -> int:
    """Place of the first operand of a kind, or -1."""
    for place in range(mb.NUM_OPERANDS):
        if s[operand_row(thread, place) + w.O_KIND] == kind:
            return place
    return -1


@compiled
def fifo_length(s: State, pe: int, thread: int) -> int:
    """Length that was set for an operation's FIFO."""
    place = first_of(s, thread, w.FIFO)
    if place < 0:
        return 0
    row = fifo_row(pe, s[operand_row(thread, place) + w.O_QUEUE])
    return s[row + w.F_WRITE_LENGTH] if place == 0 else s[row + w.F_READ_LENGTH]


@compiled
def length(s: State, pe: int, thread: int) -> int:
    """Number of elements, see the module."""
    if s[job_row(thread) + w.J_OPTIONS] & SINGLE_STEP:
        for place in range(mb.NUM_OPERANDS):
            row = operand_row(thread, place)
            if s[row + w.O_DSR] and s[row + w.O_EXTENT] == 0:
                return 0
        return 1
    set_length = fifo_length(s, pe, thread)
    for place in (1, 2, 3, 0):
        row = operand_row(thread, place)
        kind = s[row + w.O_KIND]
        if kind in (w.FABIN, w.FABOUT, w.MEMORY) and s[row + w.O_EXTENT]:
            own = s[row + w.O_EXTENT]
            return min(own, set_length) if set_length else own
        if kind in (w.FABIN, w.FABOUT, w.MEMORY) and place == 0:
            return 0
    if is_given(s, thread) and first_of(s, thread, w.MEMORY) >= 0:
        return 0
    return set_length or 1


@compiled
def load_delay(s: State, pe: int) -> int:
    """Cycles for loading registers with the descriptors that a request names."""
    num = 0
    for place in range(mb.NUM_OPERANDS):
        num += s[mailbox_row(pe) + mb.OPERANDS + place * mb.OPERAND_WORDS] == GIVEN_DSD
    return load_cycles(num, s[w.G_LOAD])


@compiled
def drained_at(s: State, pe: int, thread: int) -> int:
    """When the results of the main thread's operation can be used, whose issue has ended."""
    reads_memory = False
    for place in range(1, mb.NUM_OPERANDS):
        reads_memory = reads_memory or s[operand_row(thread, place) + w.O_KIND] == w.MEMORY
    drain = drain_cycles(s[w.G_DRAIN], s[w.G_LOAD], reads_memory)
    return s[mailbox_row(pe) + mb.CYCLE] + drain


@compiled
def is_given(s: State, thread: int) -> bool:
    """Whether a request names memory and scalars only, as native code's own operations do."""
    for place in range(mb.NUM_OPERANDS):
        row = operand_row(thread, place)
        kind = s[row + w.O_KIND]
        if s[row + w.O_DSR] or kind == w.FABIN or kind == w.FABOUT or kind == w.FIFO:
            return False
    return True


@compiled
def set_speed(s: State, thread: int, start: int) -> None:
    """Choose the first beat, elements a beat and cycles between beats.

    A beat of `start` is that of an operation on the fabric.
    """
    num_fabric = 0
    is_simd = True
    for place in range(mb.NUM_OPERANDS):
        kind = s[operand_row(thread, place) + w.O_KIND]
        if kind == w.FABIN or kind == w.FABOUT:
            num_fabric += 1
            is_simd = is_simd and s[operand_row(thread, place) + w.O_FLAGS] & FLAG_SIMD != 0
            is_simd = is_simd and words_of(s, s[thread + w.T_OP], place) == 1
    turns = turns_of(s, thread)
    s[job_row(thread) + w.J_TURNS] = w.NEVER if turns > pace.ONE_TURN else 0
    s[job_row(thread) + w.J_HOLDS] = 1
    if num_fabric or first_of(s, thread, w.FIFO) >= 0:
        s[job_row(thread) + w.J_WIDTH] = 2 if num_fabric and is_simd else 1
        s[thread + w.T_GAP] = turned_cycles(1, turns)
        s[thread + w.T_NEXT] = start
    else:
        set_memory_speed(s, thread, turns, start)


@compiled
def set_memory_speed(s: State, thread: int, turns: int, start: int) -> None:
    """The same for memory alone; the first beat is put so that the last one ends in time."""
    row = vector_row(s[thread + w.T_OP])
    width, gap, num = s[row + w.V_WIDTH], 1, s[thread + w.T_LEFT]
    is_first_scalar = s[operand_row(thread, 1) + w.O_KIND] == w.SCALAR
    is_sum = s[operand_row(thread, 0) + w.O_KIND] == w.POINTER and s[row + w.V_SOURCES] > 1
    is_float_sum = is_sum and is_first_scalar and s[thread + w.T_OP] >= FIRST_FLOAT
    if is_float_sum:
        width, gap = 1, s[w.G_FLOAT]
    else:
        gap = longest_gap(s, thread, width)
    if s[w.G_STRIDE_WIDTHS]:
        # Elements that go one by one keep their pace; others go in narrower beats.
        width, gap = (width // gap, 1) if width > 1 else (width, gap)
    line = num
    for place in range(mb.NUM_OPERANDS):
        line = min(line, left_of_line(s, operand_row(thread, place)))
    num_lines, rest = num // max(1, line), num % max(1, line)
    cycles = num_lines * paced_cycles(line, gap, width) + paced_cycles(rest, gap, width)
    num_beats = num_lines * -(-line // width) + -(-rest // width)
    gap = gap * turns // pace.ONE_TURN
    s[job_row(thread) + w.J_WIDTH] = width
    s[job_row(thread) + w.J_TURNS] = turned_cycles(cycles, turns) - cycles
    s[thread + w.T_GAP] = gap
    s[thread + w.T_NEXT] = start + turned_cycles(cycles, turns) - 1 - max(0, num_beats - 1) * gap
    s[job_row(thread) + w.J_HOLDS] = 1 if is_float_sum else gap


@compiled
def left_of_line(s: State, row: int) -> int:
    """Elements up to the end of an operand's line, behind which a beat begins."""
    if s[row + w.O_KIND] != w.MEMORY or s[row + w.O_DIMS] < 2:
        return w.NEVER
    return s[row + w.O_EXTENTS] - s[row + w.O_INDEX]


@compiled
def beat_length(s: State, thread: int) -> int:
    """Elements of the next beat."""
    num = min(s[job_row(thread) + w.J_WIDTH], s[thread + w.T_LEFT])
    if s[job_row(thread) + w.J_WIDTH] > 1:
        for place in range(mb.NUM_OPERANDS):
            num = min(num, left_of_line(s, operand_row(thread, place)))
    return num


@compiled
def turns_of(s: State, thread: int) -> int:
    """Quarters of a cycle that reads of a beat of the first two sources in memory take."""
    first = -1
    for place in range(1, mb.NUM_OPERANDS):
        row = operand_row(thread, place)
        if s[row + w.O_KIND] != w.MEMORY:
            continue
        if first >= 0:
            target = operand_row(thread, 0)
            is_updated = s[target + w.O_KIND] == w.MEMORY
            is_updated = is_updated and s[target + w.O_ADDRESS] == s[first + w.O_ADDRESS]
            width = s[vector_row(s[thread + w.T_OP]) + w.V_WIDTH]
            updated = width * words_of(s, s[thread + w.T_OP], 1) if is_updated else 0
            return read_turns(
                s[first + w.O_ADDRESS],
                s[first + w.O_STRIDES],
                s[row + w.O_ADDRESS],
                s[row + w.O_STRIDES],
                s[w.G_ROW_WORDS],
                updated,
            )
        first = row
    return pace.ONE_TURN


@compiled
def element_stride(s: State, thread: int, place: int) -> int:
    """Distance of the elements of an operand's innermost dimension; 1 for one not in memory."""
    row = operand_row(thread, place)
    if s[row + w.O_KIND] != w.MEMORY:
        return 1
    return s[row + w.O_STRIDES] // words_of(s, s[thread + w.T_OP], place)


@compiled
def longest_gap(s: State, thread: int, width: int) -> int:
    """Cycles in which `width` elements of all operands pass."""
    gap = 1
    for place in range(mb.NUM_OPERANDS):
        stride = element_stride(s, thread, place)
        gap = max(gap, stride_gap(stride, width, s[w.G_STRIDE_WIDTHS]))
    return gap


@compiled
def slot_of(s: State, pe: int, thread: int) -> int:
    """Microthread of an operation: as asked for, else by its queue, else a free one."""
    if s[job_row(thread) + w.J_MICROTHREAD] >= 0:
        return s[job_row(thread) + w.J_MICROTHREAD]
    for kind in (w.FABOUT, w.FABIN):
        place = first_of(s, thread, kind)
        if place >= 0:
            return s[operand_row(thread, place) + w.O_QUEUE]
    for slot in range(w.QUEUES):
        if (s[core_row(pe) + w.C_THREADS] >> slot) & 1 == 0:
            return slot
    return 0


@compiled
def bind_queues(s: State, pe: int, thread: int) -> bool:
    """Give every fabric operand its queue and color; false when there is none to give."""
    for place in range(mb.NUM_OPERANDS):
        row = operand_row(thread, place)
        if s[row + w.O_KIND] == w.FABIN:
            if not bind_input(s, pe, row):
                return False
        elif s[row + w.O_KIND] == w.FABOUT:
            if s[row + w.O_QUEUE] == dsd.NO_QUEUE:
                s[row + w.O_QUEUE] = OUTPUT_QUEUE
            bound = queues.byte_of(s, processor_row(pe) + w.P_OUT_COLOR, s[row + w.O_QUEUE])
            if bound and (s[w.G_IS_WSE3] or s[row + w.O_COLOR] == dsd.NO_COLOR):
                s[row + w.O_COLOR] = bound - 1
            if s[row + w.O_COLOR] >= w.COLORS:
                return False
    return True


@compiled
def bind_input(s: State, pe: int, row: int) -> bool:
    """Give a fabric input its queue; on WSE-2 the first use binds the color to it."""
    color, queue = s[row + w.O_COLOR], s[row + w.O_QUEUE]
    bound = queues.queue_of(s, pe, color) if color < w.COLORS else -1
    is_wse2_color = s[w.G_IS_WSE3] == 0 and color < w.COLORS
    if queue == dsd.NO_QUEUE:
        # Colors that found no free queue share the last one.
        queue = w.QUEUES - 1 if bound < 0 and is_wse2_color else bound
        s[row + w.O_QUEUE] = queue
    if is_wse2_color and bound != queue:
        queues.bind_input(s, pe, color, queue)
    return queue >= 0


@compiled
def take_priority(s: State, pe: int, thread: int) -> None:
    """An operation without a priority has the highest of its descriptors, FIFOs and queues."""
    job = job_row(thread)
    if s[job + w.J_PRIORITY] >= 0:
        return
    of_queues = s[image_row(s[processor_row(pe) + w.P_IMAGE]) + w.I_PRIORITIES]
    for place in range(mb.NUM_OPERANDS):
        row = operand_row(thread, place)
        kind = s[row + w.O_KIND]
        own = 0
        if kind == w.FIFO:
            own = s[fifo_row(pe, s[row + w.O_QUEUE]) + w.F_PRIORITY]
        elif kind == w.FABIN or kind == w.FABOUT:
            own = (s[row + w.O_FLAGS] >> w.PRIORITY_SHIFT) & 3
        if kind == w.FABIN:
            own = max(own, (of_queues >> (2 * s[row + w.O_QUEUE])) & 3)
        s[job + w.J_PRIORITY] = max(s[job + w.J_PRIORITY], own)


@compiled
def is_available(s: State, pe: int, thread: int, num: int) -> int:
    """1: a beat can go; 0: the fabric makes it wait; -1: a FIFO does."""
    now = s[w.G_NOW]
    for place in range(mb.NUM_OPERANDS):
        row = operand_row(thread, place)
        kind = s[row + w.O_KIND]
        if kind == w.FABIN:
            if queues.input_ready(s, pe, s[row + w.O_QUEUE]) > now or not has_color(s, pe, row):
                return 0
        elif kind == w.FABOUT:
            if not queues.may_send(s, pe, thread, s[row + w.O_QUEUE]):
                return 0
        elif kind == w.FIFO:
            buffer = fifo_row(pe, s[row + w.O_QUEUE])
            if not (fifo.can_push(s, buffer, num) if place == 0 else fifo.can_pop(s, buffer, num)):
                return -1
    return 1


@compiled
def has_color(s: State, pe: int, row: int) -> bool:
    """Whether the first wavelet of a queue has the operand's color; WSE-2 queues share colors."""
    if s[w.G_IS_WSE3] or s[row + w.O_COLOR] >= w.COLORS:
        return True
    color = (queues.input_head(s, pe, s[row + w.O_QUEUE]) >> w.COLOR_SHIFT) & 31
    return bool(color == s[row + w.O_COLOR])


@compiled
def read_source(s: State, pe: int, thread: int, place: int, number: int) -> int:
    """Raw bits of a source's next element; `number` counts within the beat."""
    row = operand_row(thread, place)
    kind = s[row + w.O_KIND]
    num_words = s[vector_row(s[thread + w.T_OP]) + w.V_SOURCE_WORDS + place - 1]
    if kind == w.SCALAR:
        first_is_accumulator = (
            place == 1 and s[job_row(thread) + w.J_OPERANDS + w.O_KIND] == w.POINTER
        )
        return s[job_row(thread) + w.J_ACCUMULATOR] if first_is_accumulator else s[row + w.O_VALUE]
    if kind == w.MEMORY:
        value = operand.load(s, pe, s[row + w.O_ADDRESS], num_words)
        operand.step(s, row)
        return value
    if kind == w.FIFO:
        return fifo.pop(s, pe, fifo_row(pe, s[row + w.O_QUEUE]))
    if kind != w.FABIN:
        return 0
    wavelet = queues.input_head(s, pe, s[row + w.O_QUEUE])
    value = wavelet & 0xFFFFFFFF
    if s[row + w.O_FLAGS] & FLAG_TRANSFORM:
        value = (value & ~TRANSFORM_MARK) | (TRANSFORM_MARK if wavelet & w.CONTROL_BIT else 0)
    if s[row + w.O_FLAGS] & FLAG_SIMD and num_words == 1:
        value = (value >> (16 * number)) & 0xFFFF
    return value & 0xFFFF if num_words == 1 else value


@compiled
def write_result(s: State, pe: int, thread: int, value: int) -> None:
    """Store an element, unless it leaves with the wavelet of its beat."""
    row = operand_row(thread, 0)
    kind = s[row + w.O_KIND]
    if kind == w.MEMORY:
        operand.store(
            s,
            pe,
            s[row + w.O_ADDRESS],
            s[vector_row(s[thread + w.T_OP]) + w.V_DESTINATION_WORDS],
            value,
        )
        operand.step(s, row)
    elif kind == w.FIFO:
        fifo.push(s, pe, fifo_row(pe, s[row + w.O_QUEUE]), value)
    elif kind == w.POINTER:
        s[job_row(thread) + w.J_ACCUMULATOR] = value


@compiled
def send(s: State, pe: int, thread: int, value: int) -> int:
    """The wavelet of a beat leaves into its output queue; its payload."""
    row = operand_row(thread, 0)
    flags = s[row + w.O_FLAGS]
    if flags & FLAG_WAVELET_INDEX:
        value = (value & 0xFFFF) | (s[job_row(thread) + w.J_INDEX] & 0xFFFF) << 16
    is_control = flags & FLAG_CONTROL != 0
    if flags & FLAG_TRANSFORM:
        is_control = is_control or value & TRANSFORM_MARK != 0
        value &= ~TRANSFORM_MARK
    payload = value & 0xFFFFFFFF
    wavelet = payload | s[row + w.O_COLOR] << w.COLOR_SHIFT
    queues.push_output(s, pe, s[row + w.O_QUEUE], wavelet | (w.CONTROL_BIT if is_control else 0))
    return payload


@compiled
def take_wavelets(s: State, pe: int, thread: int) -> None:
    """Drop the wavelets of a beat from their queues, and note a control wavelet."""
    for place in range(1, mb.NUM_OPERANDS):
        row = operand_row(thread, place)
        if s[row + w.O_KIND] == w.FABIN:
            if queues.input_head(s, pe, s[row + w.O_QUEUE]) & w.CONTROL_BIT:
                s[job_row(thread) + w.J_CONTROL_SEEN] = 1
            queues.pop_input(s, pe, s[row + w.O_QUEUE])


@compiled
def ends_on_control(s: State, thread: int) -> bool:
    """Whether control wavelets end the operation."""
    has_target = (
        s[job_row(thread) + w.J_CONTROL_ACTIVATE] >= 0
        or s[job_row(thread) + w.J_CONTROL_UNBLOCK] >= 0
    )
    return has_target or s[job_row(thread) + w.J_OPTIONS] & TERMINATE != 0


@compiled
def leaves_control(s: State, pe: int, thread: int) -> bool:
    """Whether an operation ends now and leaves a control wavelet in its queue, as WSE-2 does."""
    if s[w.G_IS_WSE3] or not ends_on_control(s, thread):
        return False
    for place in range(1, mb.NUM_OPERANDS):
        row = operand_row(thread, place)
        is_input = s[row + w.O_KIND] == w.FABIN
        if is_input and queues.input_head(s, pe, s[row + w.O_QUEUE]) & w.CONTROL_BIT:
            return True
    return False


@compiled
def send_advance(s: State, pe: int, thread: int) -> bool:
    """Send a command to the own router behind the last wavelet; false while the queue is full."""
    row = operand_row(thread, 0)
    if not queues.may_send(s, pe, thread, s[row + w.O_QUEUE]):
        return False
    wavelet = control.ADVANCE_WAVELET | w.CONTROL_BIT | w.OWN_ROUTER_BIT
    wavelet |= s[row + w.O_COLOR] << w.COLOR_SHIFT
    queues.push_output(s, pe, s[row + w.O_QUEUE], wavelet)
    s[job_row(thread) + w.J_ADVANCES] = 0
    return True


@compiled
def drop(s: State, pe: int, thread: int) -> bool:
    """A beat of a filter: drop a wavelet, count it when it is a control wavelet."""
    queue = s[operand_row(thread, first_of(s, thread, w.FABIN)) + w.O_QUEUE]
    if queues.input_ready(s, pe, queue) > s[w.G_NOW]:
        return False
    if queues.input_head(s, pe, queue) & w.CONTROL_BIT:
        s[thread + w.T_LEFT] -= 1
    queues.pop_input(s, pe, queue)
    return True


@compiled
def store_accumulator(s: State, pe: int, thread: int) -> None:
    """A scalar destination takes its value at the end."""
    row = operand_row(thread, 0)
    if s[row + w.O_KIND] == w.POINTER and s[thread + w.T_DONE]:
        num_words = s[vector_row(s[thread + w.T_OP]) + w.V_DESTINATION_WORDS]
        operand.store(s, pe, s[row + w.O_ADDRESS], num_words, s[job_row(thread) + w.J_ACCUMULATOR])


@compiled
def save_addresses(s: State, pe: int, thread: int) -> None:
    """DSRs with `save_address` go on where the operation ended."""
    for place in range(mb.NUM_OPERANDS):
        row = operand_row(thread, place)
        if s[row + w.O_DSR] == 0:
            continue
        saved = dsr_row(pe, s[row + w.O_DSR] - 1)
        if s[saved + w.D_OPTIONS] & (SAVE_ADDRESS | SINGLE_STEP) and s[row + w.O_KIND] == w.MEMORY:
            s[saved + w.O_ADDRESS] = s[row + w.O_ADDRESS]
            for k in range(4):
                s[saved + w.O_INDEX + k] = s[row + w.O_INDEX + k]
        if s[saved + w.D_OPTIONS] & SINGLE_STEP and s[thread + w.T_DONE]:
            s[saved + w.O_EXTENT] -= 1


@compiled
def clear_sources(s: State, pe: int, thread: int) -> None:
    """Zero the memory of a source where the fabric output asks for it."""
    flags = s[operand_row(thread, 0) + w.O_FLAGS]
    if flags & (FLAG_ZERO_FIRST | FLAG_ZERO_SECOND) == 0:
        return
    is_second = flags & FLAG_ZERO_SECOND and s[vector_row(s[thread + w.T_OP]) + w.V_SOURCES] > 1
    place = 2 if is_second else 1
    row = operand_row(thread, place)
    if s[row + w.O_KIND] != w.MEMORY:
        return
    num_words = s[vector_row(s[thread + w.T_OP]) + w.V_SOURCE_WORDS + place - 1]
    s[row + w.O_ADDRESS] = s[row + w.O_BASE]
    for k in range(4):
        s[row + w.O_INDEX + k] = 0
    for _ in range(s[thread + w.T_DONE]):
        operand.store(s, pe, s[row + w.O_ADDRESS], num_words, 0)
        operand.step(s, row)
