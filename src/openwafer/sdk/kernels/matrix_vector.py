"""Matrix times vector on a rectangle of PEs."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.door.compiled import Param
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
    tiles_of,
    zeros_cycles,
)
from openwafer.sdk.kernels.running import (
    BROADCAST_CYCLES,
    CODE_BYTES,
    LOOK_CYCLES,
    MEMORY_BYTES,
    REDUCE_CYCLES,
    Result,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known_arch,
    transfer_cycles,
)
from openwafer.sdk.kernels.trees import Tree, best_tree, broadcast_cycles, start_delay

ALONG: Final = ("columns", "rows")


@dataclass(frozen=True)
class GemvPlan:
    """How y = A x is done, before anything is compiled.

    Each PE holds a tile of A. Parts of x go along a line of PEs, sums of y along a line across.

    Attributes:
        shape: rows and columns of A.
        rows: of PEs.
        columns: of PEs.
        along: where parts of x go: along ``"columns"`` of PEs, with the sums along rows to the
            east, or along ``"rows"``, with the sums along columns to the north.
        tile: rows and columns of A on a PE, with what is padded by zeros.
        arch: the generation.
        precision: types of elements and sums.
        tree: who adds up what along a line.
    """

    shape: tuple[int, int]
    rows: int
    columns: int
    along: str
    tile: tuple[int, int]
    arch: Arch
    precision: Precision
    tree: Tree

    @property
    def num_parts(self) -> tuple[int, int]:
        """Parts of the rows and of the columns of A, each of a tile's length."""
        size = self.rows, self.columns
        return size if self.along == "columns" else size[::-1]

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns of zeros beside A."""
        (rows, columns), (first, second) = self.tile, self.num_parts
        return first * rows - self.shape[0], second * columns - self.shape[1]

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        rows, columns = self.tile
        given, sums = self.precision.given.itemsize, self.precision.sums.itemsize
        twice = 1 if self.precision is Precision.F32 else 2
        return (rows + 1) * columns * given + twice * (rows * sums + FRONT_BYTES) + CODE_BYTES

    @property
    def product(self) -> Product:
        """What each PE multiplies."""
        return Product(*self.tile, 1, self.precision)

    @property
    def cycles(self) -> int:
        """Predicted cycles: x goes out, tiles are multiplied, sums come in."""
        rows, columns = self.tile
        num_across, num_along = self.num_parts
        words = columns * self.precision.given.itemsize // 4
        sent = broadcast_cycles(1, num_across, words, self.arch)
        sums, is_staggered = rows // self.precision.in_wavelet, self.along == "columns"
        summed = self.tree.cycles(num_along, sums, self.arch, is_staggered=is_staggered)
        summed += self.tree.command_cycles(num_along, sums, self.arch, is_staggered=is_staggered)
        late = start_delay(self.columns, self.arch) if is_staggered else 0
        # Sums are set to zero while x arrives, and both take beats.
        front = FRONT_BYTES // self.precision.sums.itemsize
        zeros = zeros_cycles(front + rows, self.precision, self.arch)
        timing = GENERATIONS[self.arch].timing
        # Where x is there before they are zero, its task follows another one.
        is_busy = zeros > timing.hop_cycles * (num_across - 1)
        phases = sent + zeros + (timing.switch_cycles - timing.task_cycles) * is_busy
        phases += self.product.cycles(self.arch) + summed + late
        around = sum(transfer_cycles(n, self.arch) for n in (BROADCAST_CYCLES, REDUCE_CYCLES))
        return round(LOOK_CYCLES + phases + around)

    @property
    def num_roundings(self) -> int:
        """The most roundings that a product goes through."""
        return self.tile[1] + self.tree.num_additions(self.num_parts[1])

    def error_bound(self, a: NDArray[Any], x: NDArray[Any]) -> NDArray[np.float64]:
        """Bound of the error of each element: ``gamma(num_roundings) * |A| @ |x|``, and half of
        the least number of the sums' type for each product.

        Args:
            a: (rows, columns), finite.
            x: (columns,), finite.
        """
        num_products = self.tile[1] * self.num_parts[1]
        return bound_of_products(a, x, self.num_roundings, num_products, self.precision.sums)

    @takes_operands
    def run(self, a: NDArray[Any], x: NDArray[Any], *, check: bool = False) -> Result:
        """Multiply on the simulated wafer.

        Args:
            a: (rows, columns) of the plan's shape and precision.
            x: (columns,) of the same precision.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type.
        """
        for name, values, shape in (("A", a, self.shape), ("x", x, self.shape[1:])):
            check_operand(name, values, shape, self.precision)
        program = compiled("gemv", self.arch, self.params)
        with program.run(check=check) as run:
            tiles = tiles_of(a, self.num_parts, self.tile)
            run["A"] = tiles.swapaxes(0, 1) if self.along == "rows" else tiles
            begins = ("x", slice(None), 0) if self.along == "rows" else ("x", 0, slice(None))
            run[begins] = np.pad(x, (0, self.padding[1])).reshape(self.num_parts[1], -1)
            run.launch("main")
            sums = run["y", 0] if self.along == "rows" else run["y", :, -1]
            front = FRONT_BYTES // sums.itemsize
            return Result(sums[:, front:].ravel()[: self.shape[0]], cycles_of(run, self.arch))

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "tile_rows": self.tile[0],
            "tile_columns": self.tile[1],
            "shape": self.tree.shape.number,
            "group": self.tree.group,
            "is_turned": self.along == "rows",
            **self.precision.params,
        }


@takes_operands
def plan_gemv(
    shape: tuple[int, int],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
    along: str | None = None,
    tree: Tree | None = None,
) -> GemvPlan:
    """Plan y = A x on a rectangle of PEs.

    Args:
        shape: rows and columns of A.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``.
        along: where parts of x go, ``"columns"`` or ``"rows"``; None takes what is predicted to
            take fewer cycles.
        tree: who adds up what along a line, such as the two levels of
            ``Tree(Shape.TWO_PHASE, 8)``; None takes the best by the published model.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE's memory.
    """
    generation, numbers = known_arch(arch), named_precision(precision)
    check_rectangle(*size, generation)
    if min(shape) < 1:
        raise error("kernel-shape", f"A has the shape {shape}", help="give a matrix with elements")
    if along not in (None, *ALONG):
        raise error("option-value", f"along is {along!r}", help=f"give {' or '.join(ALONG)}")
    ways = ALONG if along is None else (along,)
    plans = [_planned(shape, size, way, generation, numbers, tree) for way in ways]
    fitting = [plan for plan in plans if plan.memory_bytes <= MEMORY_BYTES] or plans
    plan = min(fitting, key=lambda plan: plan.cycles)
    rows, columns = plan.tile
    check_memory(plan.memory_bytes, f"a tile of {rows} x {columns} elements of {numbers}")
    return plan


def _planned(
    shape: tuple[int, int],
    size: tuple[int, int],
    along: str,
    arch: Arch,
    precision: Precision,
    tree: Tree | None,
) -> GemvPlan:
    parts = size if along == "columns" else size[::-1]
    rows, columns = map(tile_length, shape, parts, tile_multiples(precision))
    words, is_staggered = rows // precision.in_wavelet, along == "columns"
    best = tree or best_tree(parts[1], rows, words, arch, is_staggered=is_staggered, slack=0)
    return GemvPlan(shape, *size, along, (rows, columns), arch, precision, best)


@takes_operands
def gemv(
    a: NDArray[Any],
    x: NDArray[Any],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str | None = None,
    tree: Tree | None = None,
) -> Result:
    """Product of a matrix and a vector: (rows, columns) times (columns,) to (rows,).

    The error of each element is at most ``gamma(n) * |A| @ |x|`` with n roundings on the longest
    way, those of a tile's columns and of the tree, ``num_roundings`` of the plan, and half of the
    least number of the sums' type for each product; u is 2**-24 for f32 sums, 2**-11 for f16. The
    order is that of the plan, so the bits repeat.

    Args:
        a: float32 or float16.
        x: of the same type.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``; None sums float16 in f32.
        tree: who adds up what along a line; None takes the best by the published model.

    Raises:
        OpenwaferError: shape or type do not fit, or the rectangle or its memory is too small.
    """
    if a.ndim != 2:
        raise error("kernel-shape", f"A has the shape {a.shape}", help="give a matrix")
    numbers = precision_of(precision, a.dtype)
    plan = plan_gemv(a.shape, size, arch=arch, precision=numbers, tree=tree)
    return plan.run(a, x)
