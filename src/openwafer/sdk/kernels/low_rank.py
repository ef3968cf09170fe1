"""A matrix of tiles of low rank times a vector, on a rectangle of PEs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import ONE_TURN, VectorShape, beat_words, vector_cycles
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.door.run import Run
from openwafer.sdk.kernels.operands import check_array, check_fields, check_finite, takes_operands
from openwafer.sdk.kernels.precision import (
    Precision,
    check_range,
    gamma,
    named_precision,
    precision_of,
)
from openwafer.sdk.kernels.products import (
    FRONT_BYTES,
    PRODUCT_OPERATIONS,
    tile_length,
    zeros_cycles,
)
from openwafer.sdk.kernels.running import (
    BROADCAST_CYCLES,
    CODE_BYTES,
    LOOK_CYCLES,
    REDUCE_CYCLES,
    Result,
    check_memory,
    check_rectangle,
    check_shape,
    compiled,
    cycles_of,
    known_arch,
    transfer_cycles,
)
from openwafer.sdk.kernels.trees import Shape, Tree, best_tree, broadcast_cycles, start_delay

_ALIGNED_BYTES: Final = 16
"""Multiples of so many begin at the same word of a row of memory."""


@dataclass(frozen=True)
class _Instructions:
    """Cycles of the program's instructions, each at its line, beside operations and loops.

    Attributes:
        of_element: of x, which scales a column of V.
        of_rank: which scales a column of U.
        of_column: of tiles: of making descriptors.
        most_unrolled: columns of a tile whose loop is written out.
    """

    of_element: int
    of_rank: int
    of_column: int
    most_unrolled: int


_INSTRUCTIONS: Final = {
    False: _Instructions(of_element=12, of_rank=12, of_column=50, most_unrolled=12),
    True: _Instructions(of_element=18, of_rank=18, of_column=66, most_unrolled=5),
}
"""By whether numbers are complex."""
_COUNT_CYCLES: Final = 9
"""Of a tile, whose ranks are counted."""
_TILE_CYCLES: Final = 30
"""Of a tile with ranks: its sums' descriptor, and the loop's beginning and end."""


@dataclass(frozen=True, eq=False)
class LowRankTiles:
    """A matrix of tiles U V^H, as :func:`compress` makes it.

    Attributes:
        shape: rows and columns of the matrix.
        tile: rows and columns of a tile; the last ones of a row or column may have fewer.
        u: by rows and columns of tiles, (rows, rank) of each, float32 or all complex64.
        v: the same, (columns, rank).
    """

    shape: tuple[int, int]
    tile: tuple[int, int]
    u: Sequence[Sequence[NDArray[Any]]] = field(repr=False)
    v: Sequence[Sequence[NDArray[Any]]] = field(repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if min(*self.shape, *self.tile) < 1:
            raise error(
                "kernel-shape",
                f"a matrix of the shape {self.shape} in tiles of {self.tile}",
                help="give a matrix with elements, and tiles with them",
            )
        for name, factors, axis in (("u", self.u, 0), ("v", self.v, 1)):
            _check_count(name, factors, self.counts)
            for row, y in zip(factors, range(self.counts[0]), strict=True):
                for one, x in zip(row, range(self.counts[1]), strict=True):
                    _check_factor(name, one, (y, x), self._length((y, x)[axis], axis))
        for y, x in np.ndindex(self.counts):
            if self.u[y][x].shape[1] != self.v[y][x].shape[1]:
                ranks = self.u[y][x].shape[1], self.v[y][x].shape[1]
                raise error(
                    "kernel-shape",
                    f"tile ({y}, {x}) has {ranks[0]} columns of u and {ranks[1]} of v",
                    help="give both a column for each of its ranks",
                )
        if len({one.dtype for row in (*self.u, *self.v) for one in row}) > 1:
            raise error(
                "kernel-dtype",
                "some of u and v are complex and others are not",
                help="convert all of them to complex64",
            )

    @property
    def counts(self) -> tuple[int, int]:
        """Rows and columns of tiles."""
        (rows, columns), (down, along) = self.shape, self.tile
        return ceil(rows / down), ceil(columns / along)

    def _length(self, number: int, axis: int) -> int:
        tile = self.tile[axis]
        return min(tile, self.shape[axis] - number * tile)

    @property
    def is_complex(self) -> bool:
        """Whether u and v are."""
        return bool(np.iscomplexobj(self.u[0][0]))

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Rows by columns of tiles."""
        return np.array([[one.shape[1] for one in row] for row in self.u])

    @property
    def matrix(self) -> NDArray[Any]:
        """What it stands for, float64 or complex128."""
        return self.tile_by_tile(lambda u, v: _wide(u) @ _wide(v).conj().T)

    def tile_by_tile(
        self, of_pair: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
    ) -> NDArray[Any]:
        """A matrix of the same shape, from U and V of each tile."""
        pairs = (zip(*row, strict=True) for row in zip(self.u, self.v, strict=True))
        return np.block([[of_pair(u, v) for u, v in row] for row in pairs])


