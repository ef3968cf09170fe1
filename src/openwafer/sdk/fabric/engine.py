"""The main loop: one cycle after the other, with jumps over cycles in which nobody is awake.

In each cycle the awake routers decide and move, then the awake cores step. A core touches only what
is its own, so cores of one cycle are independent of each other. Cores that wait for a later cycle
lie in a wheel of lists by cycle; routers and cores that wait for each other sleep until woken.

Bands of columns of PEs can be advanced side by side, each by a thread. They meet twice a cycle:
once all have decided what moves, and at the end. In between a band changes nothing that another
reads. What goes from one band into the next lies on lists of the one that it leaves.
"""

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import numba.experimental.function_type  # noqa: F401  (registers functions by address)
from numba import njit, types
from numba.core.event import Listener, install_listener

from openwafer.sdk.fabric import (
    check,
    overrun,
    processor,
    queues,
    registers,
    request,
    router,
    slots,
    thread,
)
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import (
    apart,
    cells_at,
    compiled,
    inlined,
    load_shared,
    lowest_bit,
    prefetch,
    store_shared,
)
from openwafer.sdk.fabric.one_unit import as_one_unit
from openwafer.sdk.fabric.rows import core_row, mailbox_row, processor_row, sleep_row, thread_row
from openwafer.sdk.fabric.state import Array, State, Tables
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.sources import source_digest

# Arguments are declared 64 bits wide; callees that take 32 read the low half of the register.
RUN_TYPE: Final = types.int32(*[types.int64] * 5)
ELEMENT_TYPE: Final = types.int64(*[types.int64] * 4)
PAUSE_TYPE: Final = types.int32()
AHEAD: Final = 8
"""How many cores ahead memory is asked for what they need."""
LOOKS: Final = 2000
"""How often a band looks for the others before it lets the processor do something else."""
ORDERED_CYCLES: Final = 8
"""From one time that the lists of PEs are sorted to the next one."""
INTERRUPT_SECONDS: Final = 0.05

Pause = Callable[[], int]


class NativeFunction(types.WrapperAddressProtocol):  # type: ignore[misc]
    """A function by address, callable from compiled code without compiling that again."""

    def __init__(self, address: int, signature: object) -> None:
        self._address = address
        self._signature = signature

    def __wrapper_address__(self) -> int:
        return self._address

    def signature(self) -> object:
        """Its type."""
        return self._signature


@compiled
def sleep_until(s: State, pe: int, cycle: int) -> None:
    """Put a core into the wheel."""
    s[sleep_row(pe) + w.Z_AT] = cycle
    s[sleep_row(pe) + w.Z_NEXT] = s[w.WHEEL_LIST + cycle % w.WHEEL]
    s[w.WHEEL_LIST + cycle % w.WHEEL] = pe + 1
    s[w.G_IN_WHEEL] += 1


@compiled
def wake_sleepers(s: State) -> None:
    """Wake the cores whose cycle has come."""
    bucket = s[w.G_NOW] % w.WHEEL
    entry = s[w.WHEEL_LIST + bucket]
    s[w.WHEEL_LIST + bucket] = 0
    while entry:
        pe = entry - 1
        entry = s[sleep_row(pe) + w.Z_NEXT]
        s[w.G_IN_WHEEL] -= 1
        if s[sleep_row(pe) + w.Z_AT] > s[w.G_NOW]:
            sleep_until(s, pe, s[sleep_row(pe) + w.Z_AT])
        else:
            s[sleep_row(pe) + w.Z_AT] = 0
            queues.wake_core(s, pe)
            prefetch(s, processor_row(pe))
            prefetch(s, mailbox_row(pe))


@compiled
def next_sleeper(s: State) -> int:
    """The first cycle at which a core of the wheel wakes."""
    now = s[w.G_NOW]
    soonest = w.NEVER
    for cycle in range(now + 1, now + 1 + w.WHEEL):
        entry = s[w.WHEEL_LIST + cycle % w.WHEEL]
        while entry:
            soonest = min(soonest, s[sleep_row(entry - 1) + w.Z_AT])
            entry = s[sleep_row(entry - 1) + w.Z_NEXT]
        if soonest == cycle:
            break
    return soonest


