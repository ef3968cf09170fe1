"""One PE's core: the main thread, its choice of tasks, and when it has to look again.

When the main thread is idle, one of these starts: a handler of a torn-down color or of an emptied
queue; else the candidates in a ring, beginning behind the one that ran last: input queues 0-7 with
a wavelet for a data or control task, local task ids 0-63, the host's command. A candidate of
high priority goes before the others.
"""

from collections.abc import Callable
from typing import Final

from openwafer.sdk.arch.generation import NO_TASK
from openwafer.sdk.fabric import account, control, events, queues, request, router, thread, vector
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled, inlined, lowest_bit
from openwafer.sdk.fabric.rows import (
    account_row,
    core_row,
    image_row,
    mailbox_row,
    memory_row,
    operand_row,
    processor_row,
    sleep_row,
    source_row,
    taken_row,
    thread_row,
)
from openwafer.sdk.fabric.state import State
from openwafer.sdk.program import mailbox as mb

FINISHED: Final = int(mb.Outcome.FINISHED)
SUSPENDED: Final = int(mb.Outcome.SUSPENDED)
TRAPPED: Final = int(mb.Outcome.TRAPPED)
RING: Final = 73
FIRST_LOCAL: Final = 8
COMMAND_PLACE: Final = 72
OWN_STATES: Final = (w.IN_BEAT, w.IN_PAUSE, w.IN_TURN, w.IN_DRAIN)

Run = Callable[[int, int, int, int, int], int]


@compiled
def execute(s: State, run: Run, pe: int, entry: int, is_resume: int) -> None:
    """Run native code up to its end or its next request; it counts from that cycle on."""
    core = core_row(pe)
    mailbox_address = s[w.G_ADDRESS] + 8 * mailbox_row(pe)
    memory_address = s[w.G_ADDRESS] + 8 * memory_row(pe)
    s[processor_row(pe) + w.P_ENTRY] = entry
    if is_resume == 0:
        account.enter(s, pe, w.MAIN_SLOT, w.IN_SCALAR, s[w.G_NOW])
        if events.is_noted(s, pe):
            events.note(s, w.E_TASK, pe, 0, entry, 0)
    has_microthreads = s[core + w.C_THREADS] & w.MICROTHREADS != 0
    s[mailbox_row(pe) + mb.IN_FLIGHT] = s[w.G_NOW] + 1 if has_microthreads else 0
    has_stepped = is_resume != 0 and s[mailbox_row(pe) + mb.REQUEST] == request.STEP
    if not has_microthreads:
        s[mailbox_row(pe) + mb.FLIGHT_USES] = 0
        s[mailbox_row(pe) + mb.FLIGHT_WRITES] = 0
    s[processor_row(pe) + w.P_OUTCOME] = run(
        s[processor_row(pe) + w.P_IMAGE], mailbox_address, memory_address, entry, is_resume
    )
    if s[processor_row(pe) + w.P_OUTCOME] == FINISHED:
        ended, drained = s[mailbox_row(pe) + mb.CYCLE], s[mailbox_row(pe) + mb.DRAINED]
        s[mailbox_row(pe) + mb.CYCLE] = max(ended, drained)
        s[mailbox_row(pe) + mb.DRAINS] += s[mailbox_row(pe) + mb.CYCLE] - ended
    # A run that stepped code goes on with began before, so what it does may end now.
    is_same_run = has_stepped and s[sleep_row(pe) + w.Z_UNTIL] <= s[w.G_NOW]
    soonest = s[w.G_NOW] if is_same_run else s[w.G_NOW] + 1
    s[sleep_row(pe) + w.Z_UNTIL] = max(s[mailbox_row(pe) + mb.CYCLE], soonest)
    s[core + w.C_MAIN] = w.MAIN_BUSY
    thread.hold(s, pe)
    if s[processor_row(pe) + w.P_OUTCOME] == TRAPPED:
        queues.fail(
            s, w.ERROR_TRAP, pe, s[mailbox_row(pe) + mb.TRAP], s[mailbox_row(pe) + mb.TRAP_VALUE]
        )