def _wide(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)


def _half_of_least(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype).smallest_subnormal) / 2


def _real_parts(values: NDArray[Any]) -> NDArray[np.float32]:
    """Real and imaginary parts beside each other, or the values if they are real."""
    if np.iscomplexobj(values):
        return np.ascontiguousarray(values, np.complex64).view(np.float32)
    return values.astype(np.float32)


def _held(a: "LowRankTiles", precision: Precision) -> "LowRankTiles":
    """The tiles as a PE has them: rounded to the precision's elements.

    Raises:
        OpenwaferError: ``kernel-range``, they have numbers beyond those.
    """
    if precision is Precision.F32:
        return a

    def rounded(name: str, factors: Sequence[Sequence[NDArray[Any]]]) -> list[list[NDArray[Any]]]:
        found: list[list[NDArray[Any]]] = []
        for y, row in enumerate(factors):
            found.append([])
            for x, factor in enumerate(row):
                parts = _real_parts(factor)
                check_range(f"{name} of tile {(y, x)}", parts, precision)
                short = parts.astype(precision.given).astype(np.float32)
                found[y].append(short.view(factor.dtype))
        return found

    return replace(a, u=rounded("u", a.u), v=rounded("v", a.v))


def _parts(values: NDArray[Any]) -> NDArray[np.float64]:
    """Sums of the magnitudes of real and imaginary parts."""
    wide = _wide(values)
    return np.asarray(np.abs(wide.real) + np.abs(wide.imag))


def _check_count(
    name: str, factors: Sequence[Sequence[NDArray[Any]]], counts: tuple[int, int]
) -> None:
    lengths = {len(row) for row in factors}
    if len(factors) != counts[0] or lengths != {counts[1]}:
        raise error(
            "kernel-shape",
            f"{name} has {len(factors)} rows of {sorted(lengths)} tiles; the matrix has "
            f"{counts[0]} rows of {counts[1]}",
            help="give one for each tile",
        )


def _check_factor(name: str, factor: NDArray[Any], at: tuple[int, int], length: int) -> None:
    check_array(f"{name} of tile {at}", factor)
    if factor.dtype not in (np.float32, np.complex64):
        raise error(
            "kernel-dtype",
            f"{name} of tile {at} is {factor.dtype}; a kernel takes float32 or complex64",
            help="convert it, as in values.astype(np.complex64)",
        )
    if factor.ndim != 2 or factor.shape[0] != length:
        raise error(
            "kernel-shape",
            f"{name} of tile {at} has the shape {factor.shape}; the tile has {length} of its rows",
            help="give a column for each rank",
        )
    check_finite(f"{name} of tile {at}", factor)


