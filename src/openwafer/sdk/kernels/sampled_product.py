"""Products of two dense matrices where a sparse one has non-zeros, on a rectangle of PEs."""

from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import VectorShape, vector_cycles
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.operands import check_finite, takes_operands
from openwafer.sdk.kernels.precision import Precision, bound_of_sums, gamma, named_precision
from openwafer.sdk.kernels.products import FRONT_BYTES, tile_length, tile_multiples
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    LOOK_CYCLES,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known_arch,
)
from openwafer.sdk.kernels.sparse_tiles import (
    WIDTHS,
    GroupForm,
    Tiles,
    canonical,
    fastest,
    tiled,
)
from openwafer.sdk.kernels.trees import broadcast_cycles

_TASK_CYCLES: Final = 62
"""Of the launched function, the tasks of two arrivals and the product's instructions beside its
groups, with the loop's first and last ones."""
_ROW_CYCLES: Final = 19
"""Of a non-zero's instructions, beside its products."""
_GROUP_CYCLES: Final = 26
"""Of a group's instructions beside its non-zeros."""


@dataclass(frozen=True, eq=False)
class SparseResult:
    """What a kernel gives back whose result is sparse.

    Attributes:
        values: by rows, float32.
        cycles: from the first PE's start to the last one's end, without the host's copies.
    """

    values: scipy.sparse.csr_array
    cycles: int


@dataclass(frozen=True, eq=False)
class SddmmPlan:
    """How C = S * (A B), element by element, is done for one sparse S, before anything is compiled.

    Non-zeros of S are dealt to the PEs as those of a sparse product are. Rows of A go along rows of
    PEs from the west edge, columns of B along columns of PEs from the north edge. Each PE
    multiplies its own non-zeros by products of a row and a column.

    Attributes:
        shape: rows and columns of S.
        inner: columns of A, and rows of B.
        rows: of PEs.
        columns: of PEs.
        tile: rows and columns of S on a PE.
        width: non-zeros of a group, all of one row; a group that is not full ends with zeros.
        capacity: groups of the PE that has most.
        arch: the generation.
        precision: types of elements and sums.
        tiles: where the non-zeros lie.
    """

    shape: tuple[int, int]
    inner: int
    rows: int
    columns: int
    tile: tuple[int, int]
    width: int
    capacity: int
    arch: Arch
    precision: Precision
    tiles: Tiles = field(repr=False)

    @property
    def row(self) -> int:
        """Elements of a row of A and of a column of B on a PE, with what is padded by zeros."""
        return tile_length(max(2, self.inner), 1, tile_multiples(self.precision)[0])

    @property
    def padding(self) -> int:
        """Zeros behind each row of A and each column of B."""
        return self.row - self.inner

    @property
    def form(self) -> GroupForm:
        """Of the groups in memory, which have values of the sums' type."""
        return GroupForm(self.width, _held(self.precision), self.row)

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        sizes = {self.precision.given, self.precision.sums}
        vectors = sum(self.tile) * self.row * sum(dtype.itemsize for dtype in sizes) + FRONT_BYTES
        products = self.width * (self.row + 1) * self.precision.sums.itemsize
        return max(1, self.capacity) * self.form.num_bytes + vectors + products + CODE_BYTES

    @property
    def cycles(self) -> int:
        """Predicted cycles: A and B go out, and the PE with most groups multiplies."""
        generation = GENERATIONS[self.arch]
        length = sum(self.tile) * self.row
        # Rows of A go to other columns of PEs, columns of B to other rows.
        moved = self.tile[0] * (self.columns > 1) + self.tile[1] * (self.rows > 1)
        words = moved * self.row * self.precision.given.itemsize // 4
        sent = broadcast_cycles(self.rows, self.columns, words, self.arch)
        if self.precision.is_widened:
            sent += vector_cycles(VECTOR_OPS["fh2s"], length, generation)
        # One task waits for the function's end, and the other one comes behind it.
        tasks = generation.timing.switch_cycles + generation.timing.wavelet_switch_cycles
        around = LOOK_CYCLES + _TASK_CYCLES + tasks
        return round(around + sent + self.capacity * self._group_cycles)

    @property
    def _group_cycles(self) -> int:
        generation = GENERATIONS[self.arch]
        letter, timing = "h" if self.precision is Precision.F16 else "s", generation.timing
        multiply, add = (VECTOR_OPS[name + letter] for name in ("fmul", "fadd"))
        products = VectorShape(strides=(self.width,))
        of_one = vector_cycles(multiply, self.row, generation, products)
        of_one += _ROW_CYCLES + timing.drain_cycles
        # Sums are updated in place, for which reads take turns.
        sums = 2 * self.row * ceil(self.width / add.rates[self.arch])
        return self.width * of_one + sums + _GROUP_CYCLES + timing.loop_cycles

    @property
    def num_roundings(self) -> int:
        """The most that a product goes through: its own, those of the sum, and of S."""
        return self.inner + 1

    def error_bound(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
        """Bound of the error of each non-zero, in the order of the matrix by rows, against S with
        its values as they are held: ``gamma(num_roundings) * |S| * (|A| |B|)``, and half of the
        least number of the sums' type for each product.

        Args:
            a: (rows, inner), finite.
            b: (inner, columns), finite.
        """
        entries, dtype = self.tiles.matrix.tocoo(), self.precision.sums
        rows = abs(a.astype(np.float64))[entries.row]
        sums = (rows * abs(b.T.astype(np.float64))[entries.col]).sum(1)
        scale = abs(entries.data.astype(np.float64))
        least = float(np.finfo(dtype).smallest_subnormal) / 2
        lost = (self.inner * least * scale + least) * (1 + gamma(self.num_roundings, dtype))
        overflow = np.isinf(bound_of_sums(sums, self.inner, dtype))
        bound = bound_of_sums(scale * sums, self.num_roundings, dtype) + lost
        return np.where(overflow, np.inf, bound)

    @takes_operands
    def run(self, a: NDArray[Any], b: NDArray[Any], *, check: bool = False) -> SparseResult:
        """Multiply on the simulated wafer.

        Args:
            a: (rows, inner) of the plan's precision, finite.
            b: (inner, columns) of the same precision, finite.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type, or are not finite.
        """
        of_a, of_b = (self.shape[0], self.inner), (self.inner, self.shape[1])
        for name, values, shape in (("A", a, of_a), ("B", b, of_b)):
            check_operand(name, values, shape, self.precision)
            check_finite(name, values)
        tiles, capacity = self.tiles, max(1, self.capacity)
        num_pes = self.rows * self.columns
        words, counts = tiles.packed(self.form, num_pes, capacity)
        with compiled("sddmm", self.arch, self.params).run(check=check) as run:
            size, first = (self.rows, self.columns), self.form.first_value
            run["places"] = words[..., :first].reshape(*size, -1)
            run["values"] = self._values(words).reshape(*size, -1)
            run["num_groups"] = counts.astype(np.uint16).reshape(*size, 1)
            run["A", :, 0] = self._parts(a, tiles.by_rows.spread, self.rows, self.tile[0])
            run["B", 0, :] = self._parts(b.T, tiles.by_columns.spread, self.columns, self.tile[1])
            run.launch("main")
            found = run["values"].reshape(num_pes, capacity, self.width)
            return SparseResult(tiles.with_values(found), cycles_of(run, self.arch))

    def _values(self, words: NDArray[np.uint16]) -> NDArray[Any]:
        form = self.form
        values = words[..., form.first_value :][..., : self.width * form.value_words]
        return np.ascontiguousarray(values).view(form.precision.given)

    def _parts(self, values: NDArray[Any], spread: Any, num_parts: int, length: int) -> Any:
        rows = np.pad(values, [(0, 0), (0, self.padding)])
        return spread(rows, num_parts, length).reshape(num_parts, -1)

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "tile_rows": self.tile[0],
            "tile_columns": self.tile[1],
            "inner": self.row,
            "width": self.width,
            "capacity": max(1, self.capacity),
            **self.precision.params,
        }


