"""Factors of square matrices on a rectangle of PEs: A = L U, and A = L L^T."""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.factorization_cycles import Walk
from openwafer.sdk.kernels.operands import check_finite, takes_operands
from openwafer.sdk.kernels.precision import Precision, gamma, have_inverses
from openwafer.sdk.kernels.products import matrix_of, tiles_of
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    Result,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known,
    known_arch,
)


class Factors(StrEnum):
    """What a matrix is a product of."""

    LU = "lu"
    CHOLESKY = "cholesky"


@dataclass(frozen=True)
class FactorizationPlan:
    """How the factors of a matrix are found, before anything is compiled: a tile on each PE.

    Attributes:
        factors: ``"lu"`` or ``"cholesky"``.
        order: rows and columns of the matrix.
        rows: of PEs.
        columns: of PEs.
        tile: rows and columns of the matrix on a PE, with what is padded by zeros.
        arch: the generation.
    """

    factors: Factors
    order: int
    rows: int
    columns: int
    tile: tuple[int, int]
    arch: Arch

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns of zeros behind the matrix."""
        return self.rows * self.tile[0] - self.order, self.columns * self.tile[1] - self.order

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        rows, columns = self.tile
        return Precision.F32.given.itemsize * (rows * columns + rows + 1 + columns) + CODE_BYTES

    @property
    def num_roundings(self) -> int:
        """The most that a product of factors goes through: one for each step, and the scaling's."""
        return self.order + (2 if self.factors is Factors.LU else 10)

    def error_bound(self, lower: NDArray[Any], upper: NDArray[Any]) -> NDArray[np.float64]:
        """Bound of each element's ``|A - L U|``: ``gamma(num_roundings) * |L| |U|``.

        It is the bound of Higham, theorem 9.3, with the roundings of a multiplication by one over
        the pivot in the place of a division's. What underflows may lose half of the least number:
        a product, or an element of L or U that is scaled, which its pivot multiplies again. No
        bound says how large ``|L| |U|`` is.

        Args:
            lower: L, (order, order).
            upper: U, or the transpose of L.
        """
        magnitudes = np.abs(lower.astype(np.float64)) @ np.abs(upper.astype(np.float64))
        relative = gamma(self.num_roundings, Precision.F32.sums)
        pivots = np.abs(np.diagonal(upper).astype(np.float64))
        num_lost = self.order + 1 + pivots + pivots[:, None]
        least = float(np.finfo(np.float32).smallest_subnormal) / 2
        return relative * magnitudes + least * num_lost * (1 + relative)

    @property
    def cycles(self) -> int:
        """Predicted cycles: what each PE does in each step, and what it waits for."""
        size, is_symmetric = (self.rows, self.columns), self.factors is Factors.CHOLESKY
        return Walk(self.order, size, self.tile, self.arch, is_symmetric).cycles()

    @takes_operands
    def run(self, a: NDArray[Any], *, check: bool = False) -> Result:
        """Factor a matrix on the simulated wafer.

        Args:
            a: (order, order), float32, finite; of a symmetric one the lower triangle is read.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: it has another shape or type, numbers that are none, or a pivot that has
                no inverse; of Cholesky, one that is not positive.
        """
        check_operand("A", a, (self.order, self.order), Precision.F32)
        check_finite("A", a)
        is_lu = self.factors is Factors.LU
        given = a if is_lu else np.tril(a) + np.tril(a, -1).T
        with compiled("factorization", self.arch, self.params).run(check=check) as run:
            run["A"] = tiles_of(given, (self.rows, self.columns), self.tile)
            run.launch("main")
            found = matrix_of(run["A"], self.tile, a.shape)
            self._check_pivots(found)
            return Result(found if is_lu else np.tril(found), cycles_of(run, self.arch))

    def _check_pivots(self, found: NDArray[Any]) -> None:
        pivots = np.diagonal(found)
        bad = ~have_inverses(pivots)
        # One over the root of what is negative or no normal number is a guess from its bits.
        least = np.sqrt(np.finfo(np.float32).smallest_normal)
        if self.factors is Factors.CHOLESKY:
            bad |= ~(pivots >= least)
            if bad.any():
                raise error(
                    "kernel-pivot",
                    f"A is not positive definite: pivot {int(bad.argmax())} is not positive",
                    help="take lu, or add to the diagonal",
                )
        elif bad.any():
            at = int(bad.argmax())
            raise error(
                "kernel-pivot",
                f"pivot {at} of A is zero, or no number from 2**-126 to 2**126: {pivots[at]:.6g}; "
                "rows are not exchanged",
                help="exchange rows before, so that no pivot is small, or scale A",
            )

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "tile_rows": self.tile[0],
            "tile_columns": self.tile[1],
            "order": self.order,
            "is_symmetric": self.factors is Factors.CHOLESKY,
        }


@takes_operands
def plan_factorization(
    factors: str, order: int, size: tuple[int, int], *, arch: str = Arch.WSE3
) -> FactorizationPlan:
    """Plan the factors of a square matrix, in float32, without exchanges of rows.

    Args:
        factors: ``"lu"`` or ``"cholesky"``.
        order: rows and columns of the matrix, 1 or more.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE's memory.
    """
    kind, generation = known("factors are", factors, Factors), known_arch(arch)
    rows, columns = size
    check_rectangle(rows, columns, generation)
    if order < 1:
        raise error("kernel-shape", f"a matrix of {order} rows", help="give 1 row or more")
    tile = (ceil(order / rows), ceil(order / columns))
    plan = FactorizationPlan(kind, order, rows, columns, tile, generation)
    check_memory(plan.memory_bytes, f"a tile of {tile[0]} x {tile[1]} elements of f32")
    return plan


@takes_operands
def lu(a: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3) -> Result:
    """Factors A = L U of a square matrix: U, and below its diagonal L, whose diagonal is ones.

    Rows are not exchanged, so A should be one that needs none: diagonally dominant by rows or
    columns, or symmetric and positive definite. Each element of ``|A - L U|`` is at most
    ``gamma(order + 2)`` times that of ``|L| |U|``.

    Args:
        a: (order, order), float32, finite.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape, type or numbers do not fit, the rectangle or its memory is too small,
            or a pivot has no inverse.
    """
    return _planned(Factors.LU, a, size, arch).run(a)


@takes_operands
def cholesky(a: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3) -> Result:
    """The factor L of a symmetric, positive definite matrix A = L L^T, lower triangular.

    Each element of ``|A - L L^T|`` is at most ``gamma(order + 10)`` times that of ``|L| |L|^T``.

    Args:
        a: (order, order), float32, finite; its lower triangle is read.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape, type or numbers do not fit, the rectangle or its memory is too small,
            or A is not positive definite.
    """
    return _planned(Factors.CHOLESKY, a, size, arch).run(a)


def _planned(
    factors: Factors, a: NDArray[Any], size: tuple[int, int], arch: str
) -> FactorizationPlan:
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise error("kernel-shape", f"A has the shape {a.shape}", help="give a square matrix")
    return plan_factorization(factors, len(a), size, arch=arch)
