"""The main loop: one cycle after the other, with jumps over cycles in which nobody is awake.

In each cycle the awake routers decide and move, then the awake cores step. A core touches only what
is its own, so cores of one cycle are independent of each other. Cores that wait for a later cycle
lie in a wheel of lists by cycle; routers and cores that wait for each other sleep until woken.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numba.experimental.function_type  # noqa: F401  (registers functions by address)
from numba import njit, types

from openwafer.sdk.fabric import processor, queues, registers, router, thread
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import cells_at, compiled
from openwafer.sdk.fabric.rows import core_row
from openwafer.sdk.fabric.state import State

# Arguments are declared 64 bits wide; callees that take 32 read the low half of the register.
RUN_TYPE: Final = types.int32(*[types.int64] * 5)
ELEMENT_TYPE: Final = types.int64(*[types.int64] * 4)


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
    core = core_row(pe)
    s[core + w.C_WHEEL_AT] = cycle
    s[core + w.C_WHEEL_NEXT] = s[w.WHEEL_LIST + cycle % w.WHEEL]
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
        core = core_row(pe)
        entry = s[core + w.C_WHEEL_NEXT]
        s[w.G_IN_WHEEL] -= 1
        if s[core + w.C_WHEEL_AT] > s[w.G_NOW]:
            sleep_until(s, pe, s[core + w.C_WHEEL_AT])
        else:
            s[core + w.C_WHEEL_AT] = 0
            queues.wake_core(s, pe)


@compiled
def next_sleeper(s: State) -> int:
    """The first cycle at which a core of the wheel wakes."""
    now = s[w.G_NOW]
    soonest = w.NEVER
    for cycle in range(now + 1, now + 1 + w.WHEEL):
        entry = s[w.WHEEL_LIST + cycle % w.WHEEL]
        while entry:
            soonest = min(soonest, s[core_row(entry - 1) + w.C_WHEEL_AT])
            entry = s[core_row(entry - 1) + w.C_WHEEL_NEXT]
        if soonest == cycle:
            break
    return soonest


@compiled
def stays_awake(s: State, pe: int) -> bool:
    """Whether a core without anything to do now has to look in the next cycle all the same."""
    soonest = processor.next_cycle(s, pe)
    if soonest == w.NEVER:
        return False
    at = s[core_row(pe) + w.C_WHEEL_AT]
    if at == 0 and soonest > s[w.G_NOW] + 1:
        sleep_until(s, pe, soonest)
        return False
    return at == 0 or at > soonest


@compiled
def step_cores(s: State, run: processor.Run, element: thread.Element) -> None:
    """One cycle of all awake cores."""
    kept = 0
    for i in range(s[w.G_CORES]):
        pe = s[w.CORE_LIST + i]
        has_acted = processor.step_sources(s, pe)
        has_acted |= thread.step_threads(s, element, pe)
        has_acted |= processor.step_main(s, run, pe)
        if has_acted or stays_awake(s, pe):
            s[w.CORE_LIST + kept] = pe
            kept += 1
        else:
            s[core_row(pe) + w.C_AWAKE] = 0
    s[w.G_CORES] = kept


@compiled
def is_reached(s: State, goal: int) -> bool:
    """Whether the host has what it waits for."""
    if goal == w.GOAL_COMMAND:
        return s[w.G_COMMANDS] == 0
    if goal == w.GOAL_INJECTED:
        return s[w.G_SOURCES] == 0
    return goal == w.GOAL_COLLECTED and s[w.G_WANTED] == 0


@compiled
def next_now(s: State, limit: int) -> int:
    """The cycle that comes next; NEVER when everything sleeps for good."""
    if s[w.G_ROUTERS] or s[w.G_CORES]:
        return s[w.G_NOW] + 1
    if s[w.G_IN_WHEEL] == 0:
        return w.NEVER
    return min(next_sleeper(s), limit)


def source_stamp() -> str:
    """A word that changes with the text of the compiled core."""
    digest = hashlib.sha256()
    for folder in ("fabric", "program", "arch"):
        for path in sorted((Path(__file__).parent.parent / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


STAMP: Final = source_stamp()


def _build_advance(stamp: str) -> Callable[..., int]:
    # numba looks only at this file's time; a captured value is part of its key, too.
    @njit(cache=True)
    def advance(
        address: int, run: processor.Run, element: thread.Element, goal: int, limit: int
    ) -> int:
        len(stamp)
        s = cells_at(address)
        while True:
            if s[w.G_ERROR]:
                return w.STOP_ERROR
            if is_reached(s, goal):
                return w.STOP_GOAL
            if s[w.G_EVENTS] > s[w.G_EVENT_LIMIT] or s[w.G_TEXT] > w.MAX_TEXT // 2:
                return w.STOP_DRAIN
            following = next_now(s, limit)
            if following == w.NEVER:
                return w.STOP_IDLE
            if following > limit or s[w.G_NOW] >= limit:
                return w.STOP_LIMIT
            s[w.G_NOW] = following
            if s[w.G_IN_WHEEL]:
                wake_sleepers(s)
            router.step_routers(s)
            step_cores(s, run, element)

    return advance  # type: ignore[no-any-return]


def _build_write_register(stamp: str) -> Callable[..., None]:
    @njit(cache=True)
    def write_register(state: int, pe: int, address: int, value: int) -> None:
        len(stamp)
        registers.write(cells_at(state), pe, address, value)

    return write_register  # type: ignore[no-any-return]


advance: Final = _build_advance(STAMP)
"""Run until a goal is reached, everything sleeps, the limit comes or the host has to look."""

write_register: Final = _build_write_register(STAMP)
"""A config register takes a value, as PE code would write it."""
