"""Sums and broadcasts over a rectangle of PEs."""

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import VectorShape, load_cycles, vector_cycles
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.operands import check_numbers, moves_operands, takes_operands
from openwafer.sdk.kernels.precision import (
    Precision,
    bound_of_sums,
    moved_as,
    named_precision,
    precision_of,
)
from openwafer.sdk.kernels.running import (
    BROADCAST_CYCLES,
    CODE_BYTES,
    LOOK_CYCLES,
    ON_PES,
    REDUCE_CYCLES,
    Result,
    check_dims,
    check_length,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known,
    known_arch,
    transfer_cycles,
)
from openwafer.sdk.kernels.trees import (
    MAX_ELEMENTS,
    Shape,
    Tree,
    best_tree,
    broadcast_cycles,
    params_of,
    start_delay,
)


class Collective(StrEnum):
    """What all PEs do."""

    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_REDUCE = "all-reduce"

    @property
    def has_sum(self) -> bool:
        """Whether values are added up."""
        return self is not Collective.BROADCAST

    @property
    def has_broadcast(self) -> bool:
        """Whether all PEs have the result."""
        return self is not Collective.REDUCE


@dataclass(frozen=True)
class CollectivePlan:
    """How a sum or a broadcast is done, before anything is compiled.

    The sum of a row goes to its east end, that of the last column to its north end, the root; a
    broadcast begins there.

    Attributes:
        collective: what is done.
        rows: of PEs.
        columns: of PEs.
        length: elements of each PE.
        padding: elements more that a PE has, so that wavelets are full.
        arch: the generation.
        precision: types of elements and sums.
        row_tree: who adds up what along a row; None without a sum along rows.
        column_tree: the same along the last column.
    """

    collective: Collective
    rows: int
    columns: int
    length: int
    padding: int
    arch: Arch
    precision: Precision
    row_tree: Tree | None
    column_tree: Tree | None

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        sizes = {self.precision.given, self.precision.sums}
        held = (self.length + self.padding) * sum(dtype.itemsize for dtype in sizes)
        return held + CODE_BYTES

    @property
    def num_wavelets(self) -> int:
        """Of a message."""
        return (self.length + self.padding) // self.precision.in_wavelet

    @property
    def cycles(self) -> int:
        """Cycles by the published model, and those of the instructions around each transfer."""
        words, arch = self.num_wavelets, self.arch
        generation = GENERATIONS[arch]
        # The root is in the column that begins last.
        phases: list[float] = [LOOK_CYCLES + start_delay(self.columns, arch)]
        if self.precision.is_widened:
            shape = VectorShape(num_registers=2)
            phases.append(vector_cycles(VECTOR_OPS["fh2s"], self.length, generation, shape))
            # What comes next waits for the results.
            phases.append(generation.timing.drain_cycles - 1)
        sending = transfer_cycles(REDUCE_CYCLES, arch)
        if self.row_tree:
            along_row = self.row_tree.cycles(self.columns, words, arch, is_staggered=True)
            phases.append(sending + along_row)
        if self.column_tree:
            phases.append(sending + self.column_tree.cycles(self.rows, words, arch))
        if self.collective.has_broadcast:
            phases.append(_back_cycles(self.rows, self.columns, words, arch))
        late = 0.0
        if self.column_tree:
            late = self.column_tree.command_cycles(self.rows, words, arch)
        elif self.row_tree:
            late = self.row_tree.command_cycles(self.columns, words, arch, is_staggered=True)
        if late:
            slack = _slack(self.collective, self.rows, self.columns, words, arch)
            phases.append(max(0, late - slack))
        return round(sum(phases))

    @property
    def num_additions(self) -> int:
        """The most additions that a value goes through."""
        along_row = self.row_tree.num_additions(self.columns) if self.row_tree else 0
        along_column = self.column_tree.num_additions(self.rows) if self.column_tree else 0
        return along_row + along_column

    def error_bound(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Bound of each sum's error: gamma(num_additions) times the sum of magnitudes.

        Args:
            values: (rows, columns, length), finite.
        """
        magnitudes = np.abs(values.astype(np.float64)).sum((0, 1))
        return bound_of_sums(magnitudes, self.num_additions, self.precision.sums)

    @moves_operands
    def run(self, values: NDArray[Any], *, check: bool = False) -> Result:
        """Do it on the simulated wafer.

        Args:
            values: (rows, columns, length) of a sum, (length,) of a broadcast.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: values have another shape or type.
        """
        root = (0, self.columns - 1)
        shape = (self.rows, self.columns) if self.collective.has_sum else ()
        check_operand("values", values, (*shape, self.length), self.precision)
        if self.collective.has_sum:
            check_numbers("values", values)
        padded = np.zeros((*shape, self.length + self.padding), values.dtype)
        padded[..., : self.length] = values
        program = compiled("collectives", self.arch, self.params)
        name = "given" if self.precision.is_widened else "values"
        with program.run(check=check) as run:
            if self.collective.has_sum:
                run[name] = padded
            else:
                run[name, root[0], root[1]] = padded
            run.launch("main")
            read = run["values"] if self.collective.has_broadcast else run["values", *root]
            return Result(read[..., : self.length].copy(), cycles_of(run, self.arch))

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "length": self.length + self.padding,
            **params_of(self.row_tree, self.column_tree),
            **self.precision.params,
            "has_sum": self.collective.has_sum,
            "has_broadcast": self.collective.has_broadcast,
        }


@takes_operands
def plan_collective(
    collective: str,
    size: tuple[int, int],
    length: int,
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
    tree: Tree | None = None,
) -> CollectivePlan:
    """Plan a collective operation on a rectangle of PEs.

    Args:
        collective: ``"broadcast"``, ``"reduce"`` or ``"all-reduce"``.
        size: rows and columns of PEs.
        length: elements of each PE, 1 or more.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``.
        tree: who adds up what along a line; None takes for rows and for the last column the one
            of the fewest cycles by the published model.

    Raises:
        OpenwaferError: it does not fit the fabric, a PE's memory or an operation.
    """
    kind = known("collective is", collective, Collective)
    generation, numbers = known_arch(arch), named_precision(precision)
    rows, columns = size
    check_rectangle(rows, columns, generation)
    check_length(length, f"{length} elements a PE")
    padding = -length % numbers.in_wavelet
    padded = length + padding

    words = padded // numbers.in_wavelet

    def chosen(num_pes: int, *, is_row: bool) -> Tree | None:
        if not kind.has_sum or num_pes == 1:
            return None
        is_last = not is_row or rows == 1
        slack = _slack(kind, rows, columns, words, generation) if is_last else inf
        taken = tree or best_tree(
            num_pes, padded, words, generation, is_staggered=is_row, slack=slack
        )
        _check_operation(taken, num_pes, padded)
        return taken

    plan = CollectivePlan(
        collective=kind,
        rows=rows,
        columns=columns,
        length=length,
        padding=padding,
        arch=generation,
        precision=numbers,
        row_tree=chosen(columns, is_row=True),
        column_tree=chosen(rows, is_row=False),
    )
    check_memory(plan.memory_bytes, f"{length} elements of {numbers}")
    return plan


@takes_operands
def reduce(
    values: NDArray[Any],
    *,
    arch: str = Arch.WSE3,
    precision: str | None = None,
    tree: Tree | None = None,
) -> Result:
    """Sum of the values of all PEs: (rows, columns, length) to (length,).

    The error of each sum is at most ``gamma(n) * sum(|values|)`` with n additions on the longest
    way, ``num_additions`` of the plan, and u = 2**-24 for f32 sums, 2**-11 for f16. The order of
    additions depends on nothing but the plan, so the bits repeat.

    Args:
        values: float32 or float16, one dim for rows of PEs, one for columns, one for elements.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``; None sums float16 in f32.
        tree: who adds up what; None takes the best by the published model.

    Raises:
        OpenwaferError: shape or type do not fit, or the rectangle or its memory is too small.
    """
    return _summed(Collective.REDUCE, values, arch, precision, tree)


@takes_operands
def all_reduce(
    values: NDArray[Any],
    *,
    arch: str = Arch.WSE3,
    precision: str | None = None,
    tree: Tree | None = None,
) -> Result:
    """The same sum for all PEs: (rows, columns, length) to the same shape, by :func:`reduce`."""
    return _summed(Collective.ALL_REDUCE, values, arch, precision, tree)


@moves_operands
def broadcast(values: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3) -> Result:
    """The same values for all PEs: (length,) to (rows, columns, length), bit for bit.

    Args:
        values: float32 or float16.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape or type do not fit, or the rectangle or its memory is too small.
    """
    check_dims("values", values, "elements")
    kind = moved_as(values)
    plan = plan_collective(Collective.BROADCAST, size, len(values), arch=arch, precision=kind)
    return plan.run(values)


def _summed(
    kind: Collective,
    values: NDArray[Any],
    arch: str,
    precision: str | None,
    tree: Tree | None,
) -> Result:
    check_dims("values", values, *ON_PES)
    numbers = precision_of(precision, values.dtype)
    rows, columns, length = values.shape
    plan = plan_collective(kind, (rows, columns), length, arch=arch, precision=numbers, tree=tree)
    return plan.run(values)


def _back_cycles(rows: int, columns: int, num_words: int, arch: Arch) -> float:
    """Cycles from the sum at the root until all PEs have it; one alone activates what follows."""
    if rows * columns == 1:
        return BROADCAST_CYCLES + 1 + GENERATIONS[arch].timing.switch_cycles
    way = broadcast_cycles(rows, columns, num_words, arch)
    return transfer_cycles(BROADCAST_CYCLES, arch) + way


def _slack(kind: Collective, rows: int, columns: int, num_words: int, arch: Arch) -> float:
    """Cycles behind the sum in which nothing waits for its last sender.

    A way back takes longer than a PE's task that waits for it, and what a further one waits.
    """
    if not kind.has_broadcast:
        return 0
    timing = GENERATIONS[arch].timing
    waiting = BROADCAST_CYCLES + load_cycles(2, timing.load_latency) + 1 + timing.switch_cycles
    return _back_cycles(rows, columns, num_words, arch) - waiting


def _check_operation(tree: Tree, num_pes: int, length: int) -> None:
    num_elements = tree.most_elements(num_pes, length)
    if tree.shape is not Shape.CHAIN and num_elements > MAX_ELEMENTS:
        raise error(
            "kernel-operation",
            f"a {tree.shape} of {num_pes} PEs with {length} elements adds {num_elements:,} of them "
            f"in one operation, which takes {MAX_ELEMENTS:,}",
            help="choose a chain or two-phase, or fewer elements",
        )
