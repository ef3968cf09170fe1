"""Fixed-length samples out of documents of any length."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from openwafer.training.data.shard import Shard

Spans = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class JoinedSamples:
    """Cuts the documents, laid end to end, every ``sequence_length`` tokens.

    The tokens behind the last whole sample, fewer than one sample, are left out.
    """

    num_tokens: int
    sequence_length: int

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return self.num_tokens // self.sequence_length

    def spans(self, ids: NDArray[np.int64]) -> Spans:
        """Start in the stream, and length, of each sample."""
        return ids * self.sequence_length, np.full_like(ids, self.sequence_length)


@dataclass(frozen=True)
class SeparateSamples:
    """Cuts each document on its own; its last sample may be short.

    A piece of a single token has nothing to predict and is left out.

    Attributes:
        bounds: document ``d`` is at ``bounds[d]:bounds[d + 1]`` of the stream.
        sequence_length: tokens of a full sample.
    """

    bounds: NDArray[np.int64]
    sequence_length: int

    @cached_property
    def _first_samples(self) -> NDArray[np.int64]:
        """First sample of each document, and the number of all samples behind."""
        num_samples = -(-(np.diff(self.bounds) - 1) // self.sequence_length)
        return np.concatenate(([0], np.cumsum(num_samples)))

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return int(self._first_samples[-1])

    def spans(self, ids: NDArray[np.int64]) -> Spans:
        """Start in the stream, and length, of each sample."""
        documents = np.searchsorted(self._first_samples, ids, side="right") - 1
        pieces = ids - self._first_samples[documents]
        starts = self.bounds[documents] + pieces * self.sequence_length
        lengths = np.minimum(self.sequence_length, self.bounds[documents + 1] - starts)
        return starts, lengths


class TokenStream:
    """The tokens of several shards as one sequence."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._tokens = [shard.tokens for shard in shards]
        sizes = [shard.header.num_tokens for shard in shards]
        self._starts = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        self._bounds = [shard.bounds for shard in shards]

    @property
    def num_tokens(self) -> int:
        """Tokens of all shards."""
        return int(self._starts[-1])

    def document_bounds(self) -> NDArray[np.int64]:
        """Bounds of every document in the stream, [num_documents + 1]."""
        starts = zip(self._bounds, self._starts, strict=False)
        moved = [bounds[:-1].astype(np.int64) + start for bounds, start in starts]
        return np.concatenate((*moved, [self.num_tokens]))

    def gather(self, spans: Spans, sequence_length: int, padding: int) -> NDArray[np.int64]:
        """Tokens of ``spans``, [samples, sequence_length], ``padding`` behind short ones."""
        starts, lengths = spans
        out = np.full((starts.size, sequence_length), padding, np.int64)
        firsts = np.searchsorted(self._starts, starts, side="right") - 1
        for row, start, length, first in zip(out, starts, lengths, firsts, strict=True):
            self._copy(int(start), row[:length], int(first))
        return out

    def _copy(self, start: int, out: NDArray[np.int64], shard: int) -> None:
        done = 0
        while done < out.size:
            offset = start + done - int(self._starts[shard])
            found = self._tokens[shard][offset : offset + out.size - done]
            out[done : done + found.size] = found
            done += found.size
            shard += 1
