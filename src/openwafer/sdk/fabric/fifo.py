"""FIFOs over a PE's memory.

A task named for pushes is activated by the push behind a reader that found nothing, one named for
pops by the pop behind a writer that found no space.
"""

from openwafer.sdk.fabric import operand, queues
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled
from openwafer.sdk.fabric.state import State


@compiled
def has_space(s: State, row: int, num: int) -> bool:
    """Whether that many elements fit."""
    return s[row + w.F_COUNT] + num <= s[row + w.F_ELEMENTS]


@compiled
def has_elements(s: State, row: int, num: int) -> bool:
    """Whether that many elements are there."""
    return s[row + w.F_COUNT] >= num


@compiled
def can_push(s: State, row: int, num: int) -> bool:
    """Whether that many elements fit; remembers when they do not."""
    if has_space(s, row, num):
        return True
    s[row + w.F_WAS_FULL] = 1
    return False


@compiled
def can_pop(s: State, row: int, num: int) -> bool:
    """Whether that many elements are there; remembers when they are not."""
    if has_elements(s, row, num):
        return True
    s[row + w.F_WAS_EMPTY] = 1
    return False


@compiled
def push(s: State, pe: int, row: int, value: int) -> None:
    """Add an element."""
    slot = (s[row + w.F_HEAD] + s[row + w.F_COUNT]) % s[row + w.F_ELEMENTS]
    operand.store(
        s, pe, s[row + w.F_ADDRESS] + slot * s[row + w.F_WORDS], s[row + w.F_WORDS], value
    )
    s[row + w.F_COUNT] += 1
    if s[row + w.F_WAS_EMPTY]:
        s[row + w.F_WAS_EMPTY] = 0
        if s[row + w.F_ACTIVATE_PUSH] >= 0:
            queues.activate(s, pe, s[row + w.F_ACTIVATE_PUSH], w.CAUSE_FIFO, w.NO_SLOT)


@compiled
def pop(s: State, pe: int, row: int) -> int:
    """Take the oldest element."""
    address = s[row + w.F_ADDRESS] + s[row + w.F_HEAD] * s[row + w.F_WORDS]
    value = operand.load(s, pe, address, s[row + w.F_WORDS])
    s[row + w.F_HEAD] = (s[row + w.F_HEAD] + 1) % s[row + w.F_ELEMENTS]
    s[row + w.F_COUNT] -= 1
    if s[row + w.F_WAS_FULL]:
        s[row + w.F_WAS_FULL] = 0
        if s[row + w.F_ACTIVATE_POP] >= 0:
            queues.activate(s, pe, s[row + w.F_ACTIVATE_POP], w.CAUSE_FIFO, w.NO_SLOT)
    return value
