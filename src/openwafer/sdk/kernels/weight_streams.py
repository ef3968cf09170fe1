"""Weights as they enter the fabric: places and values by rows of PEs, and control wavelets."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import scipy.sparse
from numba import njit
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import WORD_BYTES
from openwafer.sdk.kernels.precision import Precision
from openwafer.sdk.kernels.sparse_tiles import Dealing, Ints

Words = NDArray[np.uint32]
END_TASK: Final = 40
"""Control task that ends an output."""
TURN_WAVELETS: Final = 4
"""Of a row of PEs until the next row of its port gets some: its queue holds them, so that the port
need not wait for the row."""
_TURNS_AHEAD: Final = 3
"""By which a row of PEs may be before another one of its port: one turn is worked on, one lies in
the queue, and one is on its way."""
_NO_TASK: Final = 31 << 16
_NOT_INTO_THE_CORE: Final = 1 << 24
_ADVANCE: Final = 1 << 22
_RESET: Final = 2 << 22


@dataclass(frozen=True, eq=False)
class WeightStreams:
    """Non-zeros of W in the order in which they enter.

    Outputs follow each other by their owners. The rows of PEs of a port get a turn's non-zeros
    each, then the next ones, until all have those of an output.

    Attributes:
        matrix: (outputs, features) by rows, values as they are held.
        by_features: where features lie, on rows of PEs.
        by_outputs: where outputs lie.
        rows: of PEs that hold different features.
        band: rows whose weights enter by one port.
        precision: of the values.
    """

    matrix: scipy.sparse.csr_array
    by_features: Dealing
    by_outputs: Dealing
    rows: int
    band: int
    precision: Precision

    @property
    def num_outputs(self) -> int:
        """With those that fill up the rows of PEs."""
        return self.rows * self.by_outputs.length

    @cached_property
    def counts(self) -> Ints:
        """Non-zeros by row of PEs and output: (rows, outputs)."""
        flat = np.bincount(self._packet, minlength=self.rows * self.num_outputs)
        return flat.reshape(self.num_outputs, self.rows).T

    @cached_property
    def _packet(self) -> Ints:
        """Of each non-zero the number of its output and row of PEs."""
        entries, outputs = self.matrix.tocoo(), self.by_outputs
        number = outputs.part[entries.row] * outputs.length + outputs.place[entries.row]
        packet: Ints = number * self.rows + self.by_features.part[entries.col]
        return packet

    @cached_property
    def order(self) -> Ints:
        """Non-zeros by output, row of PEs and place."""
        return np.lexsort((self.by_features.place[self.matrix.indices], self._packet))

    @property
    def wavelets_of_weight(self) -> int:
        """A place and a value of 16 bits share one."""
        return self.precision.given.itemsize // WORD_BYTES

    def words(self, values: NDArray[np.float32], places: Ints) -> Words:
        """Wavelets of the non-zeros in :attr:`order`: (non-zeros, wavelets of each).

        Args:
            values: of the non-zeros, as in :attr:`matrix`.
            places: of features, in words of memory.
        """
        given = values.astype(self.precision.given)[self.order]
        at = self._in_order(places)
        if self.wavelets_of_weight == 1:
            tagged: Words = at << np.uint32(16) | given.view(np.uint16)
            return tagged[:, None]
        return np.stack([at, given.view(np.uint32)], axis=1)

    def place_words(self, places: Ints) -> Words:
        """Wavelets of the places alone, in :attr:`order`: (non-zeros, 1)."""
        at = self._in_order(places)
        narrow: Words = at << np.uint32(16)
        return (narrow if self.wavelets_of_weight == 1 else at)[:, None]

    def _in_order(self, places: Ints) -> Words:
        at: Words = places[self.matrix.indices[self.order]].astype(np.uint32)
        return at

    def of_row(self, row: int) -> Ints:
        """Non-zeros of a row of PEs in the order in which they enter it, as in :attr:`matrix`."""
        own: Ints = self.order[self._packet[self.order] % self.rows == row]
        return own

    def of_ports(self, words: Words) -> list[tuple[Words, NDArray[np.bool_]]]:
        """What enters by each port, and which of it are control wavelets.

        Args:
            words: wavelets of the non-zeros in :attr:`order`.
        """
        return [self._of_port(words, first) for first in range(0, self.rows, self.band)]

    @cached_property
    def most_weights(self) -> int:
        """Non-zeros of the rows of PEs that have most of each output, added up."""
        return int(self.counts.max(axis=0).sum())

    def row_cycles(self, of_weight: float, of_output: float, depth: int, wavelets: int) -> float:
        """Cycles until the last row of PEs is done, each of which goes on until it must wait.

        Args:
            of_weight: cycles of a weight.
            of_output: cycles of an output.
            depth: outputs that a row may have done before another one has.
            wavelets: of a weight.
        """
        key = of_weight, of_output, depth, wavelets
        if key not in self._cycles:
            turn = self._turn_weights(wavelets, self.band)
            self._cycles[key] = _walked(self.counts, of_weight, of_output, depth, turn, self.band)
        return self._cycles[key]

    def _turn_weights(self, wavelets: int, num_rows: int) -> int:
        """Weights of a turn of a port's rows; one with a port of its own has one of an output."""
        return TURN_WAVELETS // wavelets if num_rows > 1 else max(1, int(self.counts.max()))

    def num_wavelets(self, of_weight: int) -> int:
        """Of the port by which most enter.

        Args:
            of_weight: wavelets of a non-zero.
        """
        if of_weight not in self._wavelets:
            firsts, counts = np.arange(0, self.rows, self.band), self.counts
            rows = np.diff(firsts, append=self.rows)
            turn = np.repeat([self._turn_weights(of_weight, num) for num in rows], rows)
            turns = np.maximum(1, -(-counts // turn[:, None]))
            controls = rows * np.maximum.reduceat(turns, firsts, axis=0).sum(axis=1)
            weights = np.add.reduceat(counts.sum(axis=1), firsts)
            self._wavelets[of_weight] = int((weights * of_weight + controls).max())
        return self._wavelets[of_weight]

    @cached_property
    def _wavelets(self) -> dict[int, int]:
        """What :meth:`num_wavelets` has said."""
        return {}

    @cached_property
    def _cycles(self) -> dict[tuple[float, float, int, int], float]:
        """What :meth:`row_cycles` has said."""
        return {}

    @cached_property
    def most_outputs(self) -> int:
        """Outputs that have non-zeros on the row of PEs where most have some."""
        return int((self.counts > 0).sum(axis=1).max())

    @cached_property
    def num_odd(self) -> int:
        """Outputs that have an odd number of non-zeros, on the row of PEs where most have."""
        return int((self.counts % 2).sum(axis=1).max())

    def _of_port(self, words: Words, first: int) -> tuple[Words, NDArray[np.bool_]]:
        packet = self._packet[self.order]
        number, row = np.divmod(packet, self.rows)
        is_own = (row >= first) & (row < first + self.band)
        counts = self.counts[first : first + self.band].T
        turn = self._turn_weights(words.shape[1], counts.shape[1])
        # Of an output each row gets as many turns as the one that needs most of them.
        turns = np.maximum(1, -(-counts // turn))
        begin = np.cumsum(turns.max(axis=1)) - turns.max(axis=1)
        in_packet = np.arange(len(packet)) - np.searchsorted(packet, packet)
        at = (begin[number] + in_packet // turn) * counts.shape[1] + row - first
        controls, at = self._controls(turns), at[is_own]
        ends = np.cumsum(np.bincount(at, minlength=controls.size)) * words.shape[1]
        entering = words[is_own][np.argsort(at, kind="stable")].ravel()
        flags = np.insert(np.zeros(entering.size, np.bool_), ends, True)
        return np.insert(entering, ends, controls), flags

    @staticmethod
    def _controls(turns: Ints) -> Words:
        """Control wavelets behind all turns of outputs and rows; `turns` have non-zeros."""
        most = turns.max(axis=1)
        output = np.repeat(np.arange(len(turns)), most)
        in_output = np.arange(len(output)) - np.searchsorted(output, output)
        does_end = in_output[:, None] == turns[output] - 1
        controls = np.where(does_end, END_TASK << 16, _NO_TASK | _NOT_INTO_THE_CORE) | _ADVANCE
        controls[:, -1] += _RESET - _ADVANCE
        return controls.astype(np.uint32).ravel()


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _walked(
    counts: Ints, of_weight: float, of_output: float, depth: int, turn: int, band: int
) -> float:
    """Cycles of :meth:`WeightStreams.row_cycles`, by turns of so many weights."""
    num_rows, num_outputs = counts.shape
    done = np.zeros(num_rows)
    outputs = np.zeros(depth)
    turns = np.zeros((_TURNS_AHEAD, (num_rows + band - 1) // band))
    number = 0
    for output in range(num_outputs):
        waited_for = outputs[output % depth]
        most = counts[:, output].max()
        for begin in range(0, max(1, most), turn):
            ends_output = begin + turn >= most
            before = turns[number % _TURNS_AHEAD].copy()
            for row in range(num_rows):
                port = row // band
                at = max(done[row], waited_for)
                if band > 1:
                    at = max(at, before[port])
                weights = min(max(counts[row, output] - begin, 0), turn)
                done[row] = at + weights * of_weight + of_output * ends_output
                last = done[row] if row % band == 0 else turns[number % _TURNS_AHEAD, port]
                turns[number % _TURNS_AHEAD, port] = max(last, done[row])
            number += 1
        outputs[output % depth] = done.max()
    return float(outputs[(num_outputs - 1) % depth])