@compiled
def stays_awake(s: State, pe: int) -> bool:
    """Whether a core without anything to do now has to look in the next cycle all the same."""
    soonest = processor.next_cycle(s, pe)
    if soonest == w.NEVER:
        return False
    at = s[sleep_row(pe) + w.Z_AT]
    if at == 0 and soonest > s[w.G_NOW] + 1:
        sleep_until(s, pe, soonest)
        return False
    return at == 0 or at > soonest


@inlined
def look_ahead(s: State, i: int) -> None:
    """Ask memory for what the cores behind number `i` of the list need."""
    prefetch(s, core_row(s[w.CORE_LIST + i + AHEAD]))
    pe = s[w.CORE_LIST + i + AHEAD // 2]
    threads = s[core_row(pe) + w.C_THREADS] & w.ALL_SLOTS
    while threads:
        prefetch(s, thread_row(pe, lowest_bit(threads)))
        threads &= threads - 1


@compiled
def put_in_order(s: State, start: int, count: int) -> None:
    """Sort a list of PEs, unless it is so short that the fabric costs more than the list."""
    if count * w.ORDER_BITS < s[w.G_END] - s[w.G_FIRST]:
        return
    for i in range(count):
        pe = s[start + i]
        s[w.ORDER + pe // w.ORDER_BITS] |= 1 << pe % w.ORDER_BITS
    at = start
    for k in range(s[w.G_FIRST] // w.ORDER_BITS, (s[w.G_END] - 1) // w.ORDER_BITS + 1):
        awake = s[w.ORDER + k]
        s[w.ORDER + k] = 0
        while awake:
            s[at] = k * w.ORDER_BITS + lowest_bit(awake)
            at += 1
            awake &= awake - 1


@compiled
def put_awake_in_order(s: State) -> None:
    """Now and then sort who is awake; results do not depend on it, but memory is read in order.

    PEs of a column do the same at the same time in most programs, as commands of the host go from
    column to column. So rows of tables that are read one behind the other lie side by side.
    """
    if s[w.G_NOW] % ORDERED_CYCLES == 0:
        put_in_order(s, w.ROUTER_LIST, s[w.G_ROUTERS])
        put_in_order(s, w.CORE_LIST, s[w.G_CORES])


@compiled
def step_cores(s: State, run: processor.Run, element: thread.Element) -> None:
    """One cycle of all awake cores."""
    kept = 0
    for i in range(s[w.G_CORES]):
        if s[w.G_ERROR] and load_shared(cells_at(s[w.G_BAND_ADDRESSES]), w.G_INTERRUPT):
            # Each of the others would have to be torn out of its own endless loop.
            break
        if i + AHEAD < s[w.G_CORES]:
            look_ahead(s, i)
        pe = s[w.CORE_LIST + i]
        core = core_row(pe)
        has_acted, beaten = False, thread.NO_SLOT
        if s[core + w.C_AWAKE] >> w.SOURCE_SHIFT:
            has_acted = processor.step_sources(s, pe)
        if s[core + w.C_THREADS] & w.ALL_SLOTS:
            beaten = thread.step_threads(s, element, pe)
            has_acted |= beaten != thread.NO_SLOT
        if processor.is_main_due(s, pe):
            has_acted |= processor.step_main(s, run, pe)
        if s[w.G_HAS_ACCOUNT]:
            slots.book(s, pe, beaten)
        if has_acted or stays_awake(s, pe):
            s[w.CORE_LIST + kept] = pe
            kept += 1
        else:
            s[core + w.C_AWAKE] &= ~w.AWAKE_BIT
    s[w.G_CORES] = kept


@apart
def release_cores(s: State, run: processor.Run) -> None:
    """Let the main threads that the host has stopped do what is left of the cycle."""
    s[w.G_HELD] = 0
    kept = 0
    for i in range(s[w.G_CORES]):
        pe = s[w.CORE_LIST + i]
        if not processor.is_held(s, pe) or processor.release(s, run, pe) or stays_awake(s, pe):
            s[w.CORE_LIST + kept] = pe
            kept += 1
        else:
            s[core_row(pe) + w.C_AWAKE] &= ~w.AWAKE_BIT
    s[w.G_CORES] = kept
    if s[w.G_WATCHED]:
        s[w.G_HELD] += int(request.has_changed(s, -1))


@compiled
def summarize(s: State) -> None:
    """Note when the band has something to do again."""
    s[w.G_NEXT] = w.NEVER
    if s[w.G_BAND] == 0:
        s[w.G_INTERRUPTED] = load_shared(s, w.G_INTERRUPT)
    if s[w.G_ROUTERS] | s[w.G_CORES] | s[w.G_CALLS] | s[w.G_CALLS + 1]:
        s[w.G_NEXT] = s[w.G_NOW] + 1
    elif s[w.G_IN_WHEEL]:
        s[w.G_NEXT] = next_sleeper(s)


@compiled
def meet(s: State, pause: Pause) -> None:
    """Wait until all bands have come to this place."""
    if s[w.G_BANDS] == 1:
        return
    epoch = s[w.G_EPOCH] + 1
    store_shared(s, w.G_EPOCH, epoch)
    for band in range(s[w.G_BANDS]):
        other = cells_at(s[w.G_BAND_ADDRESSES + band])
        looks = 0
        while load_shared(other, w.G_EPOCH) < epoch:
            looks += 1
            if looks % LOOKS == 0:
                pause()


@compiled
def goal_word(goal: int) -> int:
    """The scalar whose sum is zero once a goal is reached; 0 for none."""
    if goal == w.GOAL_COMMAND:
        return w.G_COMMANDS
    if goal == w.GOAL_INJECTED:
        return w.G_SOURCES
    return w.G_WANTED if goal == w.GOAL_COLLECTED else 0


@compiled
def begin_cycle(s: State, goal: int, limit: int) -> int:
    """Set the clock to the next cycle, or say why there is none; all bands find the same."""
    missing = 0
    following = w.NEVER
    is_full = False
    for band in range(s[w.G_BANDS]):
        other = cells_at(s[w.G_BAND_ADDRESSES + band])
        if other[w.G_ERROR]:
            return w.STOP_ERROR
        missing += other[goal_word(goal)] if goal else 1
        following = min(following, other[w.G_NEXT])
        is_full |= other[w.G_EVENTS] > s[w.G_EVENT_LIMIT] or other[w.G_TEXT] > w.MAX_TEXT // 2
    if missing == 0:
        return w.STOP_GOAL
    if cells_at(s[w.G_BAND_ADDRESSES])[w.G_INTERRUPTED]:
        return w.STOP_LIMIT
    if is_full:
        return w.STOP_DRAIN
    if following == w.NEVER:
        return w.STOP_IDLE
    if s[w.G_NOW] >= limit:
        return w.STOP_LIMIT
    s[w.G_NOW] = min(following, limit)
    return w.STOP_NOT


STAMP: Final = source_digest("fabric", "program", "arch")
"""Changes with the text of the compiled core."""


def _build_advance(stamp: str) -> Any:
    # numba looks only at this file's time; a captured value is part of its key, too.
    @njit(cache=True, nogil=True)
    def advance(
        address: int,
        run: processor.Run,
        element: thread.Element,
        pause: Pause,
        goal: int,
        limit: int,
    ) -> int:
        len(stamp)
        s = cells_at(address)
        if s[w.G_HELD]:
            release_cores(s, run)
        while s[w.G_HELD] == 0:
            summarize(s)
            meet(s, pause)
            stop = begin_cycle(s, goal, limit)
            if stop != w.STOP_NOT:
                return stop
            if s[w.G_IN_WHEEL]:
                wake_sleepers(s)
            put_awake_in_order(s)
            router.decide_all(s)
            meet(s, pause)
            router.move_all(s)
            step_cores(s, run, element)
            if s[w.G_WATCHED]:
                s[w.G_HELD] += int(request.has_changed(s, -1))
        return w.STOP_STEP

    return advance


def _build_set_register(stamp: str) -> Any:
    @njit(cache=True)
    def set_register(state: int, pe: int, address: int, value: int) -> None:
        len(stamp)
        registers.write(cells_at(state), pe, address, value)

    return set_register


def _build_look(stamp: str) -> Any:
    @njit(cache=True)
    def look(state: int, mailbox: int, place: int, operand: int, first: int, last: int) -> None:
        len(stamp)
        if operand & mb.FINDING:
            check.look_from_code(cells_at(state), mailbox, place, operand, first, last)
        else:
            overrun.look_from_code(cells_at(state), mailbox, place, operand, first, last)

    return look


advance: Final = _build_advance(STAMP)
"""Run a band until a goal is reached, all sleeps, the limit comes or the host has to look."""

set_register: Final = _build_set_register(STAMP)

look: Final = _build_look(STAMP)
"""What compiled code shows its vector operations to."""

_give_way = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
PAUSE: Final = NativeFunction(_give_way, PAUSE_TYPE)


def prepare(function: Any, kinds: Sequence[object]) -> None:
    """Compile a function of the core, or read it from the cache; say so where it is compiled."""
    if not function.signatures:
        told = _Compilations(is_whole=function is advance)
        with as_one_unit(function), install_listener("numba:compile", told):
            function.compile(tuple(kinds))


class _Compilations(Listener):  # type: ignore[misc]
    """Hears of what numba compiles, and nothing of what it finds in its cache."""

    def __init__(self, *, is_whole: bool) -> None:
        self._is_whole = is_whole

    def on_start(self, event: Any) -> None:
        """A function begins; the first one is the whole that the user waits for."""
        _tell_once(is_whole=self._is_whole)

    def on_end(self, event: Any) -> None:
        """Nothing."""


@functools.cache
def _tell_once(*, is_whole: bool) -> None:
    note = "the fabric simulator; this happens once and takes some 10 seconds"
    if not is_whole:
        note = "a part of the fabric simulator that no program has used; this happens once, too"
    sys.stderr.write(f"openwafer: compiling {note}\n")
    sys.stderr.flush()


def look_address() -> int:
    """Native address of :data:`look`."""
    prepare(look, [types.int64] * 6)
    (made,) = look.overloads.values()
    return int(made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name))


def write_register(state: int, pe: int, address: int, value: int) -> None:
    """A config register takes a value, as PE code would write it; `state` is an array's address."""
    prepare(set_register, [types.int64] * 4)
    set_register(state, pe, address, value)


def interrupt(states: Sequence[Array]) -> None:
    """End what bands do: at the next cycle, and at the next look of a loop of PE code at its limit.

    A PE may take its limit anew at the same moment, so this is repeated until all have ended.
    """
    states[0][w.G_INTERRUPT] = 1
    Tables(states[0]).mailbox[:, mb.LIMIT] = 0


def halt(states: Sequence[Array], begin: threading.Event, ends: Sequence[threading.Event]) -> None:
    """Interrupt bands until all have ended, however often that is interrupted itself."""
    while not begin.is_set() or not all(end.is_set() for end in ends):
        with suppress(KeyboardInterrupt):
            interrupt(states)
            begin.set()
            for end in ends:
                end.wait(INTERRUPT_SECONDS)


def advance_all(
    states: Sequence[Array], run: NativeFunction, element: NativeFunction, goal: int, limit: int
) -> int:
    """Advance all bands of a machine; the first state takes the sums, and an error.

    The bands run in threads of their own, so that a signal reaches the caller: what it raises, such
    as KeyboardInterrupt, passes once the bands have come to a halt.

    Returns why they stopped.
    """
    functions = [types.FunctionType(kind) for kind in (RUN_TYPE, ELEMENT_TYPE, PAUSE_TYPE)]
    prepare(advance, [types.int64, *functions, types.int64, types.int64])
    first = states[0]
    for state in states[1:]:
        state[: w.SAME_WORDS] = first[: w.SAME_WORDS]
    stops = [0] * len(states)
    # Bands wait for each other, so none may run before the threads of all are there.
    begin, is_begun = threading.Event(), False
    # A join that is interrupted takes its thread for ended, before Python 3.13.
    ends = [threading.Event() for _ in states]

    def advance_band(band: int) -> None:
        address = int(states[band][w.G_ADDRESS])
        begin.wait()
        try:
            if is_begun:
                stops[band] = advance(address, run, element, PAUSE, goal, limit)
        finally:
            ends[band].set()

    first[w.G_INTERRUPT] = 0
    try:
        for band in range(len(states)):
            threading.Thread(target=advance_band, args=(band,)).start()
        is_begun = True
        begin.set()
        for end in ends:
            end.wait()
    except BaseException:
        halt(states, begin, ends if is_begun else ())
        raise
    for state in states[1:]:
        first[w.FIRST_SUM : w.END_SUM] += state[w.FIRST_SUM : w.END_SUM]
        state[w.FIRST_SUM : w.END_SUM] = 0
    failed = [state for state in states if state[w.G_ERROR]]
    if failed:
        worst = min(failed, key=lambda state: int(state[w.G_ERROR_PE]))
        first[w.G_ERROR : w.G_ERROR_B + 1] = worst[w.G_ERROR : w.G_ERROR_B + 1]
    return stops[0]