@compiled
def start_entry(s: State, pe: int, entry: int, is_known: bool) -> None:
    """Choose what the main thread does next; Z_UNTIL still says when it last ended.

    A task is known that waited already, or that the machine activated and not the last task.

    A task that was chosen may be activated again, and microthreads go on until its code begins.
    """
    core = core_row(pe)
    begin = s[w.G_NOW] + s[w.G_TASK]
    if s[processor_row(pe) + w.P_TASKS_RUN]:
        did_vectors = s[mailbox_row(pe) + mb.DRAINED] > s[processor_row(pe) + w.P_BEGAN]
        is_ahead = is_known and not did_vectors
        switch = s[w.G_WAVELET_SWITCH if is_ahead else w.G_SWITCH]
        ended = s[sleep_row(pe) + w.Z_UNTIL]
        # What could run when the last task ended was chosen meanwhile.
        begin = ended + switch if s[w.G_NOW] <= ended else max(begin, ended + switch)
    s[processor_row(pe) + w.P_BEGAN] = begin
    s[processor_row(pe) + w.P_TASKS_RUN] += 1
    s[processor_row(pe) + w.P_ENTRY] = entry
    s[sleep_row(pe) + w.Z_UNTIL] = begin
    s[core + w.C_MAIN] = w.MAIN_DISPATCH
    account.enter(s, pe, w.MAIN_SLOT, w.IN_SWITCH, s[w.G_NOW])


@compiled
def note_choice(s: State, pe: int, entry: int, place: int) -> None:
    """Note what was chosen to begin: its place in the ring, or CHOSEN_HANDLER."""
    if events.is_noted(s, pe):
        where = events.of_queue(place) if 0 <= place < FIRST_LOCAL else 0
        events.note(s, w.E_CHOSEN, pe, where, entry, place)


@compiled
def resume(s: State, run: Run, pe: int) -> None:
    """Go on behind a request, at the mailbox's cycle, which may be past: see G_BEAT."""
    execute(s, run, pe, s[processor_row(pe) + w.P_ENTRY], 1)


@compiled
def is_queue_blocked(s: State, pe: int, queue: int, color: int) -> bool:
    """Whether tasks of a queue's first wavelet are blocked."""
    mailbox = mailbox_row(pe)
    if s[w.G_IS_WSE3]:
        return (s[mailbox + mb.BLOCKED_QUEUES] >> queue) & 1 != 0
    return (s[mailbox + mb.BLOCKED] >> color) & 1 != 0


@inlined
def control_task_of(s: State, pe: int, queue: int, wavelet: int) -> int:
    """Id of the task that a control wavelet starts, in the table of its input queue."""
    tables = image_row(s[processor_row(pe) + w.P_IMAGE])
    named = (wavelet >> control.TASK_SHIFT) & control.TASK_MASK
    return (named + s[tables + w.I_OFFSETS + queue]) & control.TASK_MASK


@compiled
def is_awaited(s: State, pe: int, queue: int) -> bool:
    """Whether an operation in flight takes the first wavelet of an input queue."""
    threads = s[core_row(pe) + w.C_THREADS] & w.ALL_SLOTS
    while threads:
        job = thread_row(pe, lowest_bit(threads))
        threads &= threads - 1
        for place in range(1, mb.NUM_OPERANDS):
            row = operand_row(job, place)
            is_reader = s[row + w.O_KIND] == w.FABIN and s[row + w.O_QUEUE] == queue
            if is_reader and vector.has_color(s, pe, row):
                return True
    return False


