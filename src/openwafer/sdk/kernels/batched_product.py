"""Products of many small matrices on a rectangle of PEs."""

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, WORD_BYTES, Arch
from openwafer.sdk.arch.pace import load_cycles
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.ir.prices import constant_product_cycles
from openwafer.sdk.kernels.operands import takes_operands
from openwafer.sdk.kernels.precision import (
    Precision,
    bound_of_products,
    named_precision,
    precision_of,
)
from openwafer.sdk.kernels.products import (
    FRONT_BYTES,
    Product,
    tile_length,
    tile_multiples,
    zeros_cycles,
)
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    LOOK_CYCLES,
    Result,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    is_written_out,
    known_arch,
    loop_cycles,
)
from openwafer.sdk.kernels.trees import start_delay

_CALL_WEIGHT: Final = 4
"""Of a product's call, in instructions as the compiler counts them."""


@dataclass(frozen=True)
class BatchedGemmPlan:
    """How C = A B is done for each of many pairs, before anything is compiled: each PE has its own.

    Attributes:
        num_products: pairs.
        shape: rows of A, columns of A, columns of B.
        rows: of PEs.
        columns: of PEs.
        arch: the generation.
        precision: types of elements and sums.
    """

    num_products: int
    shape: tuple[int, int, int]
    rows: int
    columns: int
    arch: Arch
    precision: Precision

    @property
    def per_pe(self) -> int:
        """Products of a PE."""
        return ceil(self.num_products / (self.rows * self.columns))

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows of A, columns of A and columns of B, with what is padded by zeros."""
        multiple, of_inner = tile_multiples(self.precision)
        rows, inner, columns = self.shape
        return tile_length(rows, 1, multiple), tile_length(inner, 1, of_inner), columns

    @property
    def padding(self) -> int:
        """Products of zeros behind the given ones."""
        return self.rows * self.columns * self.per_pe - self.num_products

    @property
    def product(self) -> Product:
        """What a PE multiplies for each pair."""
        return Product(*self.tile, self.precision)

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        rows, inner, columns = self.tile
        given, sums = self.precision.given.itemsize, self.precision.sums.itemsize
        of_pair = (rows + columns) * inner * given + rows * columns * sums
        others = 0 if self.precision is Precision.F32 else rows * sums + FRONT_BYTES
        return self.per_pe * of_pair + FRONT_BYTES + others + CODE_BYTES

    @property
    def cycles(self) -> int:
        """Predicted cycles: sums are set to zero, and products follow one another."""
        front = FRONT_BYTES // self.precision.sums.itemsize
        sums = front + self.per_pe * self.tile[0] * self.tile[2]
        begin = LOOK_CYCLES + start_delay(self.columns, self.arch)
        begin += load_cycles(1, GENERATIONS[self.arch].timing.load_latency)
        zeros = zeros_cycles(sums, self.precision, self.arch)
        products = self.per_pe * (self.product.cycles(self.arch) + self._call_cycles)
        around = 0 if self._is_written_out else loop_cycles(self.per_pe, self.arch)
        return begin + zeros + around + products

    @property
    def _is_written_out(self) -> bool:
        return is_written_out(_CALL_WEIGHT, self.per_pe)

    @property
    def _call_cycles(self) -> int:
        """Of the instructions that say where a product's three operands lie."""
        if self._is_written_out:
            return 3
        rows, inner, columns = self.tile
        lengths = {rows * inner, inner * columns, rows * columns}
        given, sums = self.precision.given.itemsize, self.precision.sums.itemsize
        # The product's number times a length, a shift for elements of two words, where the array
        # begins, and the front of C.
        shifts = 2 * (given > WORD_BYTES) + (sums > WORD_BYTES)
        return 3 + 1 + shifts + sum(constant_product_cycles(1, length) for length in lengths)

    def error_bound(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
        """Bound of each element's error: ``gamma(n) * |A| @ |B|`` for n columns of A, and half of
        the least number of the sums' type for each product.

        Args:
            a: (num_products, rows, inner), finite.
            b: (num_products, inner, columns), finite.
        """
        inner = self.tile[1]
        return bound_of_products(a, b, inner, inner, self.precision.sums)

    @takes_operands
    def run(self, a: NDArray[Any], b: NDArray[Any], *, check: bool = False) -> Result:
        """Multiply on the simulated wafer.

        Args:
            a: (num_products, rows, inner) of the plan's precision.
            b: (num_products, inner, columns) of the same precision.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type.
        """
        (m, k, n), (rows, inner, columns) = self.shape, self.tile
        operands = ("A", a, (m, k), (rows, inner)), ("B", b, (k, n), (inner, columns))
        for name, values, shape, _ in operands:
            check_operand(name, values, (self.num_products, *shape), self.precision)
        with compiled("batched_gemm", self.arch, self.params).run(check=check) as run:
            for name, values, shape, tile in operands:
                more = [(0, want - have) for want, have in zip(tile, shape, strict=True)]
                padded = np.pad(values, [(0, self.padding), *more])
                run[name] = padded.transpose(0, 2, 1).reshape(self.rows, self.columns, -1)
            run.launch("main")
            sums = run["C"][..., FRONT_BYTES // self.precision.sums.itemsize :]
            found = sums.reshape(-1, columns, rows).transpose(0, 2, 1)[: self.num_products, :m]
            return Result(found.copy(), cycles_of(run, self.arch))

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "num_products": self.per_pe,
            "tile_rows": self.tile[0],
            "inner": self.tile[1],
            "tile_columns": self.tile[2],
            **self.precision.params,
        }


@takes_operands
def plan_batched_gemm(
    num_products: int,
    shape: tuple[int, int, int],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
) -> BatchedGemmPlan:
    """Plan products of many small matrices on a rectangle of PEs.

    Args:
        num_products: pairs of matrices, 1 or more.
        shape: rows of A, columns of A, columns of B.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE's memory.
    """
    generation, numbers = known_arch(arch), named_precision(precision)
    check_rectangle(*size, generation)
    if min(num_products, *shape) < 1:
        what = f"{num_products} products of {shape}"
        raise error("kernel-shape", what, help="give matrices with elements")
    plan = BatchedGemmPlan(num_products, shape, *size, generation, numbers)
    check_memory(plan.memory_bytes, f"{plan.per_pe} products of {shape} elements of {numbers}")
    return plan


@takes_operands
def batched_gemm(
    a: NDArray[Any],
    b: NDArray[Any],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str | None = None,
) -> Result:
    """Products of many small matrices: (n, rows, inner) times (n, inner, columns).

    Each PE multiplies its own pairs, and nothing is sent. Errors are bounded as those of ``gemm``.

    Args:
        a: float32 or float16.
        b: of the same type.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``; None sums float16 in f32.

    Raises:
        OpenwaferError: shape or type do not fit, or the rectangle or its memory is too small.
    """
    if a.ndim != 3 or b.ndim != 3:
        shapes = f"{a.shape} and {b.shape}"
        raise error("kernel-shape", f"shapes are {shapes}", help="give two arrays of matrices")
    numbers = precision_of(precision, a.dtype)
    shape = (*a.shape[1:], b.shape[2])
    return plan_batched_gemm(len(a), shape, size, arch=arch, precision=numbers).run(a, b)
