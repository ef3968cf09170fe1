"""Conjugate gradients for fluxes between cells, without a matrix, on a rectangle of PEs."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.door.run import Run
from openwafer.sdk.kernels.precision import Precision
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known_arch,
)
from openwafer.sdk.kernels.trees import Tree, best_tree

MAX_ITERATIONS: Final = 2_000
_NUM_COLUMNS: Final = 15
"""Of a PE, each with a number for each of its cells."""


@dataclass(frozen=True, eq=False)
class Fluxes:
    """A symmetric matrix: what flows out of each cell of an array of three dims.

    ``A u = storage * u + sum over faces of conductance * (u - u of the other cell)``. It is
    positive definite if conductances and storage are not negative and some storage is positive.

    Attributes:
        between_rows: conductances (rows - 1, columns, depth), float32.
        between_columns: (rows, columns - 1, depth).
        between_layers: (rows, columns, depth - 1).
        storage: (rows, columns, depth).
    """

    between_rows: NDArray[Any]
    between_columns: NDArray[Any]
    between_layers: NDArray[Any]
    storage: NDArray[Any]

    def __post_init__(self) -> None:
        shape = self.storage.shape
        if len(shape) != 3 or min(shape) < 1:
            raise error(
                "kernel-shape", f"storage has the shape {shape}", help="give three dims with cells"
            )
        faces = ("between_rows", "between_columns", "between_layers")
        wanted = {"storage": shape}
        for axis, name in enumerate(faces):
            wanted[name] = tuple(n - (axis == other) for other, n in enumerate(shape))
        for name, one in wanted.items():
            check_operand(name, getattr(self, name), one, Precision.F32)

    def faces(self, axis: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Conductances of each cell to the ones before and behind along an axis, 0 at the rim."""
        inner = (self.between_rows, self.between_columns, self.between_layers)[axis]
        pads = [(0, 0)] * 3
        pads[axis] = (1, 1)
        padded = np.pad(inner, pads)
        size = self.storage.shape[axis]
        return padded.take(range(size), axis), padded.take(range(1, size + 1), axis)

    @property
    def diagonal(self) -> NDArray[Any]:
        """Of the matrix."""
        total = self.storage.copy()
        for axis in range(3):
            before, behind = self.faces(axis)
            total += before + behind
        return total


@dataclass(frozen=True)
class Solution:
    """What conjugate gradients give.

    Attributes:
        values: the solution, in the shape of the right side.
        norms: of the residual before the first iteration and behind each, each relative to the
            first one.
        cycles: from the first PE's start to the last one's end, without the host's copies.
    """

    values: NDArray[Any]
    norms: NDArray[np.float64]
    cycles: int


@dataclass(frozen=True)
class ConjugateGradientsPlan:
    """How A u = b is solved, before anything is compiled: a column of cells on each PE.

    Attributes:
        shape: rows, columns and depth.
        iterations: the most.
        arch: the generation.
        row_tree: who adds up what along a row.
        column_tree: the same along the last column.
    """

    shape: tuple[int, int, int]
    iterations: int
    arch: Arch
    row_tree: Tree
    column_tree: Tree

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        elements = _NUM_COLUMNS * self.shape[2] + self.iterations + 4
        return Precision.F32.given.itemsize * elements + CODE_BYTES

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        rows, columns, depth = self.shape
        return {
            "rows": rows,
            "columns": columns,
            "depth": depth,
            "max_iterations": self.iterations,
            "row_shape": self.row_tree.shape.number,
            "row_group": self.row_tree.group,
            "column_shape": self.column_tree.shape.number,
            "column_group": self.column_tree.group,
        }

    def run(
        self,
        fluxes: Fluxes,
        right_side: NDArray[Any],
        tolerance: float = 0.0,
        *,
        check: bool = False,
    ) -> Solution:
        """Solve on the simulated wafer, beginning with zeros.

        Args:
            fluxes: the matrix, of the plan's shape.
            right_side: (rows, columns, depth), float32.
            tolerance: ends when the residual's norm is at most this share of the first one.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type.
        """
        check_operand("storage", fluxes.storage, self.shape, Precision.F32)
        check_operand("the right side", right_side, self.shape, Precision.F32)
        with compiled("conjugate_gradient", self.arch, self.params).run(check=check) as run:
            self._give(run, fluxes, right_side)
            run.launch("main", self.iterations, tolerance**2)
            done = int(run["num_iterations", 0, 0][0])
            squares = run["norms", 0, 0][: done + 1].astype(np.float64)
            norms = np.sqrt(squares / squares[0]) if squares[0] else np.zeros(done + 1)
            return Solution(run["solution"].copy(), norms, cycles_of(run, self.arch))

    def _give(self, run: Run, fluxes: Fluxes, right_side: NDArray[Any]) -> None:
        run["residual"], run["diagonal"] = right_side, fluxes.diagonal
        run["to_north"], run["to_south"] = fluxes.faces(0)
        run["to_west"], run["to_east"] = fluxes.faces(1)
        run["along_depth"] = np.pad(fluxes.between_layers, [(0, 0), (0, 0), (1, 1)])


def plan_conjugate_gradients(
    shape: tuple[int, ...], iterations: int, *, arch: str = Arch.WSE3
) -> ConjugateGradientsPlan:
    """Plan conjugate gradients, a PE for each row and column of the array.

    Args:
        shape: rows, columns and depth.
        iterations: the most, 1 or more.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE's memory.
    """
    generation = known_arch(arch)
    if len(shape) != 3 or min(shape) < 1:
        raise error("kernel-shape", f"an array of the shape {shape}", help="give three dims")
    rows, columns, depth = shape
    check_rectangle(rows, columns, generation)
    if not 1 <= iterations <= MAX_ITERATIONS:
        help_ = f"give 1 to {MAX_ITERATIONS:,}"
        raise error("kernel-iterations", f"{iterations} iterations", help=help_)
    trees = (best_tree(num_pes, 1, 1, generation) for num_pes in (columns, rows))
    plan = ConjugateGradientsPlan((rows, columns, depth), iterations, generation, *trees)
    check_memory(plan.memory_bytes, f"a column of {depth} cells and {iterations} iterations")
    return plan


def conjugate_gradients(
    fluxes: Fluxes,
    right_side: NDArray[Any],
    iterations: int,
    tolerance: float = 0.0,
    *,
    arch: str = Arch.WSE3,
) -> Solution:
    """Solve A u = b for fluxes between cells, in float32, a PE for each row and column.

    Args:
        fluxes: the matrix; positive definite.
        right_side: (rows, columns, depth), float32.
        iterations: the most.
        tolerance: ends when the residual's norm is at most this share of the first one.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape or type do not fit, or the fabric or a PE's memory is too small.
    """
    plan = plan_conjugate_gradients(fluxes.storage.shape, iterations, arch=arch)
    return plan.run(fluxes, right_side, tolerance)