def _held(precision: Precision) -> Precision:
    """Of the values of S: that of the sums."""
    return Precision.F16 if precision is Precision.F16 else Precision.F32


@takes_operands
def plan_sddmm(
    s: Any,
    inner: int,
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
) -> SddmmPlan:
    """Plan C = S * (A B), element by element, for one sparse S on a rectangle of PEs.

    Args:
        s: a sparse matrix of scipy in any format, float32; duplicates are added up.
        inner: columns of A, and rows of B, 1 or more.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``; f16 rounds the values of S to float16.

    Raises:
        OpenwaferError: S is not finite or of another type, or does not fit the fabric or a PE.
    """
    generation, numbers = known_arch(arch), named_precision(precision)
    check_rectangle(*size, generation)
    if inner < 1:
        raise error("kernel-shape", f"A has {inner} columns", help="give 1 or more")
    tiles = tiled(canonical(s, _held(numbers)), *size)
    tile = tiles.by_rows.length, tiles.by_columns.length
    plans = [
        SddmmPlan(s.shape, inner, *size, tile, width, groups, generation, numbers, tiles)
        for width, groups in ((width, tiles.most_groups(width)) for width in WIDTHS)
    ]
    what = f"a tile of {tile[0]} x {tile[1]} rows of {inner} elements of {numbers}"
    return fastest(plans, f"{what} with {tiles.most} non-zeros")


@takes_operands
def sddmm(
    s: Any,
    a: NDArray[Any],
    b: NDArray[Any],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
) -> SparseResult:
    """Products of rows of A and columns of B where S has non-zeros, each times that of S.

    ``S * (A B)`` element by element; A B is never formed. The error of each is at most ``gamma(n) *
    |S| * (|A| |B|)`` with n = ``inner + 1``, and half of the least number of the sums' type for
    each product; u is 2**-24 for f32 sums, 2**-11 for f16.

    Args:
        s: a sparse matrix of scipy in any format, float32; duplicates are added up.
        a: (rows, inner), float32 for ``"f32"``, else float16.
        b: (inner, columns) of the same type.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``; f16 rounds the values of S to float16.

    Raises:
        OpenwaferError: shape or type do not fit, values are not finite, or the rectangle or its
            memory is too small.
    """
    if a.ndim != 2:
        raise error("kernel-shape", f"A has the shape {a.shape}", help="give a matrix")
    return plan_sddmm(s, a.shape[1], size, arch=arch, precision=precision).run(a, b)
