"""Values of all PEs in one, and back: gather and scatter over a rectangle of PEs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.door.run import Run
from openwafer.sdk.kernels.operands import moves_operands
from openwafer.sdk.kernels.precision import Precision, moved_as, moved_precision
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
    known_arch,
    transfer_cycles,
)
from openwafer.sdk.kernels.trees import Shape, Tree, broadcast_cycles, start_delay

_STAR = Tree(Shape.STAR)


@dataclass(frozen=True)
class GatherPlan:
    """How values come to one PE or from it, before anything is compiled.

    The north-east PE, the root, has the values of all. They go by the last column, whose PEs have
    those of their rows, and along the rows.

    Attributes:
        is_scatter: whether they come from the root.
        rows: of PEs.
        columns: of PEs.
        length: elements of each PE.
        padding: elements more that a PE has, so that wavelets are full.
        arch: the generation.
        precision: type of the elements, f32 or f16.
    """

    is_scatter: bool
    rows: int
    columns: int
    length: int
    padding: int
    arch: Arch
    precision: Precision

    @property
    def memory_bytes(self) -> int:
        """Bytes of the root's 48 KB, with those that are kept for code."""
        num_elements = self.rows * self.columns * (self.length + self.padding)
        return num_elements * self.precision.given.itemsize + CODE_BYTES

    @property
    def cycles(self) -> int:
        """Cycles by the published model: what passes the root's ramp, and the ways."""
        words = (self.length + self.padding) // self.precision.in_wavelet
        lines = ((self.columns, words, True), (self.rows, self.columns * words, False))
        # The root's column begins last.
        taken: float = LOOK_CYCLES + start_delay(self.columns, self.arch)
        for num_pes, num_words, is_row in lines:
            if num_pes > 1:
                instructions = BROADCAST_CYCLES if self.is_scatter else REDUCE_CYCLES
                taken += transfer_cycles(instructions, self.arch)
                taken += self._line_cycles(num_pes, num_words, is_row=is_row)
        if not self.is_scatter:
            # What the last sender sends behind its values is waited for, too.
            num_pes, num_words, is_row = lines[self.rows > 1]
            taken += _STAR.command_cycles(num_pes, num_words, self.arch, is_staggered=is_row)
        return round(taken)

    def _line_cycles(self, num_pes: int, num_words: int, *, is_row: bool) -> float:
        if self.is_scatter:
            # The last message goes the whole way behind all others.
            return broadcast_cycles(1, num_pes, num_words * (num_pes - 1), self.arch)
        return _STAR.cycles(num_pes, num_words, self.arch, is_staggered=is_row)

    @moves_operands
    def run(self, values: NDArray[Any], *, check: bool = False) -> Result:
        """Do it on the simulated wafer.

        Args:
            values: (rows, columns, length); of a scatter the root has them all.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: values have another shape or type.
        """
        shape = (self.rows, self.columns, self.length)
        check_operand("values", values, shape, self.precision)
        padded = np.pad(values, ((0, 0), (0, 0), (0, self.padding)))
        with compiled("gather", self.arch, self.params).run(check=check) as run:
            root = (0, self.columns - 1)
            if self.is_scatter:
                # Positions of a row are counted from the last column.
                run["values", *root] = padded[:, ::-1].ravel()
            else:
                self._give(run, padded)
            run.launch("main")
            if self.is_scatter:
                found = run.read("values", padded.shape[2])
            else:
                found = run["values", *root].reshape(padded.shape)[:, ::-1]
            return Result(found[..., : self.length].copy(), cycles_of(run, self.arch))

    def _give(self, run: Run, padded: NDArray[Any]) -> None:
        """Each PE its own values; those of the last column have room behind them."""
        last = self.columns - 1
        if last:
            run["values", :, :last] = padded[:, :last]
        for begin, end in ((0, 1), (1, self.rows)):
            if begin < end:
                num_pes = self.columns * (1 if begin else self.rows)
                room = np.zeros((end - begin, num_pes, padded.shape[2]), padded.dtype)
                room[:, 0] = padded[begin:end, last]
                run["values", begin:end, last] = room.reshape(end - begin, -1)

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "length": self.length + self.padding,
            "is_f16": self.precision is Precision.F16,
            "is_scatter": self.is_scatter,
        }


@moves_operands
def plan_gather(
    size: tuple[int, int],
    length: int,
    *,
    is_scatter: bool = False,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
) -> GatherPlan:
    """Plan a gather or a scatter on a rectangle of PEs.

    Args:
        size: rows and columns of PEs.
        length: elements of each PE, 1 or more.
        is_scatter: whether the root's values go to all.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"`` or ``"f16"``.

    Raises:
        OpenwaferError: it does not fit the fabric or the root's memory.
    """
    generation, numbers = known_arch(arch), moved_precision(precision)
    check_rectangle(*size, generation)
    check_length(length, f"{length} elements a PE")
    padding = -length % numbers.in_wavelet
    plan = GatherPlan(is_scatter, *size, length, padding, generation, numbers)
    check_memory(plan.memory_bytes, f"{length} elements of each of {size[0] * size[1]} PEs")
    return plan


@moves_operands
def gather(values: NDArray[Any], *, arch: str = Arch.WSE3) -> Result:
    """The values of all PEs in one, bit for bit: (rows, columns, length) to the same shape.

    Args:
        values: float32 or float16, one dim for rows of PEs, one for columns, one for elements.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape or type do not fit, or the rectangle or the root's memory is too
            small.
    """
    return _moved(values, False, arch)


@moves_operands
def scatter(values: NDArray[Any], *, arch: str = Arch.WSE3) -> Result:
    """The values of one PE to those that they are for, the other way round than :func:`gather`."""
    return _moved(values, True, arch)


def _moved(values: NDArray[Any], is_scatter: bool, arch: str) -> Result:
    check_dims("values", values, *ON_PES)
    rows, columns, length = values.shape
    kind = moved_as(values)
    plan = plan_gather((rows, columns), length, is_scatter=is_scatter, arch=arch, precision=kind)
    return plan.run(values)
