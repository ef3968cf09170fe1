"""Control wavelets on their way: commands, pop modes, filters.

A control wavelet holds eight commands of two bits and a "no core" bit each. The first two and a
half lie in bits 22-29, the others from bit 0 on; bits 16-21 name a task (31: none). The router that
a wavelet lands at executes the first command; what it changes holds for the wavelets behind it.
"""

from typing import Final

from openwafer.sdk.fabric import route
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled, inlined
from openwafer.sdk.fabric.rows import route_row, router_row
from openwafer.sdk.fabric.state import State

NOP: Final = 0
SWITCH_ADVANCE: Final = 1
SWITCH_RESET: Final = 2
TEARDOWN: Final = 3
NO_CORE: Final = 4
"""The command's wavelet does not enter the core."""
EMPTY_COMMAND: Final = NOP | NO_CORE
TASK_SHIFT: Final = 16
TASK_MASK: Final = 63
ADVANCE_WAVELET: Final = 0x095F9249
"""No task, one switch advance, then nothing, all without the core."""


@compiled
def first_command(data: int) -> int:
    """Two bits of command and the "no core" bit."""
    return (data >> 22) & 7


@compiled
def turns_switch(data: int) -> bool:
    """Whether the first command of a wavelet is for a switch."""
    return first_command(data) & 3 in (SWITCH_ADVANCE, SWITCH_RESET)


@compiled
def popped(data: int) -> int:
    """The wavelet without its first command."""
    commands = ((data >> 22) & 0xFF) | (data & 0xFFFF) << 8
    commands = (commands >> 3) | EMPTY_COMMAND << 21
    return (data & 0xC03F0000) | (commands & 0xFF) << 22 | (commands >> 8) & 0xFFFF


@compiled
def executed(word: int, command: int) -> int:
    """A color's configuration after a command."""
    operation = command & 3
    if operation == SWITCH_ADVANCE:
        return route.advanced(word)
    if operation == SWITCH_RESET:
        return route.with_field(word, route.POSITION_SHIFT, 3, 0)
    if operation == TEARDOWN:
        return word | route.TORN_BIT
    return word


@compiled
def pops(word: int, has_advanced: bool, command: int) -> bool:
    """Whether a router removes the command that it executed."""
    mode = (word >> route.POP_SHIFT) & 3
    if mode == 1:
        return True
    if mode == 2:
        return has_advanced
    return mode == 3 and (has_advanced or command & 3 == NOP)


@compiled
def passes(s: State, row: int, wavelet: int) -> bool:
    """Whether a filter lets a wavelet into the core; `row` is the filter's."""
    kind = s[row + w.L_KIND]
    is_control = wavelet & w.CONTROL_BIT != 0
    if kind == w.FILTER_OFF:
        return True
    if kind == w.FILTER_RANGE:
        index = (wavelet >> 16) & 0xFFFF
        return is_control or s[row + w.L_MIN_INDEX] <= index <= s[row + w.L_MAX_INDEX]
    if s[row + w.L_FILTER_CONTROL]:
        return is_control and s[row + w.L_COUNTER] == s[row + w.L_MAX]
    return bool(s[row + w.L_COUNTER] <= s[row + w.L_MAX])


@compiled
def count(s: State, row: int, wavelet: int) -> None:
    """Count a wavelet that went by a filter.

    The counter takes the values 0 to `limit1` and starts again. A sparse counter does so once with
    `limit2` for `limit1`; then, or without `limit2`, it filters no more.
    """
    is_control = wavelet & w.CONTROL_BIT != 0
    if s[row + w.L_KIND] not in (w.FILTER_COUNTER, w.FILTER_SPARSE):
        return
    if not (s[row + w.L_COUNT_CONTROL] if is_control else s[row + w.L_COUNT_DATA]):
        return
    s[row + w.L_COUNTER] += 1
    if s[row + w.L_COUNTER] <= s[row + w.L_LIMIT1]:
        return
    s[row + w.L_COUNTER] = 0
    if s[row + w.L_KIND] == w.FILTER_COUNTER:
        return
    if s[row + w.L_LIMIT2] == 0:
        s[row + w.L_KIND] = w.FILTER_OFF
    s[row + w.L_LIMIT1] = s[row + w.L_LIMIT2]
    s[row + w.L_LIMIT2] = 0


@inlined
def filter_row(s: State, pe: int, color: int) -> int:
    """Where the filter of a color lies, or -1."""
    if s[router_row(pe) + w.R_FLAGS] & w.FILTER_BIT == 0:
        return -1
    word = s[route_row(pe, color)]
    number = (word >> route.FILTER_SHIFT) & route.FILTER_MASK
    if number == 0:
        return -1
    first = s[router_row(pe) + w.R_FLAGS] >> w.FILTERS_SHIFT
    return w.FILTER + (first + number - 1) * w.FILTER_WORDS
