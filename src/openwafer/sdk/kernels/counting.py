"""Counts of numbers in bins: the histogram of a vector that is spread over a rectangle of PEs."""

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import vector_cycles
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.collectives import CollectivePlan, plan_collective
from openwafer.sdk.kernels.operands import check_finite, takes_operands
from openwafer.sdk.kernels.precision import Precision, moved_as, moved_precision
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    Result,
    check_dims,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known_arch,
)
from openwafer.sdk.kernels.trees import params_of

_VALUE_CYCLES: Final = 65
"""Of a value that is in a bin, beside its loop's turn; five fewer in the last bin."""
_OTHER_CYCLES: Final = 26
"""Beside values, beats and the sum: limits, registers of three operations, the loop and a look."""
_MOST_COUNTED: Final = 2**24
"""Up to it float32 has all whole numbers."""


@dataclass(frozen=True)
class HistogramPlan:
    """How values are counted, before anything is compiled.

    PEs have equal parts of the vector and all edges. Each counts its own values, and counts are
    added up as by ``reduce``.

    Attributes:
        length: of the vector.
        num_bins: of equal width, up to float32's rounding of their edges.
        limits: the lowest edge and the highest one.
        sums: how the counts of PEs are added up.
        precision: of the values, ``"f32"`` or ``"f16"``; they are compared as float32.
    """

    length: int
    num_bins: int
    limits: tuple[float, float]
    sums: CollectivePlan
    precision: Precision = Precision.F32

    @property
    def per_pe(self) -> int:
        """Values of a PE, with what is padded by infinities, which no bin has."""
        return ceil(self.length / (self.sums.rows * self.sums.columns))

    @property
    def edges(self) -> NDArray[np.float32]:
        """Of the bins, one more than there are of these; a bin has its lower one, the last both."""
        return np.linspace(*self.limits, self.num_bins + 1).astype(np.float32)

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        given = 2 * self.per_pe if self.precision is Precision.F16 else 2
        return 4 * (2 * self.per_pe + 2 * self.num_bins + 1) + given + CODE_BYTES

    @property
    def cycles(self) -> int:
        """Predicted cycles where each value is in a bin; one that is in none takes fewer."""
        generation = GENERATIONS[self.sums.arch]
        operations = [("fsubs", self.per_pe), ("fmuls", self.per_pe), ("fmovs", self.num_bins)]
        if self.precision is Precision.F16:
            operations.append(("fh2s", self.per_pe))
        vectors = sum(vector_cycles(VECTOR_OPS[name], n, generation) for name, n in operations)
        value = _VALUE_CYCLES + generation.timing.loop_cycles
        return self.sums.cycles + _OTHER_CYCLES + vectors + self.per_pe * value

    @takes_operands
    def run(self, values: NDArray[Any], *, check: bool = False) -> Result:
        """Count on the simulated wafer.

        Args:
            values: (length,), of the plan's precision, finite.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type, or numbers that are none.
        """
        check_operand("values", values, (self.length,), self.precision)
        check_finite("values", values)
        rows, columns, edges = self.sums.rows, self.sums.columns, self.edges
        more = rows * columns * self.per_pe - self.length
        padded = np.pad(values, (0, more), constant_values=np.inf)
        with compiled("histogram", self.sums.arch, self.params).run(check=check) as run:
            run["values"] = padded.reshape(rows, columns, -1)
            run["edges"] = edges
            run.launch("main", self.num_bins / float(edges[-1] - edges[0]))
            counts = run["counts", 0, columns - 1].astype(np.int64)
            return Result(counts, cycles_of(run, self.sums.arch))

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.sums.rows,
            "columns": self.sums.columns,
            "length": self.per_pe,
            "num_bins": self.num_bins,
            "is_f16": self.precision is Precision.F16,
            **params_of(self.sums.row_tree, self.sums.column_tree),
        }


@takes_operands
def plan_histogram(
    length: int,
    num_bins: int,
    limits: tuple[float, float],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
) -> HistogramPlan:
    """Plan counts of numbers in bins of equal width.

    Args:
        length: of the vector, 1 to 2**24.
        num_bins: 1 or more.
        limits: the lowest edge and the highest one.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: of the values, ``"f32"`` or ``"f16"``.

    Raises:
        OpenwaferError: bins have no width as float32, or it does not fit the fabric or a PE's
            memory.
    """
    check_rectangle(*size, known_arch(arch))
    if not 1 <= length <= _MOST_COUNTED:
        what = f"a vector of {length:,} elements"
        raise error("kernel-length", what, help=f"give 1 to {_MOST_COUNTED:,}")
    if num_bins < 1:
        raise error("kernel-bins", f"{num_bins} bins", help="give 1 bin or more")
    sums = plan_collective("reduce", size, num_bins, arch=arch)
    plan = HistogramPlan(length, num_bins, limits, sums, moved_precision(precision))
    check_memory(plan.memory_bytes, f"{plan.per_pe} values of {plan.precision} and {num_bins} bins")
    _check_edges(plan)
    return plan


def _check_edges(plan: HistogramPlan) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        edges = plan.edges
        width = edges[-1] - edges[0]
        per_unit = np.float32(plan.num_bins) / width if width > 0 else np.float32(np.inf)
        is_right = bool((np.diff(edges) > 0).all() and np.isfinite([width, per_unit]).all())
    if not is_right:
        low, high = plan.limits
        raise error(
            "kernel-bins",
            f"{plan.num_bins} bins from {low:g} to {high:g} have no width as float32",
            help="give two finite limits, the lower one first, or fewer bins",
        )


@takes_operands
def histogram(
    values: NDArray[Any],
    num_bins: int,
    limits: tuple[float, float],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
) -> Result:
    """How many values each bin has: (length,) to (num_bins,) int64.

    They are those of ``numpy.histogram(values, plan.edges)``, none of them rounded: a value is
    compared with the edges of its bin. What is beyond the limits is not counted.

    Args:
        values: float32 or float16, finite, one dim.
        num_bins: of equal width.
        limits: the lowest edge and the highest one.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape, type, numbers or bins do not fit, or the rectangle or its memory is
            too small.
    """
    check_dims("values", values, "elements")
    precision = moved_as(values)
    plan = plan_histogram(len(values), num_bins, limits, size, arch=arch, precision=precision)
    return plan.run(values)
