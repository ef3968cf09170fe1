"""Where stepped code stops, and where it has stopped."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.fabric import words as w
from openwafer.sdk.fabric.state import Array, Tables
from openwafer.sdk.program import mailbox as mb

_AT_REST: Final = (w.MAIN_IDLE, w.MAIN_REST, w.MAIN_DISPATCH)


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
