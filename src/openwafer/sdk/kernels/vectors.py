"""Operations on vectors that are spread over a rectangle of PEs: level 1 of BLAS."""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.collectives import CollectivePlan, plan_collective
from openwafer.sdk.kernels.operands import takes_operands
from openwafer.sdk.kernels.operations import (
    MEETS,
    Operation,
    chain_cycles,
    of_one,
    of_two,
    that_meet,
)
from openwafer.sdk.kernels.precision import (
    Precision,
    bound_of_products,
    bound_of_sums,
    gamma,
    named_precision,
    precision_of,
)
from openwafer.sdk.kernels.products import FRONT_BYTES
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    LOOK_CYCLES,
    Result,
    check_length,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known,
    known_arch,
)
from openwafer.sdk.kernels.trees import Tree, params_of, start_delay

FEW: Final = 12
"""Elements that ``<kernels/fold>`` adds one by one."""
_ROOT_CYCLES: Final = 13
"""Of the instructions of a norm around its root, and of what they wait for."""
_TEST_CYCLES: Final = 20
"""Of those that find out whether its squares are to be taken again."""


class VectorOperation(StrEnum):
    """What is done with vectors x and y and a number alpha, by the names of BLAS."""

    AXPY = "axpy"
    SCAL = "scal"
    DOT = "dot"
    NRM2 = "nrm2"
    ASUM = "asum"

    @property
    def has_sum(self) -> bool:
        """Whether the result is a number."""
        return self not in (VectorOperation.AXPY, VectorOperation.SCAL)

    @property
    def has_y(self) -> bool:
        """Whether there are two vectors."""
        return self in (VectorOperation.AXPY, VectorOperation.DOT)


