"""The account of time: for each slot of a PE, how many cycles it was in which state.

A slot has a state and the cycle since when; :func:`enter` is called where that changes, and books
the cycles up to there. So whoever sleeps is booked, too, and nothing depends on who runs an
operation: code says how many of the cycles that it ran ahead were beats of operations, pauses
between them and waits for their results, and the rest is scalar code.

The main thread's time is that of its code, in which an operation begins with its issue; its beats
come some cycles later. Microthreads have the time of their beats.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.compiled import compiled
from openwafer.sdk.fabric.rows import account_row, job_row, mailbox_row, thread_row
from openwafer.sdk.fabric.state import Array, State, Tables
from openwafer.sdk.program import mailbox as mb


class SlotState(IntEnum):
    """What a slot does; the last axis of :attr:`Account.cycles`.

    Those of queue `n` are INPUT + n and OUTPUT + n.
    """

    NOTHING = w.IN_NOTHING
    """The main thread has no task that can run; a microthread has no operation."""
    SCALAR = w.IN_SCALAR
    """The main thread runs code, loads of descriptors into registers included."""
    BEAT = w.IN_BEAT
    """An operation has the datapath."""
    PAUSE = w.IN_PAUSE
    """Between beats, or before the first one: strides, sums that wait for themselves, latency."""
    TURN = w.IN_TURN
    """A pause in which reads of memory take turns, as their rows lie in the same part of it."""
    DRAIN = w.IN_DRAIN
    """The main thread waits for results of vector operations."""
    SWITCH = w.IN_SWITCH
    """A task was chosen and begins, or its code is over and its last beat, or first cycle, not."""
    REQUEST = w.IN_REQUEST
    """The main thread waits for the microthread of an operation that it wants to start."""
    BLOCKED_TASK = w.IN_BLOCKED_TASK
    """The main thread is idle, and a task that could run is blocked."""
    BLOCKED_THREAD = w.IN_BLOCKED_THREAD
    """The microthread is blocked."""
    LOST_BEAT = w.IN_LOST_BEAT
    """The operation could go on, and another thread has the datapath."""
    FIFO = w.IN_FIFO
    """The operation's FIFO is empty or full."""
    INPUT = w.IN_INPUT
    """An input queue has no wavelet for the operation."""
    OUTPUT = w.IN_OUTPUT
    """An output queue has no space, or the core has not heard of it yet."""


@dataclass(frozen=True)
class Account:
    """Where the cycles of PEs went, from the run's begin up to now.

    PE (x, y) of a rectangle of `height` rows is number `x * height + y`. Slots 0 to 7 are the
    microthreads, 8 is the main thread.

    Attributes:
        cycles: shape (PEs, slots, states), the last axis as :class:`SlotState` has it; the states
            of a slot sum up to `num_cycles`. The main thread's last few cycles may still move from
            one state to another.
        num_cycles: how many cycles the run has taken.
        colors: shape (PEs, input queues), a bit for each color that is bound to the queue now.
        height: rows of the rectangle.
    """

    cycles: NDArray[np.int64]
    num_cycles: int
    colors: NDArray[np.uint32]
    height: int

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states, in their order."""
        return STATES

    @property
    def datapath(self) -> NDArray[np.int64]:
        """Cycles with a beat of each slot, then those without one: shape (PEs, slots + 1)."""
        beats = self.cycles[:, :, SlotState.BEAT]
        none = self.num_cycles - beats.sum(axis=1, keepdims=True)
        return np.concatenate([beats, none], axis=1)

    def of(self, x: int, y: int) -> NDArray[np.int64]:
        """The part of a PE: shape (slots, states)."""
        part: NDArray[np.int64] = self.cycles[x * self.height + y]
        return part


_PLAIN: Final = [state.name.lower().replace("_", " ") for state in SlotState][:-2]
STATES: Final = (
    *_PLAIN,
    *(f"{word} {queue}" for word in ("input", "output") for queue in range(w.QUEUES)),
)
"""Names of all states of a slot, by number."""


@compiled
def enter(s: State, pe: int, slot: int, state: int, cycle: int) -> None:
    """A slot is in a state from a cycle on: book the one before, if that is another one."""
    if s[w.G_HAS_ACCOUNT] == 0:
        return
    row = account_row(pe, slot)
    before = s[row + w.A_STATE]
    if before == state:
        return
    elapsed = cycle - s[row + w.A_SINCE]
    if before == w.IN_SCALAR:
        elapsed -= book_own(s, pe, row)
    elif before == w.IN_PAUSE:
        turns = job_row(thread_row(pe, slot)) + w.J_TURNS
        num = min(elapsed, s[turns])
        s[turns] -= num
        s[row + w.A_CYCLES + w.IN_TURN] += num
        elapsed -= num
    s[row + w.A_CYCLES + before] += elapsed
    s[row + w.A_STATE] = state
    s[row + w.A_SINCE] = cycle


@compiled
def book_own(s: State, pe: int, row: int) -> int:
    """Book what code says of the cycles that it ran ahead; gives how many those are."""
    box, cells = mailbox_row(pe), row + w.A_CYCLES
    total = s[box + mb.BEATS] + s[box + mb.PAUSES] + s[box + mb.TURNS] + s[box + mb.DRAINS]
    if total:
        s[cells + w.IN_BEAT] += s[box + mb.BEATS]
        s[cells + w.IN_PAUSE] += s[box + mb.PAUSES]
        s[cells + w.IN_TURN] += s[box + mb.TURNS]
        s[cells + w.IN_DRAIN] += s[box + mb.DRAINS]
        s[box + mb.BEATS] = s[box + mb.PAUSES] = s[box + mb.TURNS] = s[box + mb.DRAINS] = 0
        for k in range(4):
            s[row + w.A_NOTED + k] = 0
    return total


@compiled
def note_answer(s: State, pe: int, answer: int, asked: int) -> None:
    """The main thread's request of the cycle `asked` was served, or not yet where `answer` is 0."""
    if answer == 0:
        enter(s, pe, w.MAIN_SLOT, w.IN_REQUEST, asked)
    elif s[account_row(pe, w.MAIN_SLOT) + w.A_STATE] == w.IN_REQUEST:
        enter(s, pe, w.MAIN_SLOT, w.IN_SCALAR, asked)


