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
from openwafer.sdk.fabric.address_space import written_pages
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
    microthreads, 8 is the main thread. It is of all PEs, or of those with neighbouring numbers.

    Attributes:
        cycles: shape (PEs, slots, states), the last axis as :class:`SlotState` has it; the states
            of a slot sum up to `num_cycles`. The main thread's last few cycles may still move from
            one state to another.
        num_cycles: how many cycles the run has taken.
        colors: shape (PEs, input queues), a bit for each color that is bound to the queue now.
        height: rows of the rectangle.
        first: number of its first PE.
    """

    cycles: NDArray[np.int64]
    num_cycles: int
    colors: NDArray[np.uint32]
    height: int
    first: int = 0

    @property
    def main(self) -> "MainTime":
        """The part of main threads, and all beats."""
        beats = self.cycles[:, :, SlotState.BEAT].sum(axis=1)
        return MainTime(self.cycles[:, w.MAIN_SLOT], beats)

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
        part: NDArray[np.int64] = self.cycles[x * self.height + y - self.first]
        return part


@dataclass(frozen=True)
class MainTime:
    """What main threads did, and how long any thread had the datapath; as :class:`Account` has it.

    Attributes:
        cycles: shape (PEs, states).
        beats: of all slots, shape (PEs,).
    """

    cycles: NDArray[np.int64]
    beats: NDArray[np.int64]

    @property
    def kinds(self) -> NDArray[np.int64]:
        """Cycles of each of :data:`KINDS`, shape (kinds, PEs)."""
        main = self.cycles.T
        queues = main[SlotState.INPUT : SlotState.OUTPUT], main[SlotState.OUTPUT :]
        sums = [own.sum(axis=0, keepdims=True) for own in queues]
        return np.concatenate([self.beats[None], main[: SlotState.INPUT], *sums])

    @property
    def busy(self) -> NDArray[np.int64]:
        """Cycles in which they did something and did not wait for others, shape (PEs,)."""
        busy: NDArray[np.int64] = self.cycles[:, BUSY].sum(axis=1)
        return busy


_PLAIN: Final = [state.name.lower().replace("_", " ") for state in SlotState][:-2]
STATES: Final = (
    *_PLAIN,
    *(f"{word} {queue}" for word in ("input", "output") for queue in range(w.QUEUES)),
)
"""Names of all states of a slot, by number."""
BUSY: Final = (
    SlotState.SCALAR,
    SlotState.BEAT,
    SlotState.PAUSE,
    SlotState.TURN,
    SlotState.DRAIN,
    SlotState.SWITCH,
)
"""States of a main thread that works; in the others it waits for wavelets, or for threads."""
KINDS: Final = ("beats of all threads", *_PLAIN, "input", "output")
"""What the time of a PE is told as in few words: its beats, and the states of its main thread,
those of all queues as one."""
PES_AT_A_TIME: Final = 1 << 13
"""An account is read of so many PEs at a time where there may be a wafer of them."""


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


def account_of(state: Array, first: int, end: int) -> Account:
    """The account of a machine whose time is booked, of PEs from one number up to another."""
    tables, now = Tables(state), int(state[w.G_NOW])
    cycles = np.zeros((end - first, w.SLOTS, w.NUM_STATES), np.int64)
    cycles[:, :, w.IN_NOTHING] = now
    for slot in _used_slots(state, first, end):
        cycles[:, slot] = slot_cycles(tables, slot, slice(first, end), now)
    queues = tables.core[first:end, w.C_QUEUE_OF :].view(np.uint8)[:, : w.COLORS] & w.QUEUE_MASK
    colors = np.zeros((end - first, w.QUEUES), np.uint32)
    for color, queue in enumerate(queues.T):
        (bound,) = np.nonzero(queue)
        colors[bound, queue[bound] - 1] |= np.uint32(1 << color)
    return Account(cycles, now, colors, int(state[w.G_HEIGHT]), first)


def main_time_of(state: Array, first: int, end: int) -> MainTime:
    """The main threads' part of :func:`account_of`, for a fraction of its time and memory."""
    tables, now, pes = Tables(state), int(state[w.G_NOW]), slice(first, end)
    cycles = slot_cycles(tables, w.MAIN_SLOT, pes, now)
    beats = cycles[:, w.IN_BEAT].copy()
    for slot in _used_slots(state, first, end):
        if slot != w.MAIN_SLOT:
            rows = tables.view("account")[slot, pes]
            is_beat = rows[:, w.A_STATE] == w.IN_BEAT
            beats += rows[:, w.A_CYCLES + w.IN_BEAT] + is_beat * (now - rows[:, w.A_SINCE])
    return MainTime(cycles, beats)


def _used_slots(state: Array, first: int, end: int) -> list[int]:
    """Slots of which any of some PEs has done something; rows of the others take no memory."""
    row = 8 * w.ACCOUNT_WORDS
    begins = [8 * w.ACCOUNT + row * (slot * w.PITCH + first) for slot in range(w.SLOTS)]
    pages = written_pages(state, [(begin, begin + row * (end - first)) for begin in begins])
    return [slot for slot, written in enumerate(pages) if written.size]


def slot_cycles(tables: Tables, slot: int, pes: slice, now: int) -> Array:
    """Cycles of a slot of some PEs up to now, shape (PEs, states)."""
    rows = tables.view("account")[slot, pes]
    cycles: Array = rows[:, w.A_CYCLES : w.A_CYCLES + w.NUM_STATES].copy()
    current, elapsed = rows[:, w.A_STATE], now - rows[:, w.A_SINCE]
    if slot == w.MAIN_SLOT:
        _split_scalar(tables.mailbox[pes], cycles, rows, elapsed)
    pauses = np.where(current == w.IN_PAUSE, elapsed, 0)
    turns = np.minimum(pauses, tables.job[slot, pes, w.J_TURNS])
    cycles[:, w.IN_TURN] += turns
    cycles[np.arange(len(cycles)), current] += elapsed - turns
    return cycles


def _split_scalar(box: Array, cycles: Array, rows: Array, elapsed: Array) -> None:
    """Book what code that runs now has said of its cycles, as if its scalar part came first.

    Args:
        box: mailboxes of the PEs.
        cycles: of the main threads, shape (PEs, states), is added to.
        rows: of the main threads' accounts.
        elapsed: cycles since the present state began, shape (PEs,); what is split is taken off.
    """
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
