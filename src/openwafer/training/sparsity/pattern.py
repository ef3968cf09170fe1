"""Which positions of a weight are kept, and the order that values and states share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from openwafer.diagnostics import error

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop at its first call, and keep its machine code beside its source.

    numba notices a change of the file only in which the loop itself stands, so a loop calls nothing
    compiled of another file. It runs without Python's lock.
    """
    return njit(cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


NARROW_COLUMNS: Final = 1 << 16
"""Up to so many columns, their numbers take 16 bits."""
MAX_COLUMNS: Final = 1 << 32
MIN_DIMS: Final = 2

Columns = NDArray[np.uint16] | NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Pattern:
    """The kept positions of a weight seen as a matrix `[dim 0, all others]`, row after row.

    Whatever belongs to the kept positions (values, gradients, states) is a vector in this order.

    Attributes:
        shape: rows and columns.
        row_starts: `int64 [rows + 1]`; row r owns `columns[row_starts[r]:row_starts[r + 1]]`.
        columns: `[num_kept]`, ascending in each row; `uint16`, or `uint32` above 65,536 columns.

    Arrays that do not fit together are refused, with the row where it is seen.
    """

    shape: tuple[int, int]
    row_starts: NDArray[np.int64]
    columns: Columns

    def __post_init__(self) -> None:
        rows, columns = self.shape
        kinds = (np.dtype(np.int64), column_dtype(columns))
        if (self.row_starts.dtype, self.columns.dtype) != kinds:
            found = f"{self.row_starts.dtype} and {self.columns.dtype}"
            raise _misfit(f"the dtypes {found} for {kinds[0]} and {kinds[1]}")
        if self.row_starts.shape != (rows + 1,) or self.columns.ndim != 1:
            raise _misfit(f"{self.row_starts.shape} starts of {rows} rows")
        if self.row_starts[0] != 0 or self.row_starts[-1] != self.columns.size:
            ends = f"{self.row_starts[0]} to {self.row_starts[-1]}"
            raise _misfit(f"rows from {ends} for {self.columns.size} columns")
        for array in (self.row_starts, self.columns):
            array.flags.writeable = False
        wrong = _first_wrong_row(self.row_starts, self.columns, columns)
        if wrong >= 0:
            raise _misfit(f"row {wrong} is not an ascending list of columns below {columns}")

    @classmethod
    def from_mask(cls, mask: Tensor) -> "Pattern":
        """Pattern of the true places of a bool tensor of at least two dims."""
        if mask.dtype != torch.bool or mask.dim() < MIN_DIMS:
            raise error(
                "sparse-mask",
                f"a mask is a bool tensor of 2 or more dims, this one {mask.dtype} of {mask.dim()}",
                help="compare the weight's scores with a threshold; weights of one dim stay dense",
            )
        seen = mask.detach().flatten(1).cpu().contiguous().numpy()
        rows, columns = seen.shape
        if columns > MAX_COLUMNS:
            raise _misfit(f"{columns} columns where at most {MAX_COLUMNS} can be numbered")
        row_starts = np.zeros(rows + 1, np.int64)
        np.cumsum(np.count_nonzero(seen, axis=1), out=row_starts[1:])
        # One place more, since the loop writes before it knows whether it goes on.
        found = np.empty(int(row_starts[-1]) + 1, column_dtype(columns))
        _find_columns(seen.view(np.uint8), found)
        return cls((rows, columns), row_starts, found[:-1])

    @property
    def num_kept(self) -> int:
        """Positions that are kept."""
        return self.columns.size

    @property
    def density(self) -> float:
        """Share of the positions that are kept; 1 for a weight without any."""
        rows, columns = self.shape
        return self.num_kept / (rows * columns) if rows * columns else 1.0

    def mask(self) -> Tensor:
        """Bool `[rows, columns]`, true where a position is kept."""
        mask = np.zeros(self.shape, np.bool_)
        _mark(self.row_starts, self.columns, mask)
        return torch.from_numpy(mask)

    def positions(self) -> Tensor:
        """`int64 [num_kept]`: each kept position's place in the flattened weight, ascending."""
        positions = np.empty(self.num_kept, np.int64)
        _flatten(self.row_starts, self.columns, self.shape[1], positions)
        return torch.from_numpy(positions)

    def values_of(self, weight: Tensor) -> Tensor:
        """`[num_kept]`: what a weight of this shape, or of more dims, holds at kept positions."""
        rows, columns = self.shape
        if weight.shape[:1] != (rows,) or weight.numel() != rows * columns:
            raise _misfit(f"a weight of {tuple(weight.shape)} for a pattern of {self.shape}")
        return weight.reshape(-1)[self.positions().to(weight.device)]

    def dense(self, values: Tensor) -> Tensor:
        """`[rows, columns]`: values `[num_kept]` at their positions, zeros elsewhere."""
        if values.shape != (self.num_kept,):
            raise _misfit(f"values of {tuple(values.shape)} for {self.num_kept} kept positions")
        weight = values.new_zeros(self.shape)
        weight.view(-1)[self.positions().to(values.device)] = values
        return weight

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pattern):
            return NotImplemented
        return (
            self.shape == other.shape
            and np.array_equal(self.row_starts, other.row_starts)
            and np.array_equal(self.columns, other.columns)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.num_kept))


def column_dtype(columns: int) -> "np.dtype[np.uint16] | np.dtype[np.uint32]":
    """Number format of the columns of so wide a weight."""
    return np.dtype(np.uint16) if columns <= NARROW_COLUMNS else np.dtype(np.uint32)


def _misfit(what: str) -> Exception:
    return error(
        "sparse-pattern",
        f"parts of a sparse weight do not fit together: {what}",
        help="make the pattern by Pattern.from_mask or unpack, and the values by its values_of",
    )


@compiled
def _find_columns(mask: NDArray[np.uint8], found: NDArray[Any]) -> None:
    place = 0
    for row in range(mask.shape[0]):
        for column in range(mask.shape[1]):
            # Written in any case: a branch that follows random bits costs ten times as much.
            found[place] = column
            place += mask[row, column]


@compiled
def _first_wrong_row(row_starts: NDArray[np.int64], columns: NDArray[Any], width: int) -> int:
    for row in range(row_starts.size - 1):
        start, end = row_starts[row], row_starts[row + 1]
        if start > end or end > columns.size:
            return row
        before = np.int64(-1)
        for place in range(start, end):
            column = np.int64(columns[place])
            if column <= before or column >= width:
                return row
            before = column
    return -1


@compiled
def _mark(row_starts: NDArray[np.int64], columns: NDArray[Any], mask: NDArray[np.bool_]) -> None:
    for row in range(mask.shape[0]):
        for place in range(row_starts[row], row_starts[row + 1]):
            mask[row, columns[place]] = True


@compiled
def _flatten(
    row_starts: NDArray[np.int64], columns: NDArray[Any], width: int, positions: NDArray[np.int64]
) -> None:
    for row in range(row_starts.size - 1):
        for place in range(row_starts[row], row_starts[row + 1]):
            positions[place] = row * width + np.int64(columns[place])
