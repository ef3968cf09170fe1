"""Which weights are kept or dropped together, and the largest scores of a group of such.

A structure sees a weight of shape [dim 0, ...] as a matrix of rows (dim 0) and columns (the rest)
and divides it into *units*, the smallest parts that a mask keeps or drops: single weights or whole
blocks. They stand in groups, [groups, units]; as many units of each group are kept as its sparsity
says.

Scores are at least 0; those of units that may not be taken are -1. Equal scores are taken in the
order of their positions: what is taken is a function of the values alone, whatever the device and
the number of threads.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from openwafer.diagnostics import error

# A written sparsity is a decimal; one that was computed is some floating-point operations away.
FLOAT_ERROR = Fraction(1, 2**48)

Shape = tuple[int, ...]


def share_of(share: float, number: int) -> int:
    """``int(share * number)``, where a product that is whole but for float error is that whole."""
    return _whole(Fraction(share) * number, number)


def num_kept(sparsity: float, number: int) -> int:
    """``int((1 - sparsity) * number)``, float error aside: 0.9 of 1000 keeps 100."""
    return _whole((1 - Fraction(sparsity)) * number, number)


def matrix_shape(shape: Shape) -> tuple[int, int]:
    """Rows and columns of a weight: dim 0, and all other dims together."""
    return shape[0], math.prod(shape[1:])


class _Units:
    """What all structures answer; here for units that are single weights."""

    def mismatch(self, shape: Shape) -> str:
        """Why a weight of `shape` cannot have this structure; empty where it can."""
        return ""

    def grid(self, shape: Shape) -> tuple[int, int]:
        """Groups, and units in each."""
        return 1, math.prod(shape)

    def num_weights(self, num_units: int, shape: Shape) -> int:
        """Weights that are kept where each group keeps `num_units`."""
        return num_units * self.grid(shape)[0]

    def unit_scores(self, scores: Tensor) -> Tensor:
        """Scores of units [groups, units] from those of weights, any shape: the largest inside."""
        return scores.reshape(self.grid(tuple(scores.shape)))

    def units_of(self, mask: Tensor) -> Tensor:
        """Units [groups, units] that `mask` keeps.

        Raises:
            OpenwaferError: ``mask-structure`` where a block is kept in part.
        """
        return self.unit_scores(mask)

    def spread(self, units: Tensor, shape: Shape) -> Tensor:
        """The mask of `shape` that keeps the marked `units` [groups, units]."""
        return units.reshape(shape)

    def diagonals(self, shape: Shape) -> Tensor:
        """Number of the diagonal on which each unit stands, int64 [groups, units]."""
        return _diagonals(*matrix_shape(shape)).reshape(1, -1)


@dataclass(frozen=True)
class Unstructured(_Units):
    """Every weight by itself; all weights are one group."""

    def __str__(self) -> str:
        return "unstructured"


@dataclass(frozen=True)
class NOfM(_Units):
    """`n` of every `m` weights that follow each other in a row; such `m` are a group."""

    n: int
    m: int

    def __str__(self) -> str:
        return f"{self.n}:{self.m}"

    def mismatch(self, shape: Shape) -> str:
        """See the class that it extends."""
        columns = matrix_shape(shape)[1]
        return f"its {columns} columns are no multiple of {self.m}" if columns % self.m else ""

    def grid(self, shape: Shape) -> tuple[int, int]:
        """See the class that it extends."""
        return math.prod(shape) // self.m, self.m

    def diagonals(self, shape: Shape) -> Tensor:
        """See the class that it extends."""
        rows, columns = matrix_shape(shape)
        return _diagonals(rows, columns // self.m).reshape(-1, 1) + torch.arange(self.m)


@dataclass(frozen=True)
class Blocks(_Units):
    """Blocks of `rows` by `columns` weights; all blocks are one group.

    A block's score is the largest in it (Narang et al., arXiv 1711.02782), which no
    order of sums can change.
    """

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"blocks of {self.rows}x{self.columns}"

    def mismatch(self, shape: Shape) -> str:
        """See the class that it extends."""
        rows, columns = matrix_shape(shape)
        if rows % self.rows:
            return f"its {rows} rows are no multiple of {self.rows}"
        if columns % self.columns:
            return f"its {columns} columns are no multiple of {self.columns}"
        return ""

    def grid(self, shape: Shape) -> tuple[int, int]:
        """See the class that it extends."""
        return 1, math.prod(self._blocks(shape))

    def num_weights(self, num_units: int, shape: Shape) -> int:
        """See the class that it extends."""
        return num_units * self.rows * self.columns

    def unit_scores(self, scores: Tensor) -> Tensor:
        """See the class that it extends."""
        return self._cut(scores).amax(dim=(1, 3)).reshape(1, -1)

    def units_of(self, mask: Tensor) -> Tensor:
        """See the class that it extends."""
        parts = self._cut(mask).transpose(1, 2).flatten(2)
        found = parts.any(dim=2)
        if not torch.equal(found, parts.all(dim=2)):
            num_partly = int((found & ~parts.all(dim=2)).sum())
            raise error(
                "mask-structure",
                f"{num_partly} {self} of {found.numel()} are kept in part",
                help="load a mask of this structure, or choose that of the mask",
            )
        return found.reshape(1, -1)

    def spread(self, units: Tensor, shape: Shape) -> Tensor:
        """See the class that it extends."""
        block_rows, block_columns = self._blocks(shape)
        whole = units.reshape(block_rows, 1, block_columns, 1)
        return whole.expand(-1, self.rows, -1, self.columns).reshape(shape)

    def diagonals(self, shape: Shape) -> Tensor:
        """See the class that it extends."""
        return _diagonals(*self._blocks(shape)).reshape(1, -1)

    def _blocks(self, shape: Shape) -> tuple[int, int]:
        rows, columns = matrix_shape(shape)
        return rows // self.rows, columns // self.columns

    def _cut(self, tensor: Tensor) -> Tensor:
        block_rows, block_columns = self._blocks(tuple(tensor.shape))
        return tensor.reshape(block_rows, self.rows, block_columns, self.columns)


Structure = Unstructured | NOfM | Blocks


def require_fit(structure: Structure, shape: Shape, where: str) -> None:
    """Raise ``mask-shape`` where the weight `where` of `shape` cannot have `structure`."""
    reason = structure.mismatch(shape)
    if reason:
        raise error(
            "mask-shape",
            f"{where} of shape {list(shape)} cannot be {structure}: {reason}",
            help="choose another structure, or leave this parameter out by its filter",
        )


def _whole(product: Fraction, number: int) -> int:
    nearest = round(product)
    return nearest if abs(product - nearest) <= number * FLOAT_ERROR else math.floor(product)


def _diagonals(rows: int, columns: int) -> Tensor:
    return torch.arange(rows).reshape(-1, 1) + torch.arange(columns)


NOT_ELIGIBLE = -1
BITS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.int32: torch.int32,
    torch.int64: torch.int64,
}
NUM_BUCKETS = 2**15 + 1


def largest(scores: Tensor, num: int | Tensor) -> Tensor:
    """Mark the `num` largest scores of each group.

    Args:
        scores: [groups, units]; of equal ones the first are taken.
        num: for all groups, or [groups] int64; never more than a group has eligible units.

    Returns:
        Bool [groups, units].
    """
    num_groups, num_units = scores.shape
    if num_groups == 1:
        return _largest_of_one(scores.reshape(-1), int(num)).reshape(1, -1)
    counts = torch.as_tensor(num, device=scores.device).reshape(-1, 1)
    order = scores.argsort(dim=1, descending=True, stable=True)
    is_taken = (torch.arange(num_units, device=scores.device) < counts).expand(num_groups, -1)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order, is_taken)


def _largest_of_one(scores: Tensor, num: int) -> Tensor:
    # By the value of the last score that is taken, which no sort is needed for.
    if num == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    last = _at_rank(scores, num)
    marked = scores > last
    equal = (scores == last).nonzero().reshape(-1)
    marked[equal[: num - int(marked.count_nonzero())]] = True
    return marked


def _at_rank(scores: Tensor, num: int) -> Tensor:
    """The `num`-th largest of `scores`, all of which are at least 0 or not eligible."""
    # The bits of numbers from 0 up are in the order of the numbers, so the upper 16 sort them into
    # buckets that can be counted; only one bucket must be looked into.
    bits = scores.view(BITS[scores.dtype])
    buckets = (bits >> (8 * scores.element_size() - 16)).clamp_(min=-1).add_(1)
    counts = torch.bincount(buckets, minlength=NUM_BUCKETS).cpu()
    num_from = counts.flip(0).cumsum(0)
    bucket = NUM_BUCKETS - 1 - int((num_from < num).sum())
    inside = scores[buckets == bucket]
    rank = num - int(counts[bucket + 1 :].sum())
    return inside.kthvalue(inside.numel() - rank + 1).values


def count(units: Tensor) -> Tensor:
    """Marked units of each group: int64 [groups] from bool [groups, units]."""
    # A sum makes eight bytes of every bool first, which a count of all of them does not.
    return units.count_nonzero().reshape(1) if len(units) == 1 else units.sum(dim=1)


def are_finite(scores: Tensor) -> bool:
    """Whether all `scores`, magnitudes or not eligible, are finite."""
    return bool(scores.max().isfinite())


def magnitudes(values: Tensor) -> Tensor:
    """Absolute values, in fp32 where `values` are of a shorter format."""
    found = values.detach().abs()
    return found if found.dtype in (torch.float32, torch.float64) else found.float()


def require_finite(weights: Tensor, name: str) -> None:
    """Raise ``weights-not-finite`` where no order can be made of `weights`."""
    num_wrong = int((~weights.isfinite()).sum())
    if num_wrong:
        raise error(
            "weights-not-finite",
            f"{num_wrong} of {weights.numel()} weights of {name} are not finite",
            help="choose random masks, or load other weights",
        )


def random_scores(grid: tuple[int, int], seed: int, step: int, name: str) -> Tensor:
    """A random order of units: int32 [groups, units] of 31 bits, drawn on the host.

    They depend on the arguments alone: NumPy promises that PCG64 draws the same under one seed.
    """
    key = blake2b(f"{seed} {step} {name}".encode(), digest_size=16).digest()
    raw = np.random.PCG64(int.from_bytes(key, "little")).random_raw(grid[0] * grid[1])
    return torch.from_numpy((raw >> np.uint64(33)).astype(np.int32)).reshape(grid)