@takes_operands
def compress(matrix: NDArray[Any], tile: tuple[int, int], tolerance: float) -> LowRankTiles:
    """Tiles of the lowest ranks whose errors together are `tolerance` of the matrix's norm at most.

    Each tile's ranks are its largest singular values (doi 10.1145/3581784.3627042); what is left of
    it has an equal share of the whole error.

    Args:
        matrix: (rows, columns), real or complex, finite.
        tile: rows and columns of a tile.
        tolerance: of the Frobenius norm, 0 or more.

    Raises:
        OpenwaferError: it is no matrix, or its numbers are none or beyond float32.
    """
    if matrix.ndim != 2 or min(*matrix.shape, *tile) < 1 or not tolerance >= 0:
        raise error(
            "kernel-shape",
            f"a matrix of the shape {matrix.shape} in tiles of {tile}, with tolerance {tolerance}",
            help="give a matrix with elements, tiles with elements, and a tolerance of 0 or more",
        )
    check_finite("the matrix", matrix)
    dtype = np.complex64 if np.iscomplexobj(matrix) else np.float32
    down, along = (range(0, n, step) for n, step in zip(matrix.shape, tile, strict=True))
    # In parts of the largest number, as squares of all may overflow.
    wide = _wide(matrix)
    largest = float(np.abs([wide.real, wide.imag]).max()) or 1.0
    norm = float(np.linalg.norm(wide / largest))
    allowed = tolerance * norm / np.sqrt(len(down) * len(along))
    u: list[list[NDArray[Any]]] = [[] for _ in down]
    v: list[list[NDArray[Any]]] = [[] for _ in down]
    for row, y in enumerate(down):
        for x in along:
            left, values, right = np.linalg.svd(
                wide[y : y + tile[0], x : x + tile[1]], full_matrices=False
            )
            tails = np.sqrt(np.cumsum((values[::-1] / largest) ** 2))[::-1]
            rank = int((tails > allowed).sum())
            with np.errstate(over="ignore"):
                # What becomes infinite is refused with its tile.
                u[row].append((left[:, :rank] * values[:rank]).astype(dtype))
            v[row].append(right[:rank].conj().T.astype(dtype))
    rows, columns = matrix.shape
    return LowRankTiles((rows, columns), tile, u, v)


