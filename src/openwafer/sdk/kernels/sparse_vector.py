"""Sparse matrix times vector, or several of them, on a rectangle of PEs."""

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.door.run import Run
from openwafer.sdk.kernels.operands import check_finite, takes_operands
from openwafer.sdk.kernels.precision import Precision, bound_of_products, named_precision
from openwafer.sdk.kernels.products import FRONT_BYTES, row_length, zeros_cycles
from openwafer.sdk.kernels.running import (
    BROADCAST_CYCLES,
    CODE_BYTES,
    LOOK_CYCLES,
    REDUCE_CYCLES,
    Result,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known_arch,
    transfer_cycles,
)
from openwafer.sdk.kernels.sparse_tiles import (
    WIDTHS,
    GroupForm,
    Tiles,
    canonical,
    fastest,
    tile_of,
    tiled,
)
from openwafer.sdk.kernels.trees import Tree, best_tree, broadcast_cycles, start_delay

_MULTIPLY_CYCLES: Final = 16
"""Of the product's instructions beside its groups, with the loop's first and last ones, and of the
register of the sums."""
_LOCAL_CYCLES: Final = 6
"""Of the broadcast's instructions where it sends nothing."""


@dataclass(frozen=True, eq=False)
class SpmvPlan:
    """How y = A x is done for one sparse A, before anything is compiled; x is a vector or a matrix.

    Rows and columns that are not empty are dealt to the rows and columns of PEs by falling count of
    non-zeros. Parts of x go along columns of PEs from the north edge, and sums of y along rows to
    the east. Each PE has its own non-zeros, in groups of one row.

    Attributes:
        shape: rows and columns of A.
        rows: of PEs.
        columns: of PEs.
        tile: rows and columns of A on a PE, with what is padded.
        most: non-zeros of the PE that has most.
        width: non-zeros of a group; a group that is not full ends with zeros.
        capacity: groups of the PE that has most.
        arch: the generation.
        precision: types of elements and sums.
        tree: who adds up what along a row.
        tiles: where the non-zeros lie.
        num_vectors: columns of x and y.
    """

    shape: tuple[int, int]
    rows: int
    columns: int
    tile: tuple[int, int]
    most: int
    width: int
    capacity: int
    arch: Arch
    precision: Precision
    tree: Tree
    tiles: Tiles = field(repr=False)
    num_vectors: int = 1

    @property
    def padding(self) -> tuple[int, int]:
        """Places of rows and columns of PEs that no row or column of A takes."""
        rows, columns = (
            int(np.count_nonzero(one.part >= 0))
            for one in (self.tiles.by_rows, self.tiles.by_columns)
        )
        return self.rows * self.tile[0] - rows, self.columns * self.tile[1] - columns

    @property
    def row(self) -> int:
        """Elements of a row of x and of y on a PE, with what is padded."""
        return row_length(self.num_vectors, self.precision)

    @property
    def front(self) -> int:
        """Elements before the sums of a PE."""
        return FRONT_BYTES // self.precision.sums.itemsize if self.num_vectors > 1 else 0

    @property
    def form(self) -> GroupForm:
        """Of the groups in memory."""
        return GroupForm(self.width, self.precision, self.row)

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        rows, columns = (n * self.row for n in self.tile)
        sums = (self.front + rows) * self.precision.sums.itemsize
        vectors = columns * self.precision.given.itemsize + sums
        return max(1, self.capacity) * self.form.num_bytes + vectors + CODE_BYTES

    @property
    def cycles(self) -> int:
        """Predicted cycles: x goes out, the PE with most groups multiplies, sums come in."""
        rows, columns = (n * self.row for n in self.tile)
        words = columns * self.precision.given.itemsize // 4
        sent = broadcast_cycles(1, self.rows, words, self.arch)
        sums = rows // self.precision.in_wavelet
        summed = self.tree.cycles(self.columns, sums, self.arch, is_staggered=True)
        summed += self.tree.command_cycles(self.columns, sums, self.arch, is_staggered=True)
        late = start_delay(self.columns, self.arch)
        # Sums are set to zero while x arrives, and both take beats.
        phases = sent + zeros_cycles(self.front + rows, self.precision, self.arch) + summed + late
        phases += _MULTIPLY_CYCLES + self.capacity * self.form.cycles(self.arch)
        return round(LOOK_CYCLES + phases + self._task_cycles)

    @property
    def _task_cycles(self) -> int:
        """Until the tasks behind both transfers begin: one that has nothing to send is called."""
        called = GENERATIONS[self.arch].timing.switch_cycles
        taken = _LOCAL_CYCLES + called
        if self.rows > 1:
            taken = transfer_cycles(BROADCAST_CYCLES, self.arch)
        return taken + (transfer_cycles(REDUCE_CYCLES, self.arch) if self.columns > 1 else called)

    @property
    def num_roundings(self) -> int:
        """The most roundings that a product goes through: its own, those of its group by halves, of
        the groups of its row and of the tree; of several vectors, of the non-zeros one by one."""
        groups = -(-self.tiles.most_in_row // self.width)
        of_row = self.width.bit_length() + groups if self.num_vectors == 1 else groups * self.width
        return of_row + self.tree.num_additions(self.columns)

    def error_bound(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Bound of the error of each element against A with its values as they are held:
        ``gamma(num_roundings) * |A| @ |x|``, and half of the least number of the sums' type for
        each product.

        Args:
            x: (columns,) or (columns, num_vectors), finite.
        """
        num_products = self.tiles.most_in_row * self.columns
        matrix = self.tiles.matrix
        return bound_of_products(matrix, x, self.num_roundings, num_products, self.precision.sums)

    @takes_operands
    def run(self, x: NDArray[Any], *, check: bool = False) -> Result:
        """Multiply on the simulated wafer.

        Args:
            x: (columns,) of the plan's precision, finite; (columns, num_vectors) where they are
                several.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: it has another shape or type, or is not finite.
        """
        several = (self.num_vectors,) if self.num_vectors > 1 else ()
        check_operand("x", x, (*self.shape[1:], *several), self.precision)
        check_finite("x", x)
        with compiled("spmv", self.arch, self.params).run(check=check) as run:
            self.fill(run, x)
            run.launch("main")
            sums = run["y", :, -1][:, self.front :].reshape(self.rows, self.tile[0], self.row)
            y = self.tiles.by_rows.collected(sums[..., : self.num_vectors]).reshape(-1, *several)
            return Result(y, cycles_of(run, self.arch))

    def fill(self, run: Run, x: NDArray[Any]) -> None:
        """Put A and x into the memories of PEs that run the plan's program."""
        size, capacity = (self.rows, self.columns), max(1, self.capacity)
        words, counts = self.tiles.packed(self.form, self.rows * self.columns, capacity)
        run["entries"] = words.reshape(*size, -1)
        run["num_groups"] = counts.astype(np.uint16).reshape(*size, 1)
        rows = np.pad(x.reshape(len(x), -1), [(0, 0), (0, self.row - self.num_vectors)])
        parts = self.tiles.by_columns.spread(rows, self.columns, self.tile[1])
        run["x", 0, :] = parts.reshape(self.columns, -1)

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "tile_rows": self.tile[0],
            "tile_columns": self.tile[1],
            "num_vectors": self.row,
            "width": self.width,
            "capacity": max(1, self.capacity),
            "shape": self.tree.shape.number,
            "group": self.tree.group,
            **self.precision.params,
        }


@takes_operands
def plan_spmv(
    a: Any,
    size: tuple[int, int],
    *,
    num_vectors: int = 1,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
    tree: Tree | None = None,
) -> SpmvPlan:
    """Plan y = A x for one sparse A on a rectangle of PEs.

    Args:
        a: a sparse matrix of scipy in any format, float32; duplicates are added up.
        size: rows and columns of PEs.
        num_vectors: columns of x, 1 or more.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``; the last two round the values to float16.
        tree: who adds up what along a row; None takes the best by the published model.

    Raises:
        OpenwaferError: A is not finite or of another type, or does not fit the fabric or a PE.
    """
    generation, numbers = known_arch(arch), named_precision(precision)
    check_rectangle(*size, generation)
    if num_vectors < 1:
        raise error("kernel-shape", f"x has {num_vectors} columns", help="give 1 or more")
    tiles = tiled(canonical(a, numbers), *size)
    rows, columns = tile_of(tiles, numbers)
    sums = rows * row_length(num_vectors, numbers)
    words = sums // numbers.in_wavelet
    best = tree or best_tree(size[1], sums, words, generation, is_staggered=True, slack=0)
    plans = [
        SpmvPlan(
            *(a.shape, *size, (rows, columns), tiles.most, width, tiles.most_groups(width)),
            *(generation, numbers, best, tiles, num_vectors),
        )
        for width in WIDTHS
    ]
    several = f" and {num_vectors} vectors" if num_vectors > 1 else ""
    what = f"a tile of {rows} x {columns} elements of {numbers} with {tiles.most} non-zeros"
    return fastest(plans, what + several)


@takes_operands
def spmv(
    a: Any,
    x: NDArray[Any],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
    tree: Tree | None = None,
) -> Result:
    """Product of a sparse matrix and a vector: (rows, columns) times (columns,) to (rows,).

    The error of each element is at most ``gamma(n) * |A| @ |x|`` with n = ``num_roundings`` of the
    plan, and half of the least number of the sums' type for each product; u is 2**-24 for f32 sums,
    2**-11 for f16. The order is that of the plan, so the bits repeat.

    Args:
        a: a sparse matrix of scipy in any format, float32; duplicates are added up.
        x: float32 for ``"f32"``, else float16.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``; the last two round A's values to float16.
        tree: who adds up what along a row; None takes the best by the published model.

    Raises:
        OpenwaferError: shape or type do not fit, values are not finite, or the rectangle or its
            memory is too small.
    """
    return plan_spmv(a, size, arch=arch, precision=precision, tree=tree).run(x)


@takes_operands
def spmm(
    a: Any,
    x: NDArray[Any],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
    tree: Tree | None = None,
) -> Result:
    """Product of a sparse and a dense matrix: (rows, columns) times (columns, n) to (rows, n).

    Each non-zero scales a row of x and adds it to one of y, in one operation. Arguments, bound and
    errors are those of :func:`spmv`, with x of two dims.
    """
    if x.ndim != 2 or x.shape[1] < 1:
        raise error("kernel-shape", f"x has the shape {x.shape}", help="give a matrix with columns")
    num_vectors = x.shape[1]
    plan = plan_spmv(a, size, arch=arch, precision=precision, tree=tree, num_vectors=num_vectors)
    if num_vectors > 1:
        return plan.run(x)
    result = plan.run(x[:, 0])
    return replace(result, values=result.values[:, None])