@dataclass(frozen=True)
class VectorPlan:
    """How an operation on vectors is done, before anything is compiled.

    Attributes:
        operation: what is done.
        length: elements of a vector.
        rows: of PEs.
        columns: of PEs.
        part: elements on a PE, with what is padded by zeros.
        arch: the generation.
        precision: types of elements and sums.
        sum: of the PEs' parts of the result; None where the result is a vector.
    """

    operation: VectorOperation
    length: int
    rows: int
    columns: int
    part: int
    arch: Arch
    precision: Precision
    sum: CollectivePlan | None

    @property
    def padding(self) -> int:
        """Zeros behind a vector."""
        return self.rows * self.columns * self.part - self.length

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        held = self.part * self.precision.given.itemsize * (1 + self.operation.has_y) + FRONT_BYTES
        if self.sum:
            is_wide = self.precision.is_widened and self.operation is VectorOperation.DOT
            held += (self.part + 1) * self.precision.sums.itemsize * (1 + is_wide)
        return held + CODE_BYTES

    @property
    def num_roundings(self) -> int:
        """The most that an element goes through."""
        if not self.sum:
            return 1
        *halved, few = _left(self.part)
        multiplies = self.operation is not VectorOperation.ASUM
        return multiplies + len(halved) + few + self.sum.num_additions

    @property
    def cycles(self) -> int:
        """Predicted cycles: operations on a PE's part, and the sum over all PEs."""
        letter = "h" if self.precision is Precision.F16 else "s"
        timing = GENERATIONS[self.arch].timing
        match self.operation:
            case VectorOperation.AXPY:
                updates = self.precision is Precision.F16
                operations = (that_meet if updates else of_two)("fmac" + letter)
            case VectorOperation.SCAL:
                operations = of_one("fmul" + letter)
            case VectorOperation.DOT:
                operations = of_two("fmul" + letter)
            case VectorOperation.NRM2:
                # Both factors are read from one place.
                operations = that_meet("fmuls")
            case VectorOperation.ASUM:
                operations = of_one("fabs" + letter)
        if not self.sum:
            begin = LOOK_CYCLES + start_delay(self.columns, self.arch)
            taken = chain_cycles(operations, self.part, self.arch)
            return begin + taken + timing.drain_cycles
        if self.precision.is_widened:
            operations += (1 + self.operation.has_y) * of_one("fh2s")
        taken = chain_cycles(operations, self.part, self.arch)
        taken += fold_cycles(self.part, "fadd" + letter, self.arch) + self.sum.cycles
        if self.operation is VectorOperation.NRM2:
            taken += timing.function_cycles + _ROOT_CYCLES
            taken += 0 if self.precision.is_widened else _TEST_CYCLES
        return taken

    @takes_operands
    def error_bound(
        self, x: NDArray[Any], y: NDArray[Any] | None = None, alpha: float = 1.0
    ) -> NDArray[np.float64]:
        """Bound of the error of the result, of each element of a vector.

        Args:
            x: finite.
            y: finite, where the operation has one.
            alpha: rounded to the elements' type.
        """
        dtype, given = self.precision.sums, x.astype(np.float64)
        least = float(np.finfo(dtype).smallest_subnormal) / 2
        if self.operation is VectorOperation.DOT and y is not None:
            bounds = bound_of_products(given[None], y, self.num_roundings, x.size, dtype)
            return bounds.reshape(())
        if self.operation is VectorOperation.NRM2:
            # The root's rounding, and squares that may be lost beside a larger sum.
            exact = np.asarray(np.hypot.reduce(given, initial=0.0))
            return bound_of_sums(exact, self.num_roundings + 2, dtype) + least
        if self.operation is VectorOperation.ASUM:
            return bound_of_sums(np.abs(given).sum(), self.num_roundings, dtype)
        factor = abs(float(self.precision.given.type(alpha)))
        magnitudes = factor * np.abs(given) + (0 if y is None else np.abs(y.astype(np.float64)))
        return bound_of_sums(magnitudes, 1, dtype) + least * (1 + gamma(1, dtype))

    @takes_operands
    def run(
        self,
        x: NDArray[Any],
        y: NDArray[Any] | None = None,
        alpha: float = 1.0,
        *,
        check: bool = False,
    ) -> Result:
        """Do it on the simulated wafer.

        Args:
            x: (length,) of the plan's precision.
            y: the same; None where the operation has none.
            alpha: of axpy and scal.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type, or a vector is missing or too many.
        """
        if (y is None) == self.operation.has_y:
            taken = "two vectors" if self.operation.has_y else "one vector"
            raise error("kernel-operands", f"{self.operation} takes {taken}", help=f"give {taken}")
        vectors = {"x": x} if y is None else {"x": x, "y": y}
        for name, values in vectors.items():
            check_operand(name, values, (self.length,), self.precision)
        factor = self._factor(alpha)
        with compiled("vectors", self.arch, self.params).run(check=check) as run:
            for name, values in vectors.items():
                parts = np.pad(values, (0, self.padding)).reshape(self.rows, self.columns, -1)
                run[name] = np.pad(parts, [(0, 0), (0, 0), (self._front if name == "y" else 0, 0)])
            run.launch("main", factor)
            if self.sum:
                return Result(run["total", 0, 0][:1].reshape(()), cycles_of(run, self.arch))
            parts = run["y"][..., self._front :] if self.operation.has_y else run["x"]
            return Result(parts.ravel()[: self.length].copy(), cycles_of(run, self.arch))

    def _factor(self, alpha: float) -> Any:
        """Alpha as an element, which is refused if it becomes infinite."""
        with np.errstate(over="ignore"):
            factor = self.precision.given.type(alpha)
        if np.isinf(factor):
            most = float(np.finfo(factor.dtype).max)
            raise error(
                "kernel-range",
                f"alpha is {float(alpha):g}; elements are {factor.dtype}, which ends at {most:g}",
                help="take a smaller one, and scale in two steps",
            )
        return factor

    @property
    def _front(self) -> int:
        return FRONT_BYTES // self.precision.given.itemsize

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        trees = (self.sum.row_tree, self.sum.column_tree) if self.sum else (None, None)
        return {
            "rows": self.rows,
            "columns": self.columns,
            "length": self.part,
            "operation": list(VectorOperation).index(self.operation),
            **params_of(*trees),
            **self.precision.params,
        }