@dataclass(frozen=True, eq=False)
class TlrMvmPlan:
    """How y = A x is done for one A of tiles of low rank, before anything is compiled.

    Equal numbers of rows and of columns of tiles lie on each row and column of PEs. Parts of x go
    down the columns of PEs, and sums of y along rows to the east.

    Attributes:
        a: the matrix, of numbers that the precision's elements can be.
        rows: of PEs.
        columns: of PEs.
        arch: the generation.
        precision: types of elements and sums; elements of V^H x are f16, too, where they scale
            columns of U of f16.
        tree: who adds up what along a row.
    """

    a: LowRankTiles
    rows: int
    columns: int
    arch: Arch
    precision: Precision
    tree: Tree

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of tiles on a PE."""
        (down, along) = self.a.counts
        return ceil(down / self.rows), ceil(along / self.columns)

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a tile as it lies there, with what is padded by zeros."""
        rows, columns = self.a.tile
        of_wavelet = 4 // self.precision.given.itemsize
        return tile_length(rows, 1, self._aligned), tile_length(columns, 1, of_wavelet)

    @property
    def _aligned(self) -> int:
        return _ALIGNED_BYTES // self.precision.given.itemsize

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns of zeros in and beside the tiles of the matrix."""
        sizes = zip((self.rows, self.columns), self.tiles, self.tile, self.a.shape, strict=True)
        down, along = (pes * tiles * tile - have for pes, tiles, tile, have in sizes)
        return down, along

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Of each PE's tiles: (rows of PEs, columns of PEs, columns of tiles, rows of tiles)."""
        down, along = self.tiles
        more = self.rows * down, self.columns * along
        padding = [(0, want - have) for want, have in zip(more, self.a.counts, strict=True)]
        spread = np.pad(self.a.ranks, padding).reshape(self.rows, down, self.columns, along)
        return spread.transpose(0, 2, 3, 1)

    @property
    def most_ranks(self) -> int:
        """Ranks that a PE has room for in each column of its tiles."""
        return tile_length(max(1, int(self.ranks.sum(3).max())), 1, self._aligned)

    @property
    def _num_parts(self) -> int:
        return 1 + self.a.is_complex

    @property
    def _num_sums(self) -> int:
        return self._num_parts * self.tile[0] * self.tiles[0]

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        (rows, columns), (down, along) = self.tile, self.tiles
        given = self._num_parts * along * ((rows + columns) * self.most_ranks + columns)
        sums = self._num_parts * along * self.most_ranks + self._num_sums
        held = given * self.precision.given.itemsize + sums * self.precision.sums.itemsize
        return held + np.dtype(np.uint32).itemsize * down * along + 2 * FRONT_BYTES + CODE_BYTES

    @property
    def cycles(self) -> int:
        """Predicted cycles: x goes out, the PE with most ranks multiplies, sums come in."""
        words = self._num_parts * self.tile[1] * self.tiles[1] * self.precision.given.itemsize // 4
        sent = broadcast_cycles(1, self.rows, words, self.arch)
        sums = self._num_sums // self.precision.in_wavelet
        summed = self.tree.cycles(self.columns, sums, self.arch, is_staggered=True)
        summed += self.tree.command_cycles(self.columns, sums, self.arch, is_staggered=True)
        late = start_delay(self.columns, self.arch)
        inner = self._num_parts * self.tiles[1] * self.most_ranks
        zeros = sum(zeros_cycles(n, self.precision, self.arch) for n in (self._num_sums, inner))
        around = sum(transfer_cycles(n, self.arch) for n in (BROADCAST_CYCLES, REDUCE_CYCLES))
        most = int(self._multiplied().max())
        return round(LOOK_CYCLES + sent + zeros + most + summed + late + around)

    def _multiplied(self) -> NDArray[np.int64]:
        """Cycles of the products of each PE."""
        kind, (rows, columns) = _INSTRUCTIONS[self.a.is_complex], self.tile
        loop, num_products = GENERATIONS[self.arch].timing.loop_cycles, self._num_parts**2
        turn = kind.of_element + loop * (columns > kind.most_unrolled)
        of_rank = kind.of_rank + loop + num_products * self._operation(rows)
        of_columns = self.ranks.sum(3)
        operations = np.array([self._operation(n) for n in range(self.most_ranks + 1)])
        of_v = columns * (turn + num_products * operations[of_columns]) + kind.of_column
        spent = np.where(of_columns > 0, of_v + of_columns * of_rank, 0)
        around = _COUNT_CYCLES + np.where(of_columns > 0, _TILE_CYCLES, 0)
        found: NDArray[np.int64] = (spent + self.tiles[0] * around + loop).sum(2)
        return found

    def _operation(self, num_elements: int) -> int:
        """Cycles of one that scales elements and adds them, with its three registers."""
        op, generation = VECTOR_OPS[PRODUCT_OPERATIONS[self.precision]], GENERATIONS[self.arch]
        # Whole rows of sums that are updated in place are read and written by turns.
        is_whole = beat_words(op, generation) >= generation.timing.row_words
        turns = 2 * ONE_TURN if is_whole else ONE_TURN
        shape = VectorShape(turns=turns, num_registers=3)
        return vector_cycles(op, num_elements, generation, shape)

    @property
    def num_roundings(self) -> int:
        """The most roundings that a product goes through: of a tile's columns, of the ranks that a
        row of a PE's tiles has, and of the tree."""
        in_row = int(self.ranks.sum(2).max())
        of_pe = self._num_parts * (self.tile[1] + in_row)
        return of_pe + self.tree.num_additions(self.columns)

    def error_bound(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Bound of the error of each real and imaginary part, against the tiles as they are held.

        It is ``gamma(num_roundings)`` times the sum of the magnitudes of all its products, and half
        of the least number for each product. With f16 tiles and f32 sums elements of V^H x are
        rounded to f16 beside this, and complex x is rounded to f16 wherever tiles are: each makes
        one factor 1 + d of f16 more. It is infinite where a number may leave the range of its type.

        Args:
            x: (columns,), finite.
        """
        given, sums, parts = self.precision.given, self.precision.sums, _parts(x)
        # Roundings to f16 of what is no sum: of complex x, and of V^H x.
        num_rounded = (self.precision is not Precision.F32) * self.a.is_complex
        num_rounded += self.precision.is_widened
        relative = gamma(self.num_roundings, sums)
        relative = (1 + relative) * (1 + gamma(num_rounded, given)) - 1
        products = self.a.tile_by_tile(lambda u, v: _parts(u) @ _parts(v).T)
        # A product of V and x that is lost is multiplied by U, as is what V^H x loses.
        factors = self.a.tile_by_tile(lambda u, _: _parts(u).sum(1, keepdims=True)).sum(1)
        in_row = self._num_parts * self.a.ranks.sum(1).max()
        lost = (in_row + self._num_parts * self.tile[1] * factors) * _half_of_least(sums)
        if num_rounded:
            lost += (factors + products.sum(1)) * _half_of_least(given)
        is_inside = self._most_inner(parts) * (1 + relative) <= float(np.finfo(given).max)
        magnitudes = products @ parts
        fits = is_inside & (magnitudes * (1 + relative) + lost <= float(np.finfo(sums).max))
        return np.where(fits, relative * magnitudes + (1 + relative) * lost, np.inf)

    def _most_inner(self, parts: NDArray[np.float64]) -> float:
        """The largest sum of magnitudes in an element of V^H x."""
        along = [parts[at : at + self.a.tile[1]] for at in range(0, len(parts), self.a.tile[1])]
        inner = [
            float((parts_of_x @ _parts(v)).max(initial=0))
            for row in self.a.v
            for v, parts_of_x in zip(row, along, strict=True)
        ]
        return max(inner)

    @takes_operands
    def run(self, x: NDArray[Any], *, check: bool = False) -> Result:
        """Multiply on the simulated wafer.

        Args:
            x: (columns,), finite: complex64 for complex tiles, else of the precision's elements.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: it has another shape or type, or is not finite.
        """
        precision_of(self.precision, x.dtype, is_complex=self.a.is_complex)
        check_shape("x", x, self.a.shape[1:])
        check_finite("x", x)
        check_range("x", _real_parts(x), self.precision)
        with compiled("tlr_mvm", self.arch, self.params).run(check=check) as run:
            self._give(run, x)
            run.launch("main")
            found = self._collected(run["y", :, -1])
            sums = x.dtype if self.a.is_complex else self.precision.sums
            return Result(found.astype(sums), cycles_of(run, self.arch))

    def _give(self, run: Run, x: NDArray[Any]) -> None:
        """Copy tiles and x to the PEs."""
        run["ranks"] = self.ranks.reshape(self.rows, self.columns, -1).astype(np.uint32)
        for name, factors in zip(("V", "U"), self._stacked(), strict=True):
            run[name] = factors.real.astype(self.precision.given)
            if self.a.is_complex:
                run[f"{name}_imag"] = factors.imag.astype(self.precision.given)
        of_tile, along = self.a.tile[1], self.columns * self.tiles[1]
        parts = np.pad(x, (0, along * of_tile - len(x))).reshape(self.columns, -1, of_tile)
        parts = np.pad(parts, ((0, 0), (0, 0), (0, self.tile[1] - of_tile)))
        both = [parts.real, parts.imag][: self._num_parts]
        spread = np.concatenate(both, axis=2).reshape(self.columns, -1)
        run["x", 0] = spread.astype(self.precision.given)

    def _stacked(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """V and U of each PE's tiles, by their columns: (rows, columns, elements)."""
        (rows, columns), (down, along), most = self.tile, self.tiles, self.most_ranks
        dtype = self.a.u[0][0].dtype
        v = np.zeros((self.rows, self.columns, along, columns, most), dtype)
        u = np.zeros((self.rows, self.columns, along, most, rows), dtype)
        begins = np.zeros((self.rows, self.columns, along), np.int64)
        for i, j in np.ndindex(self.a.counts):
            at = i // down, *divmod(j, along)
            one, other = self.a.u[i][j].T, self.a.v[i][j]
            mine = slice(begins[at], begins[at] + len(one))
            u[(*at, mine, slice(one.shape[1]))] = one
            v[(*at, slice(len(other)), mine)] = other
            begins[at] += len(one)
        size = self.rows, self.columns, -1
        return v.reshape(size), u.reshape(size)

    def _collected(self, sums: NDArray[Any]) -> NDArray[Any]:
        """y, from the sums of each row of PEs."""
        parts = sums.astype(np.float32).reshape(-1, self._num_parts, self.tile[0])
        values = np.ascontiguousarray(parts[:, :, : self.a.tile[0]].swapaxes(1, 2))
        # Pairs of numbers, as 1j times an infinite one has no real part.
        values = values.view(np.complex64) if self.a.is_complex else values
        return values.ravel()[: self.a.shape[0]]

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "tile_rows": self.tile[0],
            "tile_columns": self.tile[1],
            "num_down": self.tiles[0],
            "num_along": self.tiles[1],
            "most_ranks": self.most_ranks,
            "is_complex": self.a.is_complex,
            **self.precision.params,
            "row_shape": self.tree.shape.number,
            "row_group": self.tree.group,
        }


