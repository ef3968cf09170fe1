"""Non-zeros of a sparse matrix, dealt evenly to the rows and columns of a rectangle of PEs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, WORD_BYTES, Arch
from openwafer.sdk.arch.pace import ONE_TURN, VectorShape, vector_cycles
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.kernels.operands import check_finite
from openwafer.sdk.kernels.precision import Precision
from openwafer.sdk.kernels.products import PRODUCT_OPERATIONS, tile_length, tile_multiples
from openwafer.sdk.kernels.running import MEMORY_BYTES, check_memory

Ints = NDArray[np.int64]
WIDTHS: Final = (8, 4, 2, 1)
"""Non-zeros of a group."""
_GROUP_CYCLES: Final = 17
"""Of a group's instructions beside its non-zeros, where x has several columns."""
_ROW_CYCLES: Final = 13
"""Of a non-zero's instructions, beside its operation on a row."""


@dataclass(frozen=True, eq=False)
class Dealing:
    """Where rows or columns of a matrix lie: on which part, and at which place of it.

    Attributes:
        part: of each row or column; -1 where it is empty and lies nowhere.
        place: of each row or column on its part.
        length: of the longest part, at least 1.
    """

    part: Ints
    place: Ints
    length: int

    def spread(self, values: NDArray[Any], num_parts: int, length: int) -> NDArray[Any]:
        """Values of all rows or columns as (parts, places, ...), zeros where there are none."""
        spread = np.zeros((num_parts, length, *values.shape[1:]), values.dtype)
        there = self.part >= 0
        spread[self.part[there], self.place[there]] = values[there]
        return spread

    def collected(self, spread: NDArray[Any]) -> NDArray[Any]:
        """Values of all rows or columns, zeros of empty ones."""
        found = spread[self.part, self.place]
        found[self.part < 0] = 0
        return found


def deal(counts: Ints, num_parts: int) -> Dealing:
    """Deal what is not empty by falling count to parts, each second turn backward."""
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    turn, seat = np.divmod(np.arange(len(order)), num_parts)
    part, place = np.full(len(counts), -1), np.zeros(len(counts), np.int64)
    part[order] = np.where(turn % 2 == 0, seat, num_parts - 1 - seat)
    place[order] = turn
    return Dealing(part, place, max(1, ceil(len(order) / num_parts)))


def in_turns(count: int, num_parts: int) -> Dealing:
    """Deal so many to parts, one after the other."""
    place, part = np.divmod(np.arange(count), num_parts)
    return Dealing(part, place, ceil(count / num_parts))


def canonical(a: Any, precision: Precision) -> scipy.sparse.csr_array:
    """The matrix by rows, with sorted indices, duplicates added up and values as they are held.

    Raises:
        OpenwaferError: it is no scipy matrix of finite float32 values that the elements can hold.
    """
    if not scipy.sparse.issparse(a):
        kind = type(a).__name__
        raise error(
            "kernel-shape",
            f"A is {kind}",
            help="give a sparse matrix, as in scipy.sparse.csr_array(a)",
        )
    if a.ndim != 2 or min(a.shape) < 1:
        raise error(
            "kernel-shape", f"A has the shape {a.shape}", help="give a matrix with elements"
        )
    if a.dtype != np.float32:
        raise error(
            "kernel-dtype",
            f"values of A are {a.dtype}; a kernel takes float32 for {precision}",
            help="convert them, as in a.astype(np.float32)",
        )
    rows = _by_rows(a)
    rows.sum_duplicates()
    with np.errstate(over="ignore"):
        rows.data = rows.data.astype(precision.given).astype(np.float32)
    check_finite("A", rows.data)
    return rows