@compiled
def begin_operation(s: State, pe: int, cycle: int) -> None:
    """The main thread's operation was issued in a cycle, up to which its code ran."""
    if s[account_row(pe, w.MAIN_SLOT) + w.A_STATE] == w.IN_SCALAR:
        enter(s, pe, w.MAIN_SLOT, w.IN_PAUSE, cycle)


@compiled
def end_operation(s: State, pe: int, begun: int) -> None:
    """The main thread's operation, issued in the cycle `begun`, has had its last beat."""
    if s[w.G_HAS_ACCOUNT] == 0:
        return
    ended = s[mailbox_row(pe) + mb.CYCLE]
    begin_operation(s, pe, begun)
    enter(s, pe, w.MAIN_SLOT, w.IN_BEAT, max(begun, ended - 1))
    enter(s, pe, w.MAIN_SLOT, w.IN_SCALAR, ended)


def account_of(state: Array) -> Account:
    """The account of a machine whose time is booked, up to now."""
    tables, now = Tables(state), int(state[w.G_NOW])
    rows = tables.view("account")
    cycles = rows[:, :, w.A_CYCLES : w.A_CYCLES + w.NUM_STATES].copy()
    current, elapsed = rows[:, :, w.A_STATE], now - rows[:, :, w.A_SINCE]
    slots, pes = np.indices(current.shape)
    _split_scalar(tables, cycles[w.MAIN_SLOT], rows[w.MAIN_SLOT], elapsed[w.MAIN_SLOT])
    pauses = np.where(current == w.IN_PAUSE, elapsed, 0)
    turns = np.minimum(pauses, tables.job[:, :, w.J_TURNS])
    cycles[:, :, w.IN_TURN] += turns
    cycles[slots, pes, current] += elapsed - turns
    queues = tables.core[:, w.C_QUEUE_OF :].view(np.uint8)[:, : w.COLORS] & w.QUEUE_MASK
    is_bound = queues[:, None, :] == np.arange(1, w.QUEUES + 1)[:, None]
    colors = (is_bound << np.arange(w.COLORS)).sum(axis=2).astype(np.uint32)
    return Account(cycles.transpose(1, 0, 2), now, colors, int(state[w.G_HEIGHT]))


def _split_scalar(tables: Tables, cycles: Array, rows: Array, elapsed: Array) -> None:
    """Book what code that runs now has said of its cycles, as if its scalar part came first.

    Args:
        tables: of the machine.
        cycles: of the main threads, shape (PEs, states), is added to.
        rows: of the main threads' accounts.
        elapsed: cycles since the present state began, shape (PEs,); what is split is taken off.
    """
    box = tables.mailbox
    own = box[:, [mb.BEATS, mb.PAUSES, mb.TURNS, mb.DRAINS]]
    own = own * (rows[:, w.A_STATE] == w.IN_SCALAR)[:, None]
    ahead = box[:, mb.CYCLE] - rows[:, w.A_SINCE] - own.sum(axis=1)
    left = np.minimum(own.sum(axis=1), elapsed - np.minimum(elapsed, ahead))
    elapsed -= left
    states = (w.IN_BEAT, w.IN_PAUSE, w.IN_TURN, w.IN_DRAIN)
    for state, part in zip(states, own.T, strict=True):
        taken = np.minimum(part, left)
        cycles[:, state] += taken
        left -= taken
