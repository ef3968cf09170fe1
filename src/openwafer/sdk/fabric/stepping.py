"""Where stepped code stops, and where it has stopped."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.vector_ops import VECTOR_OPS_BY_CODE
from openwafer.sdk.fabric import events
from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.beat import PLAN_MASK
from openwafer.sdk.fabric.events import Scope
from openwafer.sdk.fabric.operand import ADDRESS_MASK
from openwafer.sdk.fabric.state import Array, Tables
from openwafer.sdk.program import mailbox as mb

_AT_REST: Final = (w.MAIN_IDLE, w.MAIN_REST, w.MAIN_DISPATCH)


_NUM_OF_WATCHED: Final = 3
"""Words that the core has of each that it watches."""


class Word(NamedTuple):
    """A 16-bit word of a PE's memory; its address counts such words."""

    pe: int
    address: int


class Change(NamedTuple):
    """A word that was watched is another one."""

    word: Word
    before: int
    now: int


class Beat(NamedTuple):
    """A vector operation of a microthread wrote in this cycle, from a place of the program."""

    slot: int
    operation: str
    place: int


def _first_word(pe: int) -> int:
    """Where a PE's memory lies among the 16-bit words of the state."""
    return 4 * (w.MEMORY_ROWS + pe * w.MEMORY_WORDS)


class Stepping:
    """The stops of a machine whose code is stepped (:mod:`openwafer.sdk.ir.stepped`).

    A main thread stops where the masks of its PE and of the place have a bit in common; both are
    changed in place. What it does next in that cycle is still to come.

    Args:
        state: of the machine, which has one band.
        tables: its views.
        num_pes: how many PEs it has.
        num_places: how many places its program has.

    Attributes:
        pes: 64 bits of each PE, by its number.
        places: 64 bits of each place of the program, by its number.
    """

    def __init__(self, state: Array, tables: Tables, num_pes: int, num_places: int) -> None:
        self._state = state
        self._tables = tables
        self._event_limit = int(state[w.G_EVENT_LIMIT])
        self._watched = np.zeros(1, np.int64)
        self._masks = np.zeros(num_pes + num_places, np.int64)
        self.pes: Final[NDArray[np.int64]] = self._masks[:num_pes]
        self.places: Final[NDArray[np.int64]] = self._masks[num_pes:]

    def begin(self) -> None:
        """Let code stop from now on."""
        self._state[w.G_STOPS] = self._masks.ctypes.data

    def stop_before(self, pe: int, statement: int) -> None:
        """Let a PE stop before the statement of that number, from 0 on, too; -1 lets no PE."""
        self._state[w.G_STOP_PE] = pe + 1
        self._state[w.G_STOP_STATEMENT] = statement

    def statements(self, pe: int) -> int:
        """How many statements a PE has begun."""
        return int(self._tables.mailbox[pe, mb.STATEMENTS])

    def is_in_code(self, pe: int) -> bool:
        """Whether a PE's code waits in its middle, its variables in the frames of the stack."""
        is_begun = self._tables.core[pe, w.C_MAIN] not in _AT_REST
        return bool(is_begun and self._tables.processor[pe, w.P_OUTCOME] == mb.Outcome.SUSPENDED)

    def stopped(self) -> dict[int, int]:
        """By number of each PE that has stopped in this cycle, the number of the place."""
        if self._state[w.G_HELD] == 0:
            return {}
        is_asking = self._tables.core[:, w.C_MAIN] == w.MAIN_REQUEST
        is_stopped = is_asking & (self._tables.mailbox[:, mb.REQUEST] == mb.Request.STEP)
        pes = np.flatnonzero(is_stopped)
        places = self._tables.mailbox[pes, mb.PLACE]
        return dict(zip(pes.tolist(), places.tolist(), strict=True))

    # Words that are watched.

    def watch(self, watched: Sequence[Word]) -> None:
        """Stop where one of these words, and of no others, is changed.

        By code that is seen before the PE's next statement, by operations in flight, and by the
        host, at the end of the cycle.
        """
        rows = [(one.pe, _first_word(one.pe) + one.address, 0) for one in watched]
        self._watched = np.array([len(rows), *(word for row in rows for word in row)], np.int64)
        self._state[w.G_WATCHED] = self._watched.ctypes.data if rows else 0
        for _ in self.changes(None):
            pass

    def changes(self, pes: Sequence[int] | None) -> Iterator[Change]:
        """Words of some PEs that have changed since this was asked last; None is all PEs."""
        for row in self._watched[1:].reshape(-1, _NUM_OF_WATCHED):
            pe, place, before = row.tolist()
            address = place - _first_word(pe)
            now = int(self._tables.memory[pe, address])
            if now != before and (pes is None or pe in pes):
                row[2] = now
                yield Change(Word(pe, address), before, now)

    def beats_to(self, word: Word) -> Iterator[Beat]:
        """Microthreads that have written a word in this cycle, as far as that is seen.

        What the main thread's operations write is of the statement that it has begun last.
        """
        now = int(self._state[w.G_NOW])
        for slot in range(w.MAIN_SLOT):
            thread, job = self._tables.thread[slot, word.pe], self._tables.job[slot, word.pe]
            has_beaten = thread[w.T_DONE] and thread[w.T_NEXT] == now + thread[w.T_GAP]
            if has_beaten and self._may_write(thread, job, word.address):
                operation = VECTOR_OPS_BY_CODE[int(thread[w.T_OP])].name
                yield Beat(slot, operation, int(job[w.J_PLACE]))

    def _may_write(self, thread: Array, job: Array, address: int) -> bool:
        """Whether a word may be of the elements that an operation's last beat has written."""
        target = job[w.J_OPERANDS :][: w.OPERAND_WORDS]
        if target[w.O_KIND] != w.MEMORY or target[w.O_DIMS] != 1:
            return bool(target[w.O_KIND] in (w.MEMORY, w.POINTER))
        is_planned = thread[w.T_PLAN] & PLAN_MASK == w.PLAN_RECEIVE
        behind = int(thread[w.T_ADDRESS] if is_planned else target[w.O_ADDRESS])
        num_words = int(self._tables.vector[thread[w.T_OP], w.V_DESTINATION_WORDS])
        elements = (behind - n * int(target[w.O_STRIDES]) for n in range(1, job[w.J_WIDTH] + 1))
        return any(0 <= address - first & ADDRESS_MASK < num_words for first in elements)

    # What else happens.

    def listen(self, scope: Scope | None) -> None:
        """Let the host hear of what a scope has in the cycle that it happens in; None is nothing.

        It is given to whom the simulator records.
        """
        self._state[w.G_EVENT_LIMIT] = self._event_limit
        events.look_at([self._state], scope, has_landings=False)
        self._state[w.G_EVENT_LIMIT] = self._event_limit if scope is None else 0
