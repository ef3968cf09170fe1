"""Matrix times matrix on a rectangle of PEs."""

from dataclasses import dataclass
from math import lcm
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
    matrix_of,
    tile_length,
    tile_multiples,
    tiles_of,
    zeros_cycles,
)
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    LOOK_CYCLES,
    MEMORY_BYTES,
    Result,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known_arch,
)

_MOST_PANELS: Final = 64
"""Of a PE that a plan tries."""
_MAIN_CYCLES: Final = 95
"""Of the corner's first task until sums are set to zero: it sends and receives both ways."""
_OTHER_MAIN_CYCLES: Final = 74
"""Of a PE that does not send first: routes are set, and transfers begin both ways."""
_SENDS_CYCLES: Final = 30
"""Until the corner's first panel leaves."""
_RECEIVES_CYCLES: Final = 73
"""Until it receives the first one."""
_NEXT_SENDER_CYCLES: Final = 5
"""More of the PE that sends next: 17 of a task behind the first panel, 12 fewer of its first."""
_ARRIVED_CYCLES: Final = (39, 37)
"""Of the instructions of the two tasks that note a panel's halves."""
_NEXT_CYCLES: Final = 51
"""Of those of the task that multiplies: the next panel's transfers begin, and its addresses."""
_TRANSFERS_CYCLES: Final = 26
"""Of these, what the last panel has not: it begins no transfers."""
_END_CYCLES: Final = 3
"""Of two tasks that find a PE's turn to be over, and of the look at the clock."""