def _by_rows(a: Any) -> scipy.sparse.csr_array:
    """A copy by rows, without indices outside of the matrix and pointers that fall, with which
    scipy goes on."""
    try:
        if a.format in ("csc", "bsr"):
            a.copy().check_format(full_check=True)
        elif a.format == "coo":
            a = scipy.sparse.coo_array((a.data, a.coords), a.shape)
        rows = scipy.sparse.csr_array(a, copy=True)
        rows.check_format(full_check=True)
        return rows
    except ValueError as wrong:
        raise error(
            "kernel-shape",
            f"A of the shape {a.shape} is no sound {a.format}: {wrong}",
            help="make it of coordinates, as in scipy.sparse.coo_array((values, (rows, "
            "columns)), shape)",
        ) from wrong


@dataclass(frozen=True)
class GroupForm:
    """How ``<kernels/sparse/pe>`` has the non-zeros of a PE in memory.

    Attributes:
        width: non-zeros of a group, all of one row.
        precision: of values and sums.
        num_vectors: columns of x and y, whose rows lie together.
    """

    width: int
    precision: Precision
    num_vectors: int = 1

    @property
    def first_value(self) -> int:
        """16-bit words before the values."""
        return (self.width + 2) // 2 * 2

    @property
    def words(self) -> int:
        """16-bit words of a group."""
        return (self.first_value + self.width * self.value_words + 1) // 2 * 2

    @property
    def value_words(self) -> int:
        """16-bit words of a value."""
        return self.precision.given.itemsize // WORD_BYTES

    @property
    def num_bytes(self) -> int:
        """Of a group."""
        return self.words * WORD_BYTES

    def cycles(self, arch: Arch) -> int:
        """Cycles of a group.

        Of a vector, a non-zero takes an instruction for its place, its address, the element of x,
        the value, the product and the sum, and two more where both are widened. The row's place and
        sum are loaded, added to and stored, which waits for the last sum; a single product waits
        once more.
        """
        if self.num_vectors > 1:
            return self._cycles_of_rows(arch)
        of_one = 8 if self.precision.is_widened else 6
        waits = 1 if self.width == 1 and not self.precision.is_widened else 0
        return of_one * self.width + 10 + waits + GENERATIONS[arch].timing.loop_cycles

    def _cycles_of_rows(self, arch: Arch) -> int:
        generation, operation = GENERATIONS[arch], PRODUCT_OPERATIONS[self.precision]
        turns = ONE_TURN * (1 if self.precision is Precision.F32 else 2)
        shape = VectorShape(turns=turns)
        taken = vector_cycles(VECTOR_OPS[operation], self.num_vectors, generation, shape)
        of_one = _ROW_CYCLES + generation.timing.drain_cycles + taken
        # Loads of all but the first wait for the operation before.
        waits = (self.width - 1) * (generation.timing.load_latency - 1)
        return of_one * self.width + waits + _GROUP_CYCLES + generation.timing.loop_cycles


