"""Activations cut into pieces of some tokens, and the numbers of a piece that are not zero."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openwafer.training.sparsity.activations.loops import count, spread, take
from openwafer.training.sparsity.kernels.index import Walk, most_words, write_walks
from openwafer.training.sparsity.pattern import Pattern, column_dtype

LEAST_ZEROS: Final = 0.75
"""Share of zeros from which on products that skip them are faster: see the journal."""
FEWEST_TOKENS: Final = 256
PIECE_TOKENS: Final = 1024
PIECE_NUMBERS: Final = 1 << 22
ALIGNMENT: Final = 64


@dataclass(frozen=True)
class Pieces:
    """How activations `[tokens, features]` are cut; a piece is enough to use each weight often."""

    tokens: int
    features: int

    @property
    def piece_tokens(self) -> int:
        """Tokens of a piece; the last one may have fewer."""
        most = max(FEWEST_TOKENS, min(PIECE_TOKENS, PIECE_NUMBERS // max(1, self.features)))
        return max(1, min(most, self.tokens))

    @property
    def most_kept(self) -> int:
        """Most numbers of a piece that are not zero, where zeros are skipped."""
        return int(self.piece_tokens * self.features * (1 - LEAST_ZEROS))

    @property
    def workspace_bytes(self) -> int:
        """Bytes in which a piece's numbers, their columns and their index find room."""
        words = most_words((self.piece_tokens, self.features), self.most_kept)
        number_bytes = 4 + column_dtype(self.features).itemsize
        return 4 * words + number_bytes * (self.most_kept + 1) + 3 * ALIGNMENT

    def __iter__(self) -> Iterator[slice]:
        for first in range(0, self.tokens, self.piece_tokens):
            yield slice(first, min(first + self.piece_tokens, self.tokens))

    def skip_zeros(self, counts: NDArray[np.int64]) -> bool:
        """Whether products skip zeros: by the numbers of each token that are not zero."""
        most = self.features * (1 - LEAST_ZEROS)
        return self.tokens >= FEWEST_TOKENS and all(
            counts[piece].sum() <= most * counts[piece].size for piece in self
        )


@dataclass(frozen=True)
class Piece:
    """What is not zero among the activations of some tokens.

    Attributes:
        pattern: `[tokens, features]`, where it is.
        values: `[num_kept]`.
        walks: of the pattern; with rows and columns exchanged where that was asked for.
    """

    pattern: Pattern
    values: Tensor
    walks: list[Walk]

    def spread(self, values: Tensor, rows: Tensor) -> None:
        """Set `rows [tokens, features]` to values at the positions, and to zero elsewhere."""
        spread(self.pattern.row_starts, self.pattern.columns, values.numpy(), rows.numpy())


def counts_of(activations: Tensor) -> NDArray[np.int64]:
    """Numbers of each of `activations [tokens, features]` that are not zero."""
    counts = np.empty(len(activations), np.int64)
    count(activations.numpy(), counts)
    return counts


def taken(
    activations: Tensor, counts: NDArray[np.int64], workspace: Tensor, *, has_transposed: bool
) -> Piece:
    """A piece, by views of the workspace, which are good until the next one is taken from it."""
    tokens, features = activations.shape
    starts = np.zeros(tokens + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    num_kept = int(starts[-1])
    columns, rest = _cut(workspace.numpy(), column_dtype(features), num_kept + 1)
    values, rest = _cut(rest, np.dtype(np.float32), num_kept + 1)
    take(activations.numpy(), columns, values)
    pattern = Pattern((tokens, features), starts, columns[:-1])
    words, _ = _cut(rest, np.dtype(np.int32), most_words(pattern.shape, num_kept))
    walks = write_walks(pattern, words, has_transposed=has_transposed)
    return Piece(pattern, torch.from_numpy(values[:-1]), walks)


def _cut(
    memory: NDArray[np.uint8], dtype: "np.dtype[Any]", count: int
) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """An array at the beginning of memory, and the memory behind it."""
    end = count * dtype.itemsize
    return memory[:end].view(dtype), memory[-(-end // ALIGNMENT) * ALIGNMENT :]
