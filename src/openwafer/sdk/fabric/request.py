"""What compiled code asks of the machine between its runs."""

from typing import Final

from openwafer.sdk.fabric import events, operand, registers, thread
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import apart, cells_at, compiled, load_16
from openwafer.sdk.fabric.rows import dsr_row, fifo_row, mailbox_row, processor_row
from openwafer.sdk.fabric.state import State
from openwafer.sdk.program import mailbox as mb

VECTOR: Final = int(mb.Request.VECTOR)
READ_REGISTER: Final = int(mb.Request.READ_REGISTER)
WRITE_REGISTER: Final = int(mb.Request.WRITE_REGISTER)
FLUSH_QUEUE: Final = int(mb.Request.FLUSH_QUEUE)
PRINT: Final = int(mb.Request.PRINT)
LOAD_DSR: Final = int(mb.Request.LOAD_DSR)
SET_FIFO_LENGTHS: Final = int(mb.Request.SET_FIFO_LENGTHS)
SET_DSR_BASE: Final = int(mb.Request.SET_DSR_BASE)
SYNC: Final = int(mb.Request.SYNC)
STEP: Final = int(mb.Request.STEP)
HELD: Final = 3
VALUE0: Final = mb.OPERANDS + 1
VALUE1: Final = mb.OPERANDS + mb.OPERAND_WORDS + 1
NUM_DSR_OPTIONS: Final = 7


@compiled
def load_dsr(s: State, pe: int) -> bool:
    """A DSR takes a descriptor and options."""
    row = mailbox_row(pe)
    number = (s[row + mb.OPERATION] >> 8) * 16 + (s[row + mb.OPERATION] & 15)
    dsr = dsr_row(pe, number)
    if not operand.decode(s, pe, 0, dsr):
        return False
    s[dsr + w.D_OPTIONS] = s[row + mb.OPTIONS]
    s[dsr + w.D_OPTIONS + 1] = s[row + mb.ACTIVATE]
    s[dsr + w.D_OPTIONS + 2] = s[row + mb.UNBLOCK]
    s[dsr + w.D_OPTIONS + 3] = s[row + mb.CONTROL_ACTIVATE]
    s[dsr + w.D_OPTIONS + 4] = s[row + mb.CONTROL_UNBLOCK]
    s[dsr + w.D_OPTIONS + 5] = s[row + mb.MICROTHREAD]
    s[dsr + w.D_OPTIONS + 6] = s[row + mb.PRIORITY]
    return True


@compiled
def print_text(s: State, pe: int) -> bool:
    """Hand characters to the host; false while its buffer has no space."""
    address, length = s[mailbox_row(pe) + VALUE0], s[mailbox_row(pe) + VALUE1]
    if s[w.G_TEXT] + length > w.MAX_TEXT:
        return False
    first = s[w.G_TEXT]
    for k in range(length):
        s[w.TEXT + first + k] = operand.load(s, pe, address + k, 1)
    s[w.G_TEXT] = first + length
    events.tell(s, w.E_PRINT, pe, 0, length, first)
    return True


@compiled
def set_fifo_lengths(s: State, pe: int) -> None:
    """Set the read and the write length of a FIFO; negative leaves one."""
    row = fifo_row(pe, s[mailbox_row(pe) + mb.OPERATION])
    if s[mailbox_row(pe) + VALUE0] >= 0:
        s[row + w.F_READ_LENGTH] = s[mailbox_row(pe) + VALUE0]
    if s[mailbox_row(pe) + VALUE1] >= 0:
        s[row + w.F_WRITE_LENGTH] = s[mailbox_row(pe) + VALUE1]


@compiled
def set_dsr_base(s: State, pe: int) -> None:
    """A DSR begins at another address, at its first element."""
    row = mailbox_row(pe)
    dsr = dsr_row(pe, (s[row + mb.OPERATION] >> 8) * 16 + (s[row + mb.OPERATION] & 15))
    s[dsr + w.O_ADDRESS] = s[row + VALUE0] & 0xFFFF
    for k in range(4):
        s[dsr + w.O_INDEX + k] = 0


@apart
def has_changed(s: State, pe: int) -> bool:
    """Whether a word that the host watches is another one, of a PE; of any for -1."""
    watched = cells_at(s[w.G_WATCHED])
    for k in range(watched[0]):
        is_looked_at = pe < 0 or watched[3 * k + 1] == pe
        if is_looked_at and load_16(s, watched[3 * k + 2]) != watched[3 * k + 3]:
            return True
    return False


@compiled
def stops(s: State, pe: int) -> bool:
    """Whether the host wants stepped code to stop at the statement that it has come to."""
    if s[w.G_WATCHED] and has_changed(s, pe):
        return True
    if s[w.G_STOP_PE] == pe + 1 and s[w.G_STOP_STATEMENT] == s[mailbox_row(pe) + mb.STATEMENTS]:
        return True
    masks = cells_at(s[w.G_STOPS])
    return bool(masks[pe] & masks[s[w.G_NUM_PES] + s[mailbox_row(pe) + mb.PLACE]])


@compiled
def step(s: State, pe: int) -> int:
    """Let stepped code go on with a statement, unless the host wants it to stop."""
    if stops(s, pe):
        return HELD
    s[mailbox_row(pe) + mb.STATEMENTS] += 1
    return 1


@compiled
def change(s: State, pe: int, kind: int) -> bool:
    """Serve a request that only changes, or reads, something; false for no such kind."""
    row = mailbox_row(pe)
    if kind == READ_REGISTER:
        s[row + mb.RESULT] = registers.read(s, pe, s[row + mb.OPERATION])
    elif kind == WRITE_REGISTER:
        registers.write(s, pe, s[row + mb.OPERATION], s[row + VALUE0] & 0xFFFF)
    elif kind == FLUSH_QUEUE:
        s[processor_row(pe) + w.P_FLUSHES] |= 1 << s[row + mb.OPERATION]
    elif kind == SET_FIFO_LENGTHS:
        set_fifo_lengths(s, pe)
    elif kind == SET_DSR_BASE:
        set_dsr_base(s, pe)
    else:
        return False
    return True


@compiled
def serve(s: State, pe: int) -> int:
    """Serve a request.

    Returns 1 done, 2 the main thread waits for its end, 0 not yet, -1 it is wrong, or HELD: the
    host wants the main thread to stop before it goes on.
    """
    row = mailbox_row(pe)
    kind = s[row + mb.REQUEST]
    s[row + mb.RESULT] = 1
    if kind == VECTOR:
        return thread.start(s, pe)
    if kind == LOAD_DSR:
        return 1 if load_dsr(s, pe) else -1
    if kind == PRINT:
        return int(print_text(s, pe))
    if kind == SYNC:
        return 1
    if kind == STEP:
        return step(s, pe)
    return 1 if change(s, pe, kind) else -1
