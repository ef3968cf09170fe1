"""Iterative solvers for matrices that couple neighbouring cells, on a rectangle of PEs."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.operands import check_array, check_finite, takes_operands
from openwafer.sdk.kernels.precision import Precision, gamma
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known,
    known_arch,
)
from openwafer.sdk.kernels.star import Stencil
from openwafer.sdk.kernels.trees import (
    Tree,
    best_tree,
    broadcast_cycles,
    params_of,
    start_delay,
)

MAX_ITERATIONS: Final = 2_000
_ITERATIONS_TIMED: Final = (2, 6)
"""Of few cells."""
_CELLS_TIMED: Final = 5
"""The most rows and columns of them: a cell among them has neighbours that have neighbours."""
_NUM_SHARED: Final = 12
"""Columns of numbers that all solvers have on a PE, each with one for each of its cells."""


class Solver(StrEnum):
    """What is iterated."""

    CONJUGATE_GRADIENTS = "conjugate-gradients"
    PRECONDITIONED = "preconditioned"
    BICGSTAB = "bicgstab"
    POWER = "power"

    @property
    def num_columns(self) -> int:
        """Columns of numbers of its own."""
        match self:
            case Solver.CONJUGATE_GRADIENTS:
                return 4
            case Solver.PRECONDITIONED:
                return 6
            case Solver.BICGSTAB:
                return 7
            case Solver.POWER:
                return 2

    @property
    def sum_words(self) -> int:
        """Numbers that are added up at once."""
        return 2 if self in {Solver.PRECONDITIONED, Solver.BICGSTAB} else 1

    @property
    def num_sums(self) -> int:
        """How often an iteration waits for sums over all PEs."""
        match self:
            case Solver.CONJUGATE_GRADIENTS | Solver.PRECONDITIONED:
                return 2
            case Solver.BICGSTAB:
                return 3
            case Solver.POWER:
                return 1


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
        shape = check_array("storage", self.storage).shape
        if len(shape) != 3 or min(shape) < 1:
            raise error(
                "kernel-shape", f"storage has the shape {shape}", help="give three dims with cells"
            )
        faces = ("between_rows", "between_columns", "between_layers")
        wanted = {"storage": shape}
        for axis, name in enumerate(faces):
            wanted[name] = tuple(n - (axis == other) for other, n in enumerate(shape))
        for name, one in wanted.items():
            values = check_array(name, getattr(self, name))
            check_operand(name, values, one, Precision.F32)
            check_finite(name, values)

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
    """What a solver gives.

    Attributes:
        values: the solution, in the shape of the right side; of the power method the vector.
        norms: of the residual before the first iteration and behind each, each relative to the
            first one; of the power method that of the matrix's product with each vector.
        cycles: from the first PE's start to the last one's end, without the host's copies.
    """

    values: NDArray[Any]
    norms: NDArray[np.float64]
    cycles: int


@dataclass(frozen=True)
class SolverPlan:
    """How a solver iterates, before anything is compiled: a column of cells on each PE.

    Attributes:
        solver: what is iterated.
        shape: rows, columns and depth.
        iterations: the most.
        arch: the generation.
        row_tree: who adds up what along a row.
        column_tree: the same along the last column.
    """

    solver: Solver
    shape: tuple[int, int, int]
    iterations: int
    arch: Arch
    row_tree: Tree
    column_tree: Tree

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        columns = _NUM_SHARED + self.solver.num_columns
        return (
            Precision.F32.given.itemsize * (columns * self.shape[2] + self.iterations + 6)
            + CODE_BYTES
        )

    @property
    def cycles(self) -> int:
        """Predicted cycles, if no iteration is spared.

        PEs wait for their neighbours, and for sums over all. So columns of few cells take as long
        but for the sums, of which the published model says what they take longer on all PEs. A few
        iterations of these columns are simulated here.
        """
        rows, columns, depth = self.shape
        few = (min(rows, _CELLS_TIMED), min(columns, _CELLS_TIMED), depth)
        begun, later = _ITERATIONS_TIMED
        first, both = (
            _timed(plan_solver(self.solver, few, number, arch=self.arch))
            for number in _ITERATIONS_TIMED
        )
        fewer = plan_solver(self.solver, few, 1, arch=self.arch)
        of_columns = both + (both - first) / (later - begun) * (self.iterations - later)
        of_columns += start_delay(columns, self.arch) - start_delay(few[1], self.arch)
        # The first norm is a sum, too.
        num_sums = self.iterations * self.solver.num_sums + 1
        return round(of_columns + num_sums * (self.sum_cycles - fewer.sum_cycles))

    @property
    def sum_cycles(self) -> float:
        """Of a sum over all PEs, which begin at one time, and its way back to all."""
        rows, columns, words = *self.shape[:2], self.solver.sum_words
        there = self.row_tree.cycles(columns, words, self.arch)
        there += self.column_tree.cycles(rows, words, self.arch)
        return there + broadcast_cycles(rows, columns, words, self.arch)

    def residual_bound(self, matrix: Fluxes | Stencil, norms: NDArray[np.float64]) -> float:
        """Bound of the difference of the last residual's norm from that of b - A x, both by b's.

        Of conjugate gradients, to first order in the unit u of float32. The residual is updated
        beside the solution: in an iteration a product with 8 roundings and a rounding of both part
        them by ``17 u |A| |x| + u |r|``. Where the diagonal exceeds the other numbers of a row by
        d, no solution is longer than ``(|b| + |r|) / d``.

        Args:
            matrix: as of :meth:`run`.
            norms: of the solution, relative to the first.

        Raises:
            OpenwaferError: the solver is another one, which says less of its iterates.
        """
        if self.solver not in {Solver.CONJUGATE_GRADIENTS, Solver.PRECONDITIONED}:
            raise error(
                "kernel-bound",
                f"the residual of {self.solver} has no bound",
                help="take b - A x itself, or conjugate gradients",
            )
        arrays = {
            name: np.abs(one.astype(float)) for name, one in _arrays(matrix, self.shape).items()
        }
        diagonal = arrays.pop("diagonal")
        others = sum(arrays.values(), np.zeros(self.shape))
        exceeds = float((diagonal - others).min())
        if exceeds <= 0:
            return float("inf")
        iterations, dtype = len(norms) - 1, Precision.F32.sums
        solution = (1 + norms.max()) / exceeds * float((diagonal + others).max())
        # The diagonal of fluxes is a sum of 7; a norm is a product and its sums.
        parted = (
            gamma(17 * iterations + 7, dtype) * solution + gamma(iterations, dtype) * norms.max()
        )
        of_norm = 13 + self.shape[2].bit_length() + sum(self.shape[:2])
        return float(parted + 2 * gamma(of_norm, dtype) * norms[-1])

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        rows, columns, depth = self.shape
        return {
            "method": list(Solver).index(self.solver),
            "rows": rows,
            "columns": columns,
            "depth": depth,
            "max_iterations": self.iterations,
            **params_of(self.row_tree, self.column_tree),
        }

    @takes_operands
    def run(
        self,
        matrix: Fluxes | Stencil,
        given: NDArray[Any],
        tolerance: float = 0.0,
        *,
        check: bool = False,
    ) -> Solution:
        """Iterate on the simulated wafer, a solution from zeros on.

        Args:
            matrix: fluxes of the plan's shape, or a stencil of 7 points.
            given: the right side, or the first vector of the power method, of norm 1: (rows,
                columns, depth), float32.
            tolerance: ends when the residual's norm is at most this share of the first one; of no
                use to the power method.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type, or the tolerance is no share.
        """
        _check_given(self, given)
        if not 0 <= tolerance <= 1:
            help_ = "give a share of the first residual's norm, 0 to 1"
            raise error("kernel-tolerance", f"tolerance is {tolerance}", help=help_)
        arrays = _arrays(matrix, self.shape)
        with compiled("solver", self.arch, self.params).run(check=check) as run:
            run["given"] = given
            for name, values in arrays.items():
                run[name] = values
            run.launch("main", self.iterations, tolerance**2)
            done = int(run["num_iterations", 0, 0][0])
            squares = run["norms", 0, 0][: done + 1].astype(np.float64)
            norms = np.sqrt(squares / squares[0]) if squares[0] else np.zeros(done + 1)
            if self.solver is Solver.POWER:
                norms = norms[1:]
            return Solution(run["solution"].copy(), norms, cycles_of(run, self.arch))


def _check_given(plan: SolverPlan, given: NDArray[Any]) -> None:
    name = "the vector" if plan.solver is Solver.POWER else "the right side"
    if given.dtype == np.float16:
        raise error(
            "kernel-dtype",
            f"{name} is float16; solvers take float32, as sums of squares of float16 end at 65,504 "
            "and residuals at some 2**-11 of the first one",
            help="convert it, as in values.astype(np.float32)",
        )
    check_operand(name, given, plan.shape, Precision.F32)
    check_finite(name, given)
    squares = float(np.square(given.astype(np.float64)).sum())
    least, most = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
    if squares and not least <= squares <= most:
        raise error(
            "kernel-range",
            f"the sum of the squares of {name} is {squares:.3g}; float32 holds {least:.3g} "
            f"to {most:.3g}",
            help="scale it; the solution scales with it",
        )


def _timed(plan: SolverPlan) -> int:
    """Cycles of all iterations: of numbers that end none before, and take as long as any."""
    # By zeros residuals become infinite, or no numbers; others would be 0 after some iterations of
    # a few cells. The power method ends at zeros, and never with a matrix that changes nothing.
    own = 1.0 if plan.solver is Solver.POWER else 0.0
    vector = np.full(plan.shape, np.prod(plan.shape) ** -0.5, np.float32)
    return plan.run(Stencil({(0, 0, 0): 0.0}, own=own), vector).cycles


_SIDES: Final = ("to_north", "to_south", "to_west", "to_east", "to_below", "to_above")


def _arrays(matrix: Fluxes | Stencil, shape: tuple[int, int, int]) -> dict[str, NDArray[Any]]:
    """The diagonal, and what is taken off for each neighbour times its value."""
    if isinstance(matrix, Fluxes):
        check_operand("storage", matrix.storage, shape, Precision.F32)
        sides = [side for axis in range(3) for side in matrix.faces(axis)]
        return {"diagonal": matrix.diagonal, **dict(zip(_SIDES, sides, strict=True))}
    is_plain = matrix.scale is None and matrix.source is None and matrix.before == 0
    if not is_plain or matrix.boundary != "zero" or matrix.num_dims != 3 or max(matrix.reach) > 1:
        raise error(
            "kernel-stencil",
            f"a stencil of {matrix.num_dims} dims that reaches {matrix.reach} cells, with more "
            "than coefficients or other than zeros outside, is no matrix of a solver",
            help="give the coefficients of 7 points in three dims, and own at most",
        )
    factors = matrix.coefficients
    middle = factors.get((0, 0, 0), 0.0) + matrix.own
    found = {"diagonal": np.full(shape, middle, np.float32)}
    for number, name in enumerate(_SIDES):
        offset = [0, 0, 0]
        offset[number // 2] = 2 * (number % 2) - 1
        found[name] = np.full(shape, -factors.get(tuple(offset), 0.0), np.float32)
    return found


@takes_operands
def plan_solver(
    solver: str, shape: tuple[int, ...], iterations: int, *, arch: str = Arch.WSE3
) -> SolverPlan:
    """Plan a solver, a PE for each row and column of the array of cells.

    Args:
        solver: ``"conjugate-gradients"``, ``"preconditioned"`` (by one over the diagonal),
            ``"bicgstab"`` or ``"power"``.
        shape: rows, columns and depth.
        iterations: the most, 1 or more.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE's memory.
    """
    kind, generation = known("solver is", solver, Solver), known_arch(arch)
    if len(shape) != 3 or min(shape) < 1:
        raise error("kernel-shape", f"an array of the shape {shape}", help="give three dims")
    rows, columns, depth = shape
    check_rectangle(rows, columns, generation)
    if not 1 <= iterations <= MAX_ITERATIONS:
        help_ = f"give 1 to {MAX_ITERATIONS:,}"
        raise error("kernel-iterations", f"{iterations} iterations", help=help_)
    words = kind.sum_words
    trees = (best_tree(num_pes, words, words, generation) for num_pes in (columns, rows))
    size = (rows, columns, depth)
    plan = SolverPlan(kind, size, iterations, generation, *trees)
    check_memory(plan.memory_bytes, f"a column of {depth} cells and {iterations} iterations")
    return plan


@takes_operands
def conjugate_gradients(
    matrix: Fluxes | Stencil,
    right_side: NDArray[Any],
    iterations: int,
    tolerance: float = 0.0,
    *,
    is_preconditioned: bool = False,
    arch: str = Arch.WSE3,
) -> Solution:
    """Solve A u = b, in float32, a PE for each row and column of cells.

    Args:
        matrix: fluxes between cells, or a stencil of 7 points; symmetric and positive definite.
        right_side: (rows, columns, depth), float32.
        iterations: the most.
        tolerance: ends when the residual's norm is at most this share of the first one.
        is_preconditioned: by one over the diagonal (Jacobi).
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape or type do not fit, or the fabric or a PE's memory is too small.
    """
    solver = Solver.PRECONDITIONED if is_preconditioned else Solver.CONJUGATE_GRADIENTS
    plan = plan_solver(solver, right_side.shape, iterations, arch=arch)
    return plan.run(matrix, right_side, tolerance)


@takes_operands
def bicgstab(
    matrix: Fluxes | Stencil,
    right_side: NDArray[Any],
    iterations: int,
    tolerance: float = 0.0,
    *,
    arch: str = Arch.WSE3,
) -> Solution:
    """Solve A u = b of a matrix that need not be symmetric; see :func:`conjugate_gradients`."""
    plan = plan_solver(Solver.BICGSTAB, right_side.shape, iterations, arch=arch)
    return plan.run(matrix, right_side, tolerance)


@takes_operands
def power_method(
    matrix: Fluxes | Stencil, vector: NDArray[Any], iterations: int, *, arch: str = Arch.WSE3
) -> Solution:
    """The eigenvector of the eigenvalue of the largest magnitude, which the last norm is near to.

    Args:
        matrix: fluxes between cells, or a stencil of 7 points.
        vector: the first one, of any norm but 0: (rows, columns, depth), float32.
        iterations: their number.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape or type do not fit, the vector is zero, or the fabric or a PE's memory
            is too small.
    """
    plan = plan_solver(Solver.POWER, vector.shape, iterations, arch=arch)
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    if not np.isfinite(norm) or norm == 0:
        raise error(
            "kernel-values", f"the vector's norm is {norm}", help="give one with a direction"
        )
    return plan.run(matrix, (vector / norm).astype(vector.dtype))
