"""Systems with a triangular matrix on a rectangle of PEs: L X = B."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.operands import check_finite, takes_operands
from openwafer.sdk.kernels.precision import Precision, bound_of_products, have_inverses
from openwafer.sdk.kernels.products import matrix_of, tiles_of
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    MEMORY_BYTES,
    Result,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known_arch,
)
from openwafer.sdk.kernels.triangular_cycles import Walk


@dataclass(frozen=True)
class TriangularPlan:
    """How L X = B is solved, before anything is compiled.

    L lies on the columns of PEs in the west, B on those in the east; one column alone has both.

    Attributes:
        order: rows and columns of L.
        num_columns: of B.
        rows: of PEs.
        columns: of PEs.
        factor_columns: of PEs that have L; 0 where the only column has both.
        arch: the generation.
    """

    order: int
    num_columns: int
    rows: int
    columns: int
    factor_columns: int
    arch: Arch

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows, columns of L, and columns of B on a PE, with what is padded by zeros."""
        of_b = self.columns - self.factor_columns
        of_factor = ceil(self.order / max(1, self.factor_columns))
        return ceil(self.order / self.rows), of_factor, ceil(self.num_columns / of_b)

    @property
    def padding(self) -> tuple[int, int]:
        """Rows of zeros behind L and B, and columns of zeros behind B."""
        rows, _, width = self.tile
        more = (self.columns - self.factor_columns) * width - self.num_columns
        return self.rows * rows - self.order, more

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        rows, columns, width = self.tile
        held = columns + width if self.factor_columns == 0 else max(columns, width)
        return 4 * (rows * held + rows + 1 + width) + CODE_BYTES

    @property
    def cycles(self) -> int:
        """Predicted cycles: columns of L leave, and rows of X go down, as PEs need them."""
        size = self.rows, self.columns
        return Walk(self.order, *size, self.factor_columns, self.tile, self.arch).cycles()

    @property
    def num_roundings(self) -> int:
        """The most that a product goes through: one for each step, and the scaling's two."""
        return self.order + 1

    def error_bound(self, a: NDArray[Any], x: NDArray[Any]) -> NDArray[np.float64]:
        """Bound of each element's ``|B - L X|`` for the X that is found: ``gamma(num_roundings) *
        |L| |X|``, and half of the least number for each product, and for X times its pivot.

        It is the bound of Higham, theorem 8.5, with the roundings of a multiplication by one over
        the pivot in the place of a division's.

        Args:
            a: L, (order, order).
            x: (order, num_columns) or (order,).
        """
        bound = bound_of_products(a, x, self.num_roundings, self.order, np.dtype(np.float32))
        least = float(np.finfo(np.float32).smallest_subnormal) / 2
        pivots = np.abs(np.diagonal(a).astype(np.float64))
        return bound + 2 * least * pivots.reshape(-1, *[1] * (x.ndim - 1))

    @takes_operands
    def run(self, a: NDArray[Any], b: NDArray[Any], *, check: bool = False) -> Result:
        """Solve on the simulated wafer.

        Args:
            a: (order, order), float32, finite; its lower triangle is read.
            b: (order, num_columns), float32, finite; (order,) where it is one.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type, or numbers that are none, or an element
                of the diagonal has no inverse.
        """
        several = (self.num_columns,) if b.ndim > 1 or self.num_columns > 1 else ()
        shapes = ("A", a, (self.order, self.order)), ("B", b, (self.order, *several))
        for name, values, shape in shapes:
            check_operand(name, values, shape, Precision.F32)
            check_finite(name, values)
        _check_pivots(np.diagonal(a))
        rows, columns, width = self.tile
        has_b = slice(self.factor_columns, None)
        has_factor = slice(0, max(1, self.factor_columns))
        with compiled("triangular", self.arch, self.params).run(check=check) as run:
            parts = (self.rows, max(1, self.factor_columns))
            run["L", :, has_factor] = tiles_of(np.tril(a), parts, (rows, columns))
            parts = (self.rows, self.columns - self.factor_columns)
            run["B", :, has_b] = tiles_of(b.reshape(self.order, -1), parts, (rows, width))
            run.launch("main")
            whole = (self.order, self.num_columns)
            found = matrix_of(run["B", :, has_b], (rows, width), whole)
            return Result(found.reshape(b.shape), cycles_of(run, self.arch))

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        rows, columns, width = self.tile
        return {
            "rows": self.rows,
            "columns": self.columns,
            "factor_columns": self.factor_columns,
            "tile_rows": rows,
            "tile_columns": columns,
            "width": width,
            "order": self.order,
        }


def _check_pivots(pivots: NDArray[Any]) -> None:
    bad = ~have_inverses(pivots)
    if bad.any():
        at = int(bad.argmax())
        raise error(
            "kernel-pivot",
            f"element {at} of A's diagonal is {pivots[at]:.6g}",
            help="give a diagonal whose magnitudes are from 2**-126 to 2**126",
        )


@takes_operands
def plan_triangular(
    order: int, num_columns: int, size: tuple[int, int], *, arch: str = Arch.WSE3
) -> TriangularPlan:
    """Plan X of L X = B for a lower triangular L, in float32.

    Args:
        order: rows and columns of L, 1 or more.
        num_columns: of B, 1 or more.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE's memory.
    """
    generation = known_arch(arch)
    check_rectangle(*size, generation)
    if min(order, num_columns) < 1:
        what = f"a matrix of {order} rows and a right side of {num_columns} columns"
        raise error("kernel-shape", what, help="give 1 or more of both")
    one = TriangularPlan(order, num_columns, *size, 0, generation)
    splits = range(1, size[1]) if size[1] > 1 else range(1)
    plans = [replace(one, factor_columns=split) for split in splits]
    least = min(plans, key=lambda plan: plan.memory_bytes)
    rows, columns, width = least.tile
    tiles = f"tiles of {rows} x {columns} and {rows} x {width} elements of f32"
    check_memory(least.memory_bytes, tiles)
    fitting = [plan for plan in plans if plan.memory_bytes <= MEMORY_BYTES]
    # Fewer columns of B on a PE take fewer cycles, and nothing else of a split counts.
    return min(fitting, key=lambda plan: plan.tile[2])


@takes_operands
def trsm(
    a: NDArray[Any],
    b: NDArray[Any],
    size: tuple[int, int],
    *,
    is_lower: bool = True,
    arch: str = Arch.WSE3,
) -> Result:
    """X of A X = B for a triangular A.

    Each element of ``|B - A X|`` is at most ``gamma(order + 1)`` times that of ``|A| |X|``, and
    half of the least number for each product; u is 2**-24.

    Args:
        a: (order, order), float32, finite; one triangle is read.
        b: (order, columns), or (order,), float32, finite.
        size: rows and columns of PEs.
        is_lower: which triangle.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape, type or numbers do not fit, the rectangle or its memory is too small,
            or an element of the diagonal has no inverse.
    """
    if a.ndim != 2 or b.ndim not in (1, 2):
        shapes = f"{a.shape} and {b.shape}"
        raise error("kernel-shape", f"shapes are {shapes}", help="give a square matrix and columns")
    num_columns = 1 if b.ndim == 1 else b.shape[1]
    plan = plan_triangular(len(a), num_columns, size, arch=arch)
    if is_lower:
        return plan.run(a, b)
    found = plan.run(a[::-1, ::-1], b[::-1])
    return replace(found, values=found.values[::-1].copy())