@dataclass(frozen=True, eq=False)
class Tiles:
    """The non-zeros of a matrix on a rectangle of PEs.

    Attributes:
        matrix: by rows, values as they are held.
        by_rows: where rows lie.
        by_columns: where columns lie.
        tile: of each non-zero, in the order of tiles, rows and columns of the tiles.
        row: its place in the tile.
        column: its place in the tile.
        values: of the non-zeros.
        number: of each non-zero in the matrix by rows.
    """

    matrix: scipy.sparse.csr_array
    by_rows: Dealing
    by_columns: Dealing
    tile: Ints
    row: Ints
    column: Ints
    values: NDArray[np.float32]
    number: Ints

    def numbered(self, width: int) -> tuple[Ints, Ints]:
        """Of each non-zero the number of its group in its tile, and its number in its group."""
        runs = self.tile * self.by_rows.length + self.row
        in_run = _in_run(runs)
        begins = in_run % width == 0
        groups = np.cumsum(begins) - 1
        first = groups[_begin_of_run(self.tile)] if len(groups) else groups
        return groups - first, in_run % width

    def most_groups(self, width: int) -> int:
        """Groups of the PE that has most."""
        groups, _ = self.numbered(width)
        return int(groups.max(initial=-1)) + 1

    @property
    def most_in_row(self) -> int:
        """Non-zeros of the longest row on one PE."""
        return int(_in_run(self.tile * self.by_rows.length + self.row).max(initial=-1)) + 1

    @property
    def most(self) -> int:
        """Non-zeros of the PE that has most."""
        return int(np.bincount(self.tile, minlength=1).max())

    def packed(
        self, form: GroupForm, num_tiles: int, capacity: int
    ) -> tuple[NDArray[np.uint16], Ints]:
        """16-bit words of the groups of all tiles, and how many groups each has."""
        group, number = self.numbered(form.width)
        words = np.zeros((num_tiles, capacity, form.words), np.uint16)
        values = self.values.astype(form.precision.given)
        value_words = form.value_words
        sum_words = form.precision.sums.itemsize // WORD_BYTES
        words[self.tile, group, 0] = self.row * form.num_vectors * sum_words
        words[self.tile, group, 1 + number] = self.column * form.num_vectors * value_words
        halves = values.view(np.uint16).reshape(-1, value_words)
        for half in range(value_words):
            at = form.first_value + number * value_words + half
            words[self.tile, group, at] = halves[:, half]
        counts = np.zeros(num_tiles, np.int64)
        np.maximum.at(counts, self.tile, group + 1)
        return words, counts

    def with_values(self, values: NDArray[Any]) -> scipy.sparse.csr_array:
        """The matrix by rows with other values: of (tiles, groups, numbers in groups)."""
        group, number = self.numbered(values.shape[-1])
        data = np.zeros(len(self.values), np.float32)
        data[self.number] = values[self.tile, group, number]
        structure = self.matrix.indices, self.matrix.indptr
        return scipy.sparse.csr_array((data, *structure), self.matrix.shape)


def _begin_of_run(keys: Ints) -> Ints:
    """Of each of sorted keys the index of the first equal one."""
    return np.searchsorted(keys, keys)


def _in_run(keys: Ints) -> Ints:
    """Of each of sorted keys its number among equal ones."""
    return np.arange(len(keys)) - _begin_of_run(keys)


def tiled(matrix: scipy.sparse.csr_array, rows: int, columns: int) -> Tiles:
    """Deal rows and columns of a matrix to `rows` x `columns` PEs."""
    entries = matrix.tocoo()
    by_rows = deal(np.bincount(entries.row, minlength=matrix.shape[0]), rows)
    by_columns = deal(np.bincount(entries.col, minlength=matrix.shape[1]), columns)
    tile = by_rows.part[entries.row] * columns + by_columns.part[entries.col]
    row, column = by_rows.place[entries.row], by_columns.place[entries.col]
    order = np.lexsort((column, row, tile))
    places = tile[order], row[order], column[order]
    return Tiles(matrix, by_rows, by_columns, *places, entries.data[order], order)


def tile_of(tiles: Tiles, precision: Precision) -> tuple[int, int]:
    """Rows and columns of each tile, so that parts of vectors fill their wavelets."""
    _, of_columns = tile_multiples(precision)
    rows = tile_length(tiles.by_rows.length, 1, precision.in_wavelet)
    return rows, tile_length(tiles.by_columns.length, 1, of_columns)


class _Sized(Protocol):
    @property
    def memory_bytes(self) -> int: ...
    @property
    def cycles(self) -> int: ...


Plan = TypeVar("Plan", bound=_Sized)


def fastest(plans: Sequence[Plan], what: str) -> Plan:
    """The plan of the fewest cycles, of those that a PE can hold.

    Raises:
        OpenwaferError: it can hold none.
    """
    check_memory(min(plan.memory_bytes for plan in plans), what)
    fitting = [plan for plan in plans if plan.memory_bytes <= MEMORY_BYTES]
    return min(fitting, key=lambda plan: plan.cycles)
