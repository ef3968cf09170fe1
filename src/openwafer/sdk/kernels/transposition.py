"""The transpose of a matrix that is spread over a rectangle of PEs."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.arch.pace import VectorShape, vector_cycles
from openwafer.sdk.arch.vector_ops import VECTOR_OPS
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.kernels.operands import moves_operands
from openwafer.sdk.kernels.precision import Precision, moved_as, moved_precision
from openwafer.sdk.kernels.products import matrix_of, tiles_of
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    LOOK_CYCLES,
    Result,
    check_dims,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known_arch,
    registers_cycles,
    transfer_cycles,
)
from openwafer.sdk.kernels.trees import way_cycles

_ALONE_CYCLES: Final = 8
"""Of the instructions of one PE's two tasks beside its operation and the switch between them."""
_RECEIVE_CYCLES: Final = 6
"""Of the operation that receives, which a PE begins before it sends."""
_PART_CYCLES: Final = 11
"""Of a task that notes that a PE has sent or received."""
_SEND_CYCLES: Final = 8
"""Of what such a task sends before."""


@dataclass(frozen=True)
class TransposePlan:
    """How a matrix is transposed, before anything is compiled.

    Its tiles lie on the first rows and columns of a square of PEs, and that of PE (x, y) goes to
    PE (y, x), so those of the transpose lie on as many rows as A has columns of PEs.

    Attributes:
        shape: rows and columns of the matrix.
        rows: of PEs that have it.
        columns: of PEs that have it.
        arch: the generation.
        precision: type of the elements, f32 or f16.
    """

    shape: tuple[int, int]
    rows: int
    columns: int
    arch: Arch
    precision: Precision

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the matrix on a PE, with what is padded by zeros."""
        return ceil(self.shape[0] / self.rows), ceil(self.shape[1] / self.columns)

    @property
    def padding(self) -> tuple[int, int]:
        """Rows and columns of zeros behind the matrix."""
        (height, width), (rows, columns) = self.tile, self.shape
        return self.rows * height - rows, self.columns * width - columns

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        height, width = self.tile
        return 2 * height * width * self.precision.given.itemsize + CODE_BYTES

    @property
    def cycles(self) -> int:
        """Cycles by the published model: the messages that turn at one PE, and their ways.

        Those above the diagonal leave a message later than those below, and the last one when its
        PE has received what comes from the other corner. That PE may be the last to end, as it
        notes both.
        """
        switch = GENERATIONS[self.arch].timing.switch_cycles
        if self.rows == self.columns == 1:
            return LOOK_CYCLES + _ALONE_CYCLES + switch + self._alone_cycles
        # A task that notes the end and the one behind it, which looks at the clock.
        return max(self._heard()) + _PART_CYCLES + switch + 1

    def _heard(self) -> Iterator[int]:
        """When the tasks of those PEs begin that may be the last to have their message."""
        rows, columns, length = self.rows, self.columns, self.tile[0] * self.tile[1]
        timing, sent = GENERATIONS[self.arch].timing, transfer_cycles(0, self.arch)
        hop, begin, square = timing.hop_cycles, LOOK_CYCLES + sent, min(rows, columns)
        # The last PE of a row turns all switches back, and waits until that has left.
        registers = registers_cycles(self.arch) + 1
        command = registers + timing.drain_cycles if columns > 2 else 0
        if rows > columns:
            # What comes from the last row, below the square.
            yield begin + self._stream(columns) + 2 * hop * (rows - 1)
        if square > 1:
            received = begin + _RECEIVE_CYCLES + self._stream(square - 1) + 2 * hop * (square - 1)
            itself = max(_PART_CYCLES + _SEND_CYCLES + timing.switch_cycles, sent + length)
            yield received + itself + (command if columns == square else 0)
            # From the corner, behind what has come there.
            from_corner = received + sent + self._stream(columns - square + 1)
            yield from_corner + hop * (square - 1) + hop * (columns - 1)
        if columns > rows:
            # What the columns behind the square send, each as it begins.
            yield begin + self._stream(columns - rows) + 2 * hop * rows + hop * (columns - 1)
            yield begin + self._stream(1) + 3 * hop * (columns - 1)
            first = LOOK_CYCLES + max(sent + length, registers + timing.switch_cycles)
            yield first + hop * (columns - 1) + command

    def _stream(self, num_messages: int) -> int:
        """Cycles of messages that go one behind the other, and of the ramps."""
        turn = 1 if num_messages > 1 else 0
        return way_cycles(0, self.arch) + num_messages * self.tile[0] * self.tile[1] + turn

    @property
    def _alone_cycles(self) -> int:
        """Of a PE that turns its tile around by itself."""
        height, width = self.tile
        operation = VECTOR_OPS["fmovh" if self.precision is Precision.F16 else "fmovs"]
        shape = VectorShape(strides=(1, height), num_registers=2)
        return vector_cycles(operation, height * width, GENERATIONS[self.arch], shape)

    @moves_operands
    def run(self, a: NDArray[Any], *, check: bool = False) -> Result:
        """Transpose on the simulated wafer.

        Args:
            a: of the plan's shape and type.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: it has another shape or type.
        """
        check_operand("A", a, self.shape, self.precision)
        height, width = self.tile
        with compiled("transpose", self.arch, self.params).run(check=check) as run:
            parts = (self.rows, self.columns)
            run["tile", : self.rows, : self.columns] = tiles_of(a, parts, self.tile)
            run.launch("main")
            tiles = run["transposed", : self.columns, : self.rows]
            found = matrix_of(tiles, (width, height), self.shape[::-1])
            return Result(found, cycles_of(run, self.arch))

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        height, width = self.tile
        return {
            "rows": self.rows,
            "columns": self.columns,
            "tile_rows": height,
            "tile_columns": width,
            "is_f16": self.precision is Precision.F16,
        }


@moves_operands
def plan_transpose(
    shape: tuple[int, int],
    size: tuple[int, int],
    *,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
) -> TransposePlan:
    """Plan the transpose of a matrix.

    Args:
        shape: rows and columns of the matrix, 1 or more of both.
        size: rows and columns of PEs that have it, in a square of the longer side.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"`` or ``"f16"``.

    Raises:
        OpenwaferError: the square does not fit the fabric, or a tile a PE's memory.
    """
    generation, numbers = known_arch(arch), moved_precision(precision)
    check_rectangle(*size, generation)
    check_rectangle(max(size), max(size), generation)
    if min(shape) < 1:
        raise error("kernel-shape", f"a matrix of the shape {shape}", help="give 1 or more of both")
    plan = TransposePlan(shape, *size, generation, numbers)
    height, width = plan.tile
    check_memory(plan.memory_bytes, f"two tiles of {height} x {width} elements of {numbers}")
    return plan


@moves_operands
def transpose(a: NDArray[Any], size: tuple[int, int], *, arch: str = Arch.WSE3) -> Result:
    """A^T, bit for bit: (rows, columns) to (columns, rows).

    Args:
        a: float32 or float16, two dims.
        size: rows and columns of PEs that have A; A^T lies on as many columns and rows of them.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape or type do not fit, or the fabric or a PE's memory is too small.
    """
    check_dims("A", a, "rows", "columns")
    rows, columns = a.shape
    return plan_transpose((rows, columns), size, arch=arch, precision=moved_as(a)).run(a)
