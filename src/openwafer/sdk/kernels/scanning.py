"""Prefix sums of a vector that is spread over a rectangle of PEs."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import VectorShape, vector_cycles
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.operands import takes_operands
from openwafer.sdk.kernels.precision import (
    Precision,
    bound_of_sums,
    named_precision,
    precision_of,
)
from openwafer.sdk.kernels.running import (
    BROADCAST_CYCLES,
    CODE_BYTES,
    LOOK_CYCLES,
    MEMORY_BYTES,
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
from openwafer.sdk.kernels.trees import start_delay, way_cycles

_SUM_CYCLES: Final = 16
"""Around an operation on an element of each chunk."""
_CHUNK_CYCLES: Final = 11
"""Of a chunk's sum, beside its loop's turn."""
_FEW_CHUNKS: Final = 16
"""From so many on their loop is not unrolled."""
_OTHER_CYCLES: Final = 13
"""Beside chunks and operations."""
_ALONE_CYCLES: Final = 10
"""Of loads and of what they wait for where no other PE has sums, which come later than these."""
_SCAN_CYCLES: Final = 12
"""Of the instructions of ``<kernels/scan/pe>``."""
_TURNS: Final = {2: 7, 4: 6}
"""Quarters of a cycle that reads of neighbours in strided elements take, by an element's bytes:
three or two of four lie in one row of memory."""
_MOST_STRIDE: Final = 127


@dataclass(frozen=True)
class ScanPlan:
    """How prefix sums are taken, before anything is compiled.

    PEs have equal parts of the vector, row by row, in chunks of equal length. A PE sums up within
    all its chunks at once, then its chunks' sums; PEs' sums go along rows, and those of rows along
    the last column.

    Attributes:
        is_inclusive: whether a sum has its own element.
        length: of the vector.
        rows: of PEs.
        columns: of PEs.
        chunk: elements of a chunk, an odd number, so that strided reads of it rarely meet.
        arch: the generation.
        precision: types of elements and sums.
    """

    is_inclusive: bool
    length: int
    rows: int
    columns: int
    chunk: int
    arch: Arch
    precision: Precision

    @property
    def num_chunks(self) -> int:
        """Of a PE."""
        return ceil(ceil(self.length / (self.rows * self.columns)) / self.chunk)

    @property
    def padding(self) -> int:
        """Zeros behind the vector."""
        return self.rows * self.columns * self.num_chunks * self.chunk - self.length

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        given = self.precision.given.itemsize if self.precision.is_widened else 0
        sums = self.precision.sums.itemsize
        of_chunk = self.chunk * (sums + given) + sums
        return self.num_chunks * of_chunk + CODE_BYTES

    @property
    def cycles(self) -> int:
        """Predicted cycles: two operations for each element of a chunk, and the ways of sums."""
        generation = GENERATIONS[self.arch]
        timing, num = generation.timing, self.num_chunks
        shape = VectorShape(strides=(self.chunk,), turns=_TURNS[self.precision.sums.itemsize])
        adds = VECTOR_OPS["faddh" if self.precision is Precision.F16 else "fadds"]
        operation = _SUM_CYCLES + vector_cycles(adds, num, generation, shape)
        turn = _CHUNK_CYCLES + (0 if num < _FEW_CHUNKS else timing.loop_cycles)
        taken = LOOK_CYCLES + _OTHER_CYCLES + num * turn + vector_cycles(adds, num, generation)
        if self.precision.is_widened:
            whole = VectorShape(num_registers=2)
            taken += vector_cycles(VECTOR_OPS["fh2s"], num * self.chunk, generation, whole)
        taken += _ALONE_CYCLES if self.rows * self.columns == 1 else self._ways_cycles
        return taken + (2 * self.chunk - 1) * operation

    @property
    def _ways_cycles(self) -> int:
        """Of sums along rows and the last column, and back along rows."""
        timing = GENERATIONS[self.arch].timing
        # A row's sums end in the column that begins last; to it numbers come as if without a way.
        taken, way = start_delay(self.columns, self.arch), way_cycles(0, self.arch)
        for num_pes, hop in ((self.columns, 0), (self.rows, timing.hop_cycles)):
            if num_pes > 1:
                taken += transfer_cycles(_SCAN_CYCLES, self.arch) + way
                # Numbers come hop by hop, and are added one a cycle.
                taken += max(1, hop) * (num_pes - 1)
        if self.rows > 1:
            taken += transfer_cycles(BROADCAST_CYCLES, self.arch) + way
            taken += timing.hop_cycles * (self.columns - 1)
        return taken

    @property
    def num_roundings(self) -> int:
        """The most additions that an element goes through."""
        return self.chunk + self.num_chunks + self.columns + self.rows

    def error_bound(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Bound of each sum's error: gamma(num_roundings) times the sum of magnitudes.

        Args:
            values: (length,), finite.
        """
        magnitudes = np.abs(values.astype(np.float64))
        sums = np.cumsum(magnitudes)
        if not self.is_inclusive:
            sums -= magnitudes
        return bound_of_sums(sums, self.num_roundings, self.precision.sums)

    @takes_operands
    def run(self, values: NDArray[Any], *, check: bool = False) -> Result:
        """Sum up on the simulated wafer.

        Args:
            values: (length,), of the plan's type.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type.
        """
        check_operand("values", values, (self.length,), self.precision)
        padded = np.pad(values, (0, self.padding)).reshape(self.rows, self.columns, -1)
        name = "given" if self.precision.is_widened else "values"
        with compiled("scan", self.arch, self.params).run(check=check) as run:
            run[name] = padded
            run.launch("main")
            found = run["values"].reshape(-1)[: self.length].copy()
            return Result(found, cycles_of(run, self.arch))

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "num_chunks": self.num_chunks,
            "chunk": self.chunk,
            "is_inclusive": self.is_inclusive,
            **self.precision.params,
        }