@dataclass(frozen=True)
class GemmPlan:
    """How C = A B is done, before anything is compiled: by SUMMA, with transfers behind products.

    Each PE holds a tile of A, of B and of C. In turn the columns of PEs send panels of A along
    their rows, and the rows of PEs panels of B along their columns; each PE adds their product to
    its tile of C while the next two panels arrive.

    Attributes:
        shape: rows of A, columns of A, columns of B.
        rows: of PEs.
        columns: of PEs.
        tile: rows and columns of C on a PE, with what is padded by zeros.
        panel: columns of A, and rows of B, that are multiplied at once.
        num_panels: a multiple of the rows and of the columns of PEs.
        arch: the generation.
        precision: types of elements and sums.
    """

    shape: tuple[int, int, int]
    rows: int
    columns: int
    tile: tuple[int, int]
    panel: int
    num_panels: int
    arch: Arch
    precision: Precision

    @property
    def padding(self) -> tuple[int, int, int]:
        """Rows of A, columns of A and columns of B that are zeros beside the given ones."""
        (rows, columns), (m, k, n) = self.tile, self.shape
        inner = self.panel * self.num_panels
        return self.rows * rows - m, inner - k, self.columns * columns - n

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        rows, columns = self.tile
        own = self.num_panels // self.columns * rows + self.num_panels // self.rows * columns
        held = self.panel * (own + 2 * (rows + columns)) * self.precision.given.itemsize
        others = 0 if self.precision is Precision.F32 else rows
        sums = (rows * columns + others) * self.precision.sums.itemsize + 2 * FRONT_BYTES
        return held + sums + CODE_BYTES

    @property
    def product(self) -> Product:
        """What each PE multiplies for a panel."""
        return Product(self.tile[0], self.panel, self.tile[1], self.precision)

    @property
    def words(self) -> int:
        """Wavelets of two panels, which a PE receives while it multiplies."""
        return self.panel * sum(self.tile) * self.precision.given.itemsize // 4

    @property
    def cycles(self) -> int:
        """Predicted cycles: the first panels arrive, and then all are multiplied.

        A PE does a beat a cycle, and its products go first, so words of the next two panels come
        in the cycles that products and instructions leave. A panel takes as long as those, or as
        all beats of the PE that sends both panels while it receives them like all others. Behind
        the last one no words come.
        """
        timing, product = GENERATIONS[self.arch].timing, self.product
        # The second task could run when the first one began.
        switches = 2 * timing.switch_cycles + timing.wavelet_switch_cycles
        multiplied = product.cycles(self.arch) + sum(_ARRIVED_CYCLES) + _NEXT_CYCLES + switches
        last = timing.task_cycles + _ARRIVED_CYCLES[1] + timing.switch_cycles
        moved = product.peak_cycles(self.arch) + 2 * self.words + last
        panels = (self.num_panels - 1) * max(multiplied, moved) + multiplied
        return round(self._begin_cycles + panels - _TRANSFERS_CYCLES + _END_CYCLES)

    @property
    def _begin_cycles(self) -> int:
        """Until a switch before the tasks that note the first panels.

        They come behind the first task or behind the words, of which the corner's PE sends and
        receives all, a beat each; another one waits for their way, or sends before it goes on.
        """
        timing = GENERATIONS[self.arch].timing
        front = FRONT_BYTES // self.precision.sums.itemsize
        zeros = zeros_cycles(front + self.tile[0] * self.tile[1], self.precision, self.arch)
        begin, switch = LOOK_CYCLES + zeros, timing.switch_cycles
        corner = max(_SENDS_CYCLES + 2 * self.words, _RECEIVES_CYCLES + self.words)
        found = [_MAIN_CYCLES, corner + timing.arrival_cycles + timing.task_cycles - switch]
        if self.rows * self.columns > 1:
            hops = timing.hop_cycles * (self.rows + self.columns)
            found.append(_OTHER_MAIN_CYCLES + hops + self.words)
        if self.columns > 1:
            later = switch - timing.wavelet_switch_cycles + timing.hop_cycles
            found.append(_MAIN_CYCLES + _NEXT_SENDER_CYCLES + later)
        return begin + max(found)

    @property
    def share_of_peak(self) -> float:
        """Predicted multiply-adds, padding included, of those that the datapath could do."""
        return self.num_panels * self.product.peak_cycles(self.arch) / self.cycles

    def error_bound(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
        """Bound of each element's error: ``gamma(n) * |A| @ |B|`` for n columns of A, with the
        padding, and half of the least number of the sums' type for each product.

        Args:
            a: (rows, inner), finite.
            b: (inner, columns), finite.
        """
        inner = self.panel * self.num_panels
        return bound_of_products(a, b, inner, inner, self.precision.sums)

    @takes_operands
    def run(self, a: NDArray[Any], b: NDArray[Any], *, check: bool = False) -> Result:
        """Multiply on the simulated wafer.

        Args:
            a: (rows, inner) of the plan's shape and precision.
            b: (inner, columns) of the same precision.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type.
        """
        for name, values, shape in (("A", a, self.shape[:2]), ("B", b, self.shape[1:])):
            check_operand(name, values, shape, self.precision)
        program = compiled("gemm", self.arch, self.params)
        with program.run(check=check) as run:
            own_inner = self.panel * self.num_panels // self.columns
            run["A"] = tiles_of(a, (self.rows, self.columns), (self.tile[0], own_inner))
            run["B"] = self._tiles_of_b(b)
            run.launch("main")
            sums = run["C"][..., FRONT_BYTES // self.precision.sums.itemsize :]
            whole = matrix_of(sums, self.tile, (self.shape[0], self.shape[2]))
            return Result(whole, cycles_of(run, self.arch))

    def _tiles_of_b(self, b: NDArray[Any]) -> NDArray[Any]:
        """Panel after panel, each by columns: (rows of PEs, columns of PEs, elements)."""
        _, more_inner, more_columns = self.padding
        padded = np.pad(b, [(0, more_inner), (0, more_columns)])
        panels = padded.reshape(self.rows, -1, self.panel, self.columns, self.tile[1])
        return panels.transpose(0, 3, 1, 4, 2).reshape(self.rows, self.columns, -1)

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "tile_rows": self.tile[0],
            "tile_columns": self.tile[1],
            "panel": self.panel,
            "num_panels": self.num_panels,
            **self.precision.params,
        }


@takes_operands
def plan_gemm(
    shape: tuple[int, int, int],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
    panel: int | None = None,
) -> GemmPlan:
    """Plan C = A B on a rectangle of PEs.

    Args:
        shape: rows of A, columns of A, columns of B.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``.
        panel: columns of A that are multiplied at once, at most; None takes what is predicted to
            take the fewest cycles of those that fit.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE's memory.
    """
    generation, numbers = known_arch(arch), named_precision(precision)
    check_rectangle(*size, generation)
    if min(shape) < 1:
        raise error("kernel-shape", f"a product of {shape}", help="give matrices with elements")
    if panel is not None and panel < 1:
        raise error("kernel-shape", f"panels of {panel} columns", help="give 1 column or more")
    multiple, of_inner = tile_multiples(numbers)
    tile = tile_length(shape[0], size[0], multiple), tile_length(shape[2], size[1], 1)
    plans = []
    for panels in range(1, _MOST_PANELS + 1):
        num_panels = lcm(*size) * panels
        width = tile_length(shape[1], num_panels, of_inner)
        plans.append(GemmPlan(shape, *size, tile, width, num_panels, generation, numbers))
    narrow = [plan for plan in plans if panel is None or plan.panel <= panel] or plans[-1:]
    fitting = [plan for plan in narrow if plan.memory_bytes <= MEMORY_BYTES]
    if not fitting:
        least = min(narrow, key=lambda plan: plan.memory_bytes)
        what = f"a tile of {tile[0]} x {tile[1]} elements of {numbers}, and those of A and B,"
        check_memory(least.memory_bytes, what)
    return min(fitting, key=lambda plan: plan.cycles)


@takes_operands
def gemm(
    a: NDArray[Any],
    b: NDArray[Any],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str | None = None,
) -> Result:
    """Product of two matrices: (rows, inner) times (inner, columns) to (rows, columns).

    The error of each element is at most ``gamma(n) * |A| @ |B|`` with n = ``panel * num_panels`` of
    the plan, and half of the least number of the sums' type for each product; u is 2**-24 for f32
    sums, 2**-11 for f16. Products are added in the order of A's columns, so the bits repeat, on any
    rectangle.

    Args:
        a: float32 or float16.
        b: of the same type.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``; None sums float16 in f32.

    Raises:
        OpenwaferError: shape or type do not fit, or the rectangle or its memory is too small.
    """
    if a.ndim != 2 or b.ndim != 2:
        shapes = f"{a.shape} and {b.shape}"
        raise error("kernel-shape", f"shapes are {shapes}", help="give two matrices")
    numbers = precision_of(precision, a.dtype)
    plan = plan_gemm((*a.shape, b.shape[1]), size, arch=arch, precision=numbers)
    return plan.run(a, b)