@compiled
def queue_entry(s: State, pe: int, queue: int) -> int:
    """Entry + 1 of the task that an input queue's first wavelet starts, 0 for none.

    Control wavelets that name no task are dropped, unless an operation waits for them.
    """
    tables = image_row(s[processor_row(pe) + w.P_IMAGE])
    while queues.input_ready(s, pe, queue) <= s[w.G_NOW]:
        wavelet = queues.input_head(s, pe, queue)
        color = (wavelet >> w.COLOR_SHIFT) & 31
        if is_queue_blocked(s, pe, queue, color):
            return 0
        if wavelet & w.CONTROL_BIT == 0:
            return s[tables + w.I_DATA + (queue if s[w.G_IS_WSE3] else color)]
        task = (wavelet >> control.TASK_SHIFT) & control.TASK_MASK
        at = control_task_of(s, pe, queue, wavelet)
        if s[tables + w.I_CONTROL + at]:
            return s[tables + w.I_CONTROL + at]
        if is_awaited(s, pe, queue):
            return 0
        if task != NO_TASK:
            queues.fail(s, w.ERROR_UNBOUND_CONTROL, pe, task, color)
        queues.pop_input(s, pe, queue)
    return 0


@inlined
def launched_at(s: State, pe: int) -> int:
    """When a command of the host reaches a PE: it enters in the west and goes hop by hop."""
    return s[w.G_LAUNCHED] + s[w.G_HOP] * (s[mailbox_row(pe) + mb.COORDINATES] & 0xFFFF)


@compiled
def candidate_entry(s: State, pe: int, place: int) -> int:
    """Entry + 1 of a place in the ring when it can start now, else 0."""
    tables = image_row(s[processor_row(pe) + w.P_IMAGE])
    if place < FIRST_LOCAL:
        return queue_entry(s, pe, place)
    if place < COMMAND_PLACE:
        runnable = s[mailbox_row(pe) + mb.ACTIVE] & ~s[mailbox_row(pe) + mb.BLOCKED]
        if (runnable >> (place - FIRST_LOCAL)) & 1:
            return s[tables + w.I_LOCAL + place - FIRST_LOCAL]
        return 0
    is_waiting = (
        s[processor_row(pe) + w.P_COMMAND] == w.COMMAND_WAITS
        and s[mailbox_row(pe) + mb.STREAM_OPEN]
        and launched_at(s, pe) <= s[w.G_NOW]
    )
    return s[tables + w.I_COMMAND] if is_waiting else 0


@compiled
def is_high(s: State, pe: int, place: int) -> bool:
    """Whether a place of the ring has high priority."""
    high = s[processor_row(pe) + w.P_HIGH_TASKS]
    if high == 0 or place == COMMAND_PLACE:
        return False
    if place >= FIRST_LOCAL:
        return (high >> (place - FIRST_LOCAL)) & 1 != 0
    wavelet = queues.input_head(s, pe, place)
    color = (wavelet >> w.COLOR_SHIFT) & 31
    task = place if s[w.G_IS_WSE3] else color
    if wavelet & w.CONTROL_BIT:
        task = control_task_of(s, pe, place, wavelet)
    return (high >> task) & 1 != 0


@compiled
def has_own_work(s: State, pe: int) -> bool:
    """Whether a main thread that is idle may find something to do other than a wavelet's task."""
    if s[processor_row(pe) + w.P_TEARDOWNS] | s[processor_row(pe) + w.P_FLUSHES]:
        return True
    if s[mailbox_row(pe) + mb.ACTIVE] & ~s[mailbox_row(pe) + mb.BLOCKED]:
        return True
    return s[processor_row(pe) + w.P_COMMAND] == w.COMMAND_WAITS


@compiled
def has_wavelet_task(s: State, pe: int) -> bool:
    """Whether the first wavelet of a queue may start a task."""
    waiting = s[core_row(pe) + w.C_IN] & w.COUNTS
    tasks = image_row(s[processor_row(pe) + w.P_IMAGE]) + w.I_DATA
    while waiting:
        queue = lowest_bit(waiting) >> 3
        waiting &= ~(255 << (8 * queue))
        wavelet = queues.input_head(s, pe, queue)
        task = queue if s[w.G_IS_WSE3] else (wavelet >> w.COLOR_SHIFT) & 31
        if wavelet & w.CONTROL_BIT or s[tasks + task]:
            return True
    return False