@takes_operands
def plan_scan(
    length: int,
    size: tuple[int, int],
    *,
    is_inclusive: bool = True,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
) -> ScanPlan:
    """Plan prefix sums on a rectangle of PEs.

    Args:
        length: of the vector, 1 or more.
        size: rows and columns of PEs.
        is_inclusive: whether a sum has its own element.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``.

    Raises:
        OpenwaferError: it does not fit the fabric or a PE's memory.
    """
    generation, numbers = known_arch(arch), named_precision(precision)
    check_rectangle(*size, generation)
    check_length(length, f"a vector of {length} elements")
    one = ScanPlan(is_inclusive, length, *size, 1, generation, numbers)
    most = min(_MOST_STRIDE, ceil(length / (size[0] * size[1])))
    plans = [replace(one, chunk=chunk) for chunk in range(1, most + 1, 2)]
    least = min(plans, key=lambda plan: plan.memory_bytes)
    check_memory(least.memory_bytes, f"{least.num_chunks * least.chunk} elements of {numbers}")
    fitting = [plan for plan in plans if plan.memory_bytes <= MEMORY_BYTES]
    return min(fitting, key=lambda plan: plan.cycles)


@takes_operands
def scan(
    values: NDArray[Any],
    size: tuple[int, int],
    *,
    is_inclusive: bool = True,
    arch: str = Arch.WSE3,
    precision: str | None = None,
) -> Result:
    """Sums of all elements up to each one, or before it: (length,) to (length,).

    The error of each sum is at most ``gamma(n)`` times the sum of its magnitudes with n additions,
    ``num_roundings`` of the plan. The order of additions is the plan's, so the bits repeat.

    Args:
        values: float32 or float16, one dim.
        size: rows and columns of PEs.
        is_inclusive: whether a sum has its own element; the first sum is 0 without.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``; None sums float16 in f32.

    Raises:
        OpenwaferError: shape or type do not fit, or the rectangle or its memory is too small.
    """
    check_dims("values", values, "elements")
    numbers = precision_of(precision, values.dtype)
    options: dict[str, Any] = {"is_inclusive": is_inclusive, "arch": arch, "precision": numbers}
    return plan_scan(len(values), size, **options).run(values)
