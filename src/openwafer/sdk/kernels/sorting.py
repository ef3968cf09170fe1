"""Sorts a vector that is spread over a rectangle of PEs."""

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.operands import check_finite, takes_operands
from openwafer.sdk.kernels.operations import of_one
from openwafer.sdk.kernels.precision import Precision, moved_as, moved_precision
from openwafer.sdk.kernels.running import (
    BROADCAST_CYCLES,
    CODE_BYTES,
    LOOK_CYCLES,
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
from openwafer.sdk.kernels.trees import way_cycles

_MERGE_CYCLES: Final = 44
"""Of an element in a pass over the own values, beside its loop's turn, where two are compared."""
_LEFT_CYCLES: Final = 26
"""Fewer of an element that is left when the other run is at its end."""
_RUNS_CYCLES: Final = 14
"""Of two runs that are merged, beside their elements and their loop's turn."""
_PASS_CYCLES: Final = 11
"""Of a pass, beside its runs and its loop's turn."""
_OTHER_CYCLES: Final = 30
"""Beside passes and turns: the launched function, the last turn and the end."""
_EMPTY_CYCLES: Final = 18
"""Of a turn without another PE."""
_SKIP_CYCLES: Final = 3
"""Of the branch around a copy that is not needed."""
_KEEP_CYCLES: Final = 28
"""Of an element in a turn of two PEs, beside its loop's turn."""
_TURN_CYCLES: Final = 80
"""Of a turn, beside elements and words."""


@dataclass(frozen=True)
class SortPlan:
    """How a vector is sorted, before anything is compiled.

    PEs have equal parts of it and lie in a line, along the rows by turns east and west. Each sorts
    its part by merging; then neighbours exchange theirs, in as many turns as there are PEs.

    Attributes:
        length: of the vector.
        rows: of PEs.
        columns: of PEs.
        arch: the generation.
        precision: type of the elements, f32 or f16.
    """

    length: int
    rows: int
    columns: int
    arch: Arch
    precision: Precision

    @property
    def per_pe(self) -> int:
        """Values of a PE, with what is padded by infinities, which come last."""
        in_wavelet = self.precision.in_wavelet
        return in_wavelet * ceil(self.length / (self.rows * self.columns * in_wavelet))

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        return 3 * self.per_pe * self.precision.given.itemsize + CODE_BYTES

    @property
    def cycles(self) -> int:
        """Predicted cycles, for values in no order."""
        timing, num = GENERATIONS[self.arch].timing, self.per_pe
        num_empty = 1 if self.rows * self.columns <= 2 else 0
        taken = LOOK_CYCLES + _OTHER_CYCLES + timing.switch_cycles + self._merge_cycles
        taken += num_empty * (_EMPTY_CYCLES + timing.switch_cycles) + self._copy_cycles
        way = transfer_cycles(BROADCAST_CYCLES, self.arch) + way_cycles(1, self.arch)
        words = num // self.precision.in_wavelet
        kept = num * (_KEEP_CYCLES + timing.loop_cycles)
        return taken + self._num_turns * (way + words + kept + _TURN_CYCLES)

    @property
    def _copy_cycles(self) -> int:
        """Of the values, where passes and turns have left them in the other array."""
        if ((self.per_pe - 1).bit_length() + self._num_turns) % 2 == 0:
            return 0
        (move,) = of_one("fmovh" if self.precision is Precision.F16 else "fmovs")
        drain = GENERATIONS[self.arch].timing.drain_cycles
        return move.cycles(self.per_pe, self.arch) + drain - _SKIP_CYCLES

    @property
    def _merge_cycles(self) -> int:
        """Of the own values, by passes over runs of 1, 2, 4 ... elements."""
        turn, taken = GENERATIONS[self.arch].timing.loop_cycles, 0.0
        for number in range((self.per_pe - 1).bit_length()):
            run = 1 << number
            num_merges = ceil(self.per_pe / (2 * run))
            taken += _PASS_CYCLES + turn + self.per_pe * (_MERGE_CYCLES + turn)
            # Of two runs in no order so many elements are left at the end of one, on average.
            num_left = 2 * run / (run + 1)
            taken += num_merges * (_RUNS_CYCLES + turn - num_left * _LEFT_CYCLES)
        return round(taken)

    @property
    def _num_turns(self) -> int:
        """In which PEs exchange; of two PEs the second turn is empty."""
        num_pes = self.rows * self.columns
        return num_pes if num_pes > 2 else num_pes - 1

    @takes_operands
    def run(self, values: NDArray[Any], *, check: bool = False) -> Result:
        """Sort on the simulated wafer.

        Args:
            values: (length,), of the plan's type, finite.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type, or numbers that are none.
        """
        check_operand("values", values, (self.length,), self.precision)
        check_finite("values", values)
        more = self.rows * self.columns * self.per_pe - self.length
        padded = np.pad(values, (0, more), constant_values=np.inf)
        with compiled("sort", self.arch, self.params).run(check=check) as run:
            run["values"] = padded.reshape(self.rows, self.columns, -1)
            run.launch("main")
            found = run["values"].copy()
            found[1::2] = found[1::2, ::-1]
            return Result(found.reshape(-1)[: self.length], cycles_of(run, self.arch))

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "length": self.per_pe,
            "is_f16": self.precision is Precision.F16,
        }


@takes_operands
def plan_sort(
    length: int,
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
) -> SortPlan:
    """Plan the order of a vector.

    Args:
        length: of the vector, 1 or more.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"`` or ``"f16"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE's memory.
    """
    generation, numbers = known_arch(arch), moved_precision(precision)
    check_rectangle(*size, generation)
    check_length(length, f"a vector of {length} elements")
    plan = SortPlan(length, *size, generation, numbers)
    check_memory(plan.memory_bytes, f"three parts of {plan.per_pe} elements of {numbers}")
    return plan


@takes_operands
def sort(values: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3) -> Result:
    """The values from the lowest to the highest, bit for bit: (length,) to (length,).

    The order of zeros with and without a sign, which are equal, is that of the plan.

    Args:
        values: float32 or float16, finite, one dim.
        size: rows and columns of PEs.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape, type or numbers do not fit, or the rectangle or its memory is too
            small.
    """
    check_dims("values", values, "elements")
    return plan_sort(len(values), size, arch=arch, precision=moved_as(values)).run(values)