@compiled
def following(cursor: int, has_locals: bool) -> int:
    """The next place of the ring; without runnable local tasks their places are left out."""
    place = (cursor + 1) % RING
    if FIRST_LOCAL <= place < COMMAND_PLACE and not has_locals:
        return COMMAND_PLACE
    return place


@compiled
def choose(s: State, pe: int) -> int:
    """Place in the ring of the task that starts now, or -1."""
    chosen = -1
    has_locals = s[mailbox_row(pe) + mb.ACTIVE] & ~s[mailbox_row(pe) + mb.BLOCKED] != 0
    place = s[processor_row(pe) + w.P_CURSOR]
    for _ in range(RING if has_locals else FIRST_LOCAL + 1):
        place = following(place, has_locals)
        if candidate_entry(s, pe, place) == 0:
            continue
        if s[processor_row(pe) + w.P_HIGH_TASKS] == 0 or is_high(s, pe, place):
            return place
        if chosen < 0:
            chosen = place
    return chosen


@compiled
def start_handler(s: State, pe: int) -> bool:
    """Start the handler of a torn-down color or of a queue that was to be emptied."""
    core = core_row(pe)
    if s[processor_row(pe) + w.P_TEARDOWNS] | s[processor_row(pe) + w.P_FLUSHES] == 0:
        return False
    tables = image_row(s[processor_row(pe) + w.P_IMAGE])
    for color in range(w.COLORS):
        entry = s[tables + w.I_TEARDOWN + color]
        if entry and (s[processor_row(pe) + w.P_TEARDOWNS] >> color) & 1:
            s[processor_row(pe) + w.P_TEARDOWNS] &= ~(1 << color)
            note_choice(s, pe, entry - 1, w.CHOSEN_HANDLER)
            start_entry(s, pe, entry - 1, False)
            return True
    for queue in range(2 * w.QUEUES):
        entry = s[tables + w.I_FLUSH + queue]
        is_asked = entry and (s[processor_row(pe) + w.P_FLUSHES] >> queue) & 1
        if (
            is_asked
            and queues.count_in(s[core + w.C_IN + queue // w.QUEUES], queue % w.QUEUES) == 0
        ):
            s[processor_row(pe) + w.P_FLUSHES] &= ~(1 << queue)
            s[processor_row(pe) + w.P_FLUSHED] |= 1 << queue
            note_choice(s, pe, entry - 1, w.CHOSEN_HANDLER)
            start_entry(s, pe, entry - 1, False)
            return True
    return False


@compiled
def rotated_entry(s: State, pe: int, queue: int, entry: int) -> int:
    """The entry that a wavelet starts: the other one of its pair when the pair's counter says so.

    The data task counts its starts; at the limit the other task starts in its place.
    """
    first = image_row(s[processor_row(pe) + w.P_IMAGE]) + w.I_ROTATION
    if s[first] == 0 or queues.input_head(s, pe, queue) & w.CONTROL_BIT:
        return entry
    for pair in range(w.ROTATIONS):
        row, counter = first + pair * w.ROTATION_WORDS, processor_row(pe) + w.P_ROTATED + pair
        if s[row] != queue + 1:
            continue
        if s[counter] == s[row + 2]:
            s[counter] = 0
            return s[row + 1]
        s[counter] += 1
    return entry


@compiled
def start_task(s: State, pe: int) -> bool:
    """Start what can start; whether there was something."""
    if start_handler(s, pe):
        return True
    place = choose(s, pe)
    if place < 0:
        return False
    entry = candidate_entry(s, pe, place) - 1
    s[processor_row(pe) + w.P_CURSOR] = place
    arguments = mailbox_row(pe) + mb.ARGUMENTS
    ready = s[sleep_row(pe) + w.Z_READY]
    is_known = place < FIRST_LOCAL or (
        place < COMMAND_PLACE and (ready >> (place - FIRST_LOCAL)) & 1 != 0
    )
    if place < FIRST_LOCAL:
        entry = rotated_entry(s, pe, place, entry)
        s[arguments] = queues.input_head(s, pe, place) & 0xFFFFFFFF
        queues.pop_input(s, pe, place)
        s[taken_row(pe, place)] += 1
    elif place < COMMAND_PLACE:
        s[mailbox_row(pe) + mb.ACTIVE] &= ~(1 << (place - FIRST_LOCAL))
    else:
        for k in range(mb.NUM_ARGUMENTS):
            s[arguments + k] = s[w.G_ARGUMENTS + k]
        s[processor_row(pe) + w.P_COMMAND] = w.COMMAND_RUNS
        s[mailbox_row(pe) + mb.STREAM_OPEN] = 0
    is_first = s[processor_row(pe) + w.P_TASKS_RUN] == 0
    note_choice(s, pe, entry, place)
    start_entry(s, pe, entry, is_known)
    s[sleep_row(pe) + w.Z_READY] = s[mailbox_row(pe) + mb.ACTIVE] & ~s[mailbox_row(pe) + mb.BLOCKED]
    if place == COMMAND_PLACE:
        # Time begins with the first command.
        s[sleep_row(pe) + w.Z_UNTIL] += -s[w.G_TASK] if is_first else s[w.G_COMMAND]
    return True


@compiled
def end_command(s: State, pe: int) -> None:
    """Count the host's command as done once the PE has opened its stream again."""
    if s[processor_row(pe) + w.P_COMMAND] == w.COMMAND_RUNS and s[mailbox_row(pe) + mb.STREAM_OPEN]:
        s[processor_row(pe) + w.P_COMMAND] = w.COMMAND_NONE
        s[w.G_COMMANDS] -= 1
        if events.is_noted(s, pe):
            events.note(s, w.E_COMMAND_END, pe, 0, 0, 0)


@compiled
def note_run(s: State, pe: int, is_finished: bool) -> None:
    """Note what code has come to: the task's end, or a vector operation that it asks for."""
    box = mailbox_row(pe)
    noted = account_row(pe, w.MAIN_SLOT) + w.A_NOTED
    for k in range(4):
        cycles = s[box + mb.BEATS + k] - s[noted + k]
        if cycles:
            events.note(s, w.E_OWN, pe, 0, OWN_STATES[k], cycles)
            s[noted + k] += cycles
    if is_finished:
        local = s[box + mb.ACTIVE] & ~s[box + mb.BLOCKED] & ~s[sleep_row(pe) + w.Z_READY]
        while local:
            events.note(s, w.E_READY, pe, 0, lowest_bit(local), w.CAUSE_CODE)
            local &= local - 1
        row = events.note(s, w.E_TASK_END, pe, 0, s[processor_row(pe) + w.P_ENTRY], 0)
        s[row + w.E_CYCLE] = s[sleep_row(pe) + w.Z_UNTIL]
    elif s[box + mb.REQUEST] == request.VECTOR:
        where = events.of_place(s[box + mb.PLACE])
        row = events.note(s, w.E_REQUEST, pe, where, s[box + mb.OPERATION], 0)
        s[row + w.E_CYCLE] = s[box + mb.CYCLE]


@compiled
def end_run(s: State, pe: int) -> None:
    """The main thread has reached the end of its code's run: the task's, or a request."""
    is_finished = s[processor_row(pe) + w.P_OUTCOME] == FINISHED
    asked = s[mailbox_row(pe) + mb.REQUEST]
    if is_finished or (asked != request.SYNC and asked != request.STEP):
        end_command(s, pe)
        if events.is_noted(s, pe):
            note_run(s, pe, is_finished)
    s[core_row(pe) + w.C_MAIN] = w.MAIN_IDLE if is_finished else w.MAIN_REQUEST
    if is_finished:
        account.enter(s, pe, w.MAIN_SLOT, w.IN_SWITCH, s[mailbox_row(pe) + mb.CYCLE])
        account.enter(s, pe, w.MAIN_SLOT, w.IN_NOTHING, s[sleep_row(pe) + w.Z_UNTIL])


@compiled
def step_request(s: State, run: Run, pe: int) -> bool:
    """Serve the main thread's request; whether something happened."""
    asked = s[mailbox_row(pe) + mb.CYCLE]
    answer = request.serve(s, pe)
    if answer == request.HELD:
        s[w.G_HELD] += 1
        return True
    if s[w.G_HAS_ACCOUNT]:
        account.note_answer(s, pe, answer, asked)
    if answer == 0:
        return False
    if answer < 0:
        queues.fail(s, w.ERROR_BAD_OPERAND, pe, s[mailbox_row(pe) + mb.REQUEST], 0)
    elif answer == 1:
        resume(s, run, pe)
    elif s[core_row(pe) + w.C_MAIN] != w.MAIN_RESUME:
        s[core_row(pe) + w.C_MAIN] = w.MAIN_VECTOR
    return True


@compiled
def ends_now(s: State, pe: int) -> bool:
    """Whether stepped code has come to its end in this cycle."""
    is_finished = s[processor_row(pe) + w.P_OUTCOME] == FINISHED
    is_busy = s[core_row(pe) + w.C_MAIN] == w.MAIN_BUSY
    return is_busy and is_finished and s[sleep_row(pe) + w.Z_UNTIL] <= s[w.G_NOW]


@compiled
def asks_now(s: State, pe: int) -> bool:
    """Whether code that has just run asks for something in a cycle that has come."""
    is_suspended = s[processor_row(pe) + w.P_OUTCOME] == SUSPENDED
    is_busy = s[core_row(pe) + w.C_MAIN] == w.MAIN_BUSY
    return is_busy and is_suspended and s[mailbox_row(pe) + mb.CYCLE] <= s[w.G_NOW]


@compiled
def step_main(s: State, run: Run, pe: int) -> bool:
    """One cycle of the main thread; whether something happened."""
    return finish_cycle(s, run, pe, go_on(s, run, pe))


@compiled
def finish_cycle(s: State, run: Run, pe: int, has_acted: bool) -> bool:
    """Do what follows in this cycle from code that has just run; whether something happened."""
    while True:
        if asks_now(s, pe):
            # In the next cycle a microthread may be free that was not when the code asked for it.
            end_run(s, pe)
            step_request(s, run, pe)
        elif s[w.G_STOPS] and ends_now(s, pe):
            has_acted = go_on(s, run, pe)
        else:
            return has_acted


@compiled
def is_held(s: State, pe: int) -> bool:
    """Whether the host has stopped the main thread in this cycle."""
    is_asking = s[core_row(pe) + w.C_MAIN] == w.MAIN_REQUEST
    return is_asking and s[mailbox_row(pe) + mb.REQUEST] == request.STEP


@compiled
def release(s: State, run: Run, pe: int) -> bool:
    """Let a main thread that is held do what is left of the cycle; whether something happened."""
    s[mailbox_row(pe) + mb.STATEMENTS] += 1
    resume(s, run, pe)
    return finish_cycle(s, run, pe, True)


@compiled
def go_on(s: State, run: Run, pe: int) -> bool:
    """Serve the request that is due, or run code up to its next one; whether something happened."""
    core = core_row(pe)
    if s[core + w.C_MAIN] == w.MAIN_REQUEST:
        # It was not served when it came, and the core may have slept since.
        s[mailbox_row(pe) + mb.CYCLE] = s[w.G_NOW]
    if s[core + w.C_MAIN] == w.MAIN_BUSY and s[sleep_row(pe) + w.Z_UNTIL] <= s[w.G_NOW]:
        end_run(s, pe)
    if s[core + w.C_MAIN] == w.MAIN_REQUEST:
        return step_request(s, run, pe)
    if s[core + w.C_MAIN] == w.MAIN_RESUME:
        s[mailbox_row(pe) + mb.RESULT] = s[processor_row(pe) + w.P_RESULT]
        resume(s, run, pe)
        return True
    has_chosen = s[core + w.C_MAIN] == w.MAIN_IDLE and start_task(s, pe)
    if s[core + w.C_MAIN] == w.MAIN_DISPATCH and s[sleep_row(pe) + w.Z_UNTIL] <= s[w.G_NOW]:
        s[mailbox_row(pe) + mb.CYCLE] = s[w.G_NOW]
        execute(s, run, pe, s[processor_row(pe) + w.P_ENTRY], 0)
        return True
    return has_chosen


@compiled
def step_sources(s: State, pe: int) -> bool:
    """Take a wavelet of each of the host's streams into the PE's queues.

    Returns whether there was one, or one whose port has no time yet.
    """
    row = s[core_row(pe) + w.C_AWAKE] >> w.SOURCE_SHIFT
    has_taken = is_early = False
    while row:
        source = source_row(row - 1)
        row = s[source + w.S_NEXT_ROW]
        if s[source + w.S_NEXT] == s[source + w.S_END]:
            continue
        color = s[source + w.S_COLOR]
        bound = queues.byte_of(s, core_row(pe) + w.C_QUEUE_OF, color)
        queue = (bound & w.QUEUE_MASK) - 1
        if queue < 0 or not queues.has_input_space(s, pe, queue):
            continue
        way = s[source + w.S_WAY]
        is_due = s[source + w.S_FROM] <= s[w.G_NOW]
        if not is_due or (way and not router.has_time(s, way)):
            is_early = True
            continue
        data = s[w.SOURCE_DATA + s[source + w.S_NEXT]]
        ready = s[w.G_NOW] + s[w.G_RAMP_IN]
        if way:
            router.pass_port(s, way)
        queues.push_input(s, pe, bound, data | color << w.COLOR_SHIFT, ready)
        if events.is_noted(s, pe):
            queues.note_entry(s, pe, bound, data | color << w.COLOR_SHIFT, w.FROM_HOST)
        has_taken = True
        s[source + w.S_NEXT] += 1
        if s[source + w.S_NEXT] == s[source + w.S_END]:
            s[w.G_SOURCES] -= 1
    return has_taken or is_early


@inlined
def is_main_due(s: State, pe: int) -> bool:
    """Whether the main thread may have something to do."""
    core = core_row(pe)
    main = s[core + w.C_MAIN]
    if main == w.MAIN_IDLE and has_own_work(s, pe):
        return True
    if main == w.MAIN_IDLE or main == w.MAIN_REST:
        is_due = s[core + w.C_IN] & w.STARTS != 0 and has_wavelet_task(s, pe)
        if is_due != (main == w.MAIN_IDLE):
            s[core + w.C_MAIN] = w.MAIN_IDLE if is_due else w.MAIN_REST
        return is_due
    if main in (w.MAIN_BUSY, w.MAIN_DISPATCH):
        return s[sleep_row(pe) + w.Z_UNTIL] <= s[w.G_NOW]
    return main != w.MAIN_VECTOR


@compiled
def next_cycle(s: State, pe: int) -> int:
    """When a core with nothing to do now has to look again; NEVER: once something arrives."""
    soonest = min(thread.next_beat(s, pe), queues.next_input(s, pe))
    main = s[core_row(pe) + w.C_MAIN]
    if main in (w.MAIN_BUSY, w.MAIN_DISPATCH):
        soonest = min(soonest, s[sleep_row(pe) + w.Z_UNTIL])
    elif main == w.MAIN_IDLE and s[processor_row(pe) + w.P_COMMAND] == w.COMMAND_WAITS:
        at = launched_at(s, pe)
        soonest = min(soonest, at) if at > s[w.G_NOW] else soonest
    return soonest
