"""What a simulator notes of a run, in the order of a record."""

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.fabric import Simulator
from openwafer.sdk.fabric.events import EVENT, Rows, columns_of


class Noted:
    """Keeps what a simulator with a scope notes from now on."""

    def __init__(self, simulator: Simulator) -> None:
        self._rows: list[Rows] = [np.zeros(0, EVENT)]
        self._height = simulator.size[1]
        simulator.record_to(self._rows.append)

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """All events, by column."""
        return columns_of(np.concatenate(self._rows), self._height)

    def lists(self) -> dict[str, list[int]]:
        """The same to be compared."""
        return {name: column.tolist() for name, column in self.columns().items()}