def _left(length: int) -> list[int]:
    """Elements that ``<kernels/fold>`` has left before each level, and at last one by one."""
    left = [length]
    while left[-1] > FEW:
        left.append((left[-1] + 1) // 2)
    return left


def fold_cycles(length: int, name: str, arch: Arch) -> int:
    """Cycles of ``<kernels/fold>``, which adds up elements by an operation of this name.

    The total is set to zero and waits for the results that are added one by one.
    """
    *halved, few = _left(length)
    halves, ones = Operation(name, turns=MEETS), Operation(name, 1, accumulates=True)
    taken = sum(halves.cycles(num // 2, arch) for num in halved) + ones.cycles(few, arch)
    return taken + GENERATIONS[arch].timing.drain_cycles + 1


@takes_operands
def plan_vector(
    operation: str,
    length: int,
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
    tree: Tree | None = None,
) -> VectorPlan:
    """Plan an operation on vectors that are spread over a rectangle of PEs.

    Args:
        operation: ``"axpy"``, ``"scal"``, ``"dot"``, ``"nrm2"`` or ``"asum"``.
        length: elements of a vector, 1 or more.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"``, or of a sum ``"f16-f32"``.
        tree: who adds up what along a line; None takes the best by the published model.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE's memory, or squares of f16 were asked
            for in f16.
    """
    kind, generation = known("operation is", operation, VectorOperation), known_arch(arch)
    numbers = named_precision(precision)
    rows, columns = size
    check_rectangle(rows, columns, generation)
    check_length(length, f"a vector of {length} elements")
    _check_precision(kind, numbers)
    part = ceil(length / (rows * columns))
    summed = None
    if kind.has_sum:
        sums = Precision.F16 if numbers is Precision.F16 else Precision.F32
        summed = plan_collective("all-reduce", size, 1, arch=arch, precision=sums, tree=tree)
    plan = VectorPlan(kind, length, rows, columns, part, generation, numbers, summed)
    check_memory(plan.memory_bytes, f"{part} elements a PE of {numbers}")
    return plan


def _check_precision(operation: VectorOperation, precision: Precision) -> None:
    if not operation.has_sum and precision.is_widened:
        raise error(
            "kernel-precision",
            f"{operation} has no sums, so {precision} says nothing",
            help="take f16 or f32",
        )
    if operation is VectorOperation.NRM2 and precision is Precision.F16:
        raise error(
            "kernel-precision",
            "squares of f16 elements from 256 on leave its range",
            help="take f16-f32, whose sums are f32",
        )


@takes_operands
def axpy(
    alpha: float, x: NDArray[Any], y: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3
) -> Result:
    """``alpha x + y``, each element with one rounding.

    Args:
        alpha: a number, rounded to the elements' type.
        x: (length,), float32 or float16.
        y: of the same shape and type.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape or type do not fit, or the rectangle or its memory is too small.
    """
    return _elementwise(VectorOperation.AXPY, x, size, arch).run(x, y, alpha)


@takes_operands
def scal(alpha: float, x: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3) -> Result:
    """``alpha x``, each element with one rounding; see :func:`axpy`."""
    return _elementwise(VectorOperation.SCAL, x, size, arch).run(x, None, alpha)


@takes_operands
def dot(
    x: NDArray[Any],
    y: NDArray[Any],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str | None = None,
) -> Result:
    """Sum of the products of two vectors' elements, a number that all PEs have.

    The error is at most ``gamma(n) * sum(|x| |y|)`` with ``num_roundings`` of the plan, and half of
    the sums' least number for each product.

    Args:
        x: (length,), float32 or float16.
        y: of the same shape and type.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``; None sums float16 in f32.

    Raises:
        OpenwaferError: shape or type do not fit, or the rectangle or its memory is too small.
    """
    return _summed(VectorOperation.DOT, x, size, arch, precision).run(x, y)


@takes_operands
def nrm2(
    x: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3, precision: str | None = None
) -> Result:
    """The Euclidean norm of a vector, a number that all PEs have; see :func:`dot`.

    Squares that overflow or underflow are taken again of elements that are scaled by a power of
    two, so the norm is as good as that of any vector whose norm is a number of float32.
    """
    return _summed(VectorOperation.NRM2, x, size, arch, precision).run(x)


@takes_operands
def asum(
    x: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3, precision: str | None = None
) -> Result:
    """The sum of the magnitudes of a vector's elements, which all PEs have; see :func:`dot`."""
    return _summed(VectorOperation.ASUM, x, size, arch, precision).run(x)


def _elementwise(
    operation: VectorOperation, x: NDArray[Any], size: tuple[int, int], arch: str
) -> VectorPlan:
    numbers = Precision.F16 if x.dtype == np.float16 else Precision.F32
    return plan_vector(operation, x.size, size, arch=arch, precision=numbers)


def _summed(
    operation: VectorOperation,
    x: NDArray[Any],
    size: tuple[int, int],
    arch: str,
    precision: str | None,
) -> VectorPlan:
    numbers = precision_of(precision, x.dtype)
    return plan_vector(operation, x.size, size, arch=arch, precision=numbers)
