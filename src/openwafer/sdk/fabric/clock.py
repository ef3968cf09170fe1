"""The timestamp counter as registers, for code that does not use `<time>`: three words, a control.

A control value of 0 stops the counter, any other lets it go on; it reads as 7 while it runs.
"""

from typing import Final

from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled
from openwafer.sdk.fabric.rows import mailbox_row
from openwafer.sdk.fabric.state import State
from openwafer.sdk.program import mailbox as mb

TIMESTAMP: Final = 0x7D30
CONTROL: Final = 0x7D33
RUNNING: Final = 7


@compiled
def is_clock(address: int) -> bool:
    """Whether a register is the counter's."""
    return TIMESTAMP <= address <= CONTROL


@compiled
def time_of(s: State, pe: int) -> int:
    """The counter's value."""
    row = mailbox_row(pe)
    base = s[row + mb.TIMESTAMP_BASE]
    return s[w.G_NOW] - base if s[row + mb.TIMESTAMP_IS_ON] else base


@compiled
def read_clock(s: State, pe: int, address: int) -> int:
    """A register of the counter."""
    if address == CONTROL:
        return RUNNING * s[mailbox_row(pe) + mb.TIMESTAMP_IS_ON]
    return (time_of(s, pe) >> (16 * (address - TIMESTAMP))) & 0xFFFF


@compiled
def write_clock(s: State, pe: int, address: int, value: int) -> None:
    """A register of the counter takes a value."""
    row = mailbox_row(pe)
    time = time_of(s, pe)
    if address == CONTROL:
        s[row + mb.TIMESTAMP_IS_ON] = int(value != 0)
    else:
        shift = 16 * (address - TIMESTAMP)
        time = (time & ~(0xFFFF << shift)) | (value & 0xFFFF) << shift
    s[row + mb.TIMESTAMP_BASE] = s[w.G_NOW] - time if s[row + mb.TIMESTAMP_IS_ON] else time