@takes_operands
def plan_tlr_mvm(
    a: LowRankTiles,
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
    tree: Tree | None = None,
) -> TlrMvmPlan:
    """Plan y = A x for one A of tiles of low rank on a rectangle of PEs.

    Args:
        a: the matrix.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, or ``"f16"`` or ``"f16-f32"``, which round the tiles to float16.
        tree: who adds up what along a row; None takes the best by the published model.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE's memory, or float16 cannot hold a tile.
    """
    generation, numbers = known_arch(arch), named_precision(precision)
    check_rectangle(*size, generation)
    held = _held(a, numbers)
    plan = TlrMvmPlan(held, *size, generation, numbers, tree or Tree(Shape.CHAIN))
    if tree is None:
        sums = plan.tile[0] * plan.tiles[0] * (1 + a.is_complex)
        words = sums // numbers.in_wavelet
        plan = replace(
            plan, tree=best_tree(size[1], sums, words, generation, is_staggered=True, slack=0)
        )
    down, along = plan.tiles
    most = int(plan.ranks.sum((2, 3)).max())
    check_memory(plan.memory_bytes, f"a PE with {down} x {along} tiles of {most} ranks together")
    return plan


@takes_operands
def tlr_mvm(
    a: LowRankTiles,
    x: NDArray[Any],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str | None = None,
    tree: Tree | None = None,
) -> Result:
    """Product of a matrix of tiles of low rank and a vector: (rows, columns) times (columns,).

    The error of each part is at most :meth:`TlrMvmPlan.error_bound`. The order of additions is that
    of the plan, so the bits repeat.

    Args:
        a: the matrix, as by :func:`compress`.
        x: (columns,), float32 or float16 for real tiles and complex64 for complex ones.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, or ``"f16"`` or ``"f16-f32"``, which round tiles and complex x to
            float16; None takes the one of `x`, for float16 with f32 sums.
        tree: who adds up what along a row; None takes the best by the published model.

    Raises:
        OpenwaferError: shape or type do not fit, values are not finite, or the rectangle or its
            memory is too small.
    """
    numbers = precision_of(precision, x.dtype, is_complex=a.is_complex)
    return plan_tlr_mvm(a, size, arch=arch, precision=numbers, tree=tree).run(x)
