"""How a stream of tokens is cut into samples, and the tokens of several shards as one stream."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from openwafer.training.data.shards import Shard

_TOKENS_AT_ONCE: Final = 2**21
"""Whose marks are read at a time."""

Spans = tuple[NDArray[np.int64], NDArray[np.int64]]


class Samples(Protocol):
    """How a stream of tokens is cut."""

    @property
    def sequence_length(self) -> int:
        """Tokens of a full sample."""

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""

    def spans(self, ids: NDArray[np.int64]) -> Spans:
        """Start in the stream, and length, of each sample."""


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


@dataclass(frozen=True)
class ShiftedSamples:
    """Samples of a part of a stream, by their places in all of it.

    Attributes:
        samples: the cut of the part.
        start: tokens before the part.
    """

    samples: Samples
    start: int

    @property
    def sequence_length(self) -> int:
        """Tokens of a full sample."""
        return self.samples.sequence_length

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return self.samples.num_samples

    def spans(self, ids: NDArray[np.int64]) -> Spans:
        """Start in the stream, and length, of each sample."""
        starts, lengths = self.samples.spans(ids)
        return starts + self.start, lengths


@dataclass(frozen=True)
class ChosenSamples:
    """Some of the samples that others cut.

    Attributes:
        samples: the cut.
        chosen: which of them, rising.
    """

    samples: Samples
    chosen: NDArray[np.int64]

    @property
    def sequence_length(self) -> int:
        """Tokens of a full sample."""
        return self.samples.sequence_length

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return self.chosen.size

    def spans(self, ids: NDArray[np.int64]) -> Spans:
        """Start in the stream, and length, of each sample."""
        return self.samples.spans(self.chosen[ids])


class TokenStream:
    """The tokens of several shards as one sequence."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
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

    def parts(self, sizes: Sequence[int]) -> Iterator[tuple[int, "TokenStream"]]:
        """Streams of so many shards each, one behind the other, and how many tokens are before."""
        first = 0
        for size in sizes:
            yield int(self._starts[first]), TokenStream(self._shards[first : first + size])
            first += size

    @property
    def is_marked(self) -> bool:
        """Whether some of the tokens are no targets."""
        return any(shard.marks is not None for shard in self._shards)

    def gather(self, spans: Spans, sequence_length: int, padding: int) -> NDArray[np.int64]:
        """Tokens of ``spans``, [samples, sequence_length], ``padding`` behind short ones."""
        out = np.full((spans[0].size, sequence_length), padding, np.int64)
        self._fill(out, spans, lambda shard, start, stop: shard.tokens[start:stop])
        return out

    def are_targets(self, spans: Spans, sequence_length: int) -> NDArray[np.bool_]:
        """Whether each token of ``spans`` is to be learned, [samples, sequence_length]."""
        out = np.zeros((spans[0].size, sequence_length), np.bool_)
        self._fill(out, spans, Shard.are_targets)
        return out

    def _fill(
        self, out: NDArray[Any], spans: Spans, take: Callable[[Shard, int, int], NDArray[Any]]
    ) -> None:
        """Let each row begin with what is taken of the shards where a span lies."""
        for row, pieces in zip(out, self._pieces(spans), strict=True):
            done = 0
            for shard, start, stop in pieces:
                row[done : done + stop - start] = take(shard, start, stop)
                done += stop - start

    def _pieces(self, spans: Spans) -> Iterator[list[tuple[Shard, int, int]]]:
        """Where each of ``spans`` lies in which shards."""
        firsts = np.searchsorted(self._starts, spans[0], side="right") - 1
        for start, length, first in zip(*spans, firsts, strict=True):
            yield list(self._cut(int(start), int(start + length), int(first)))

    def _cut(self, start: int, end: int, number: int) -> Iterator[tuple[Shard, int, int]]:
        while start < end:
            first, last = (int(one) for one in self._starts[number : number + 2])
            stop = min(end, last)
            if start < stop:
                yield self._shards[number], start - first, stop - first
            start, number = stop, number + 1

    def taught(self, samples: Samples) -> ChosenSamples:
        """Those of the samples that have a target behind their first token.

        Samples lie one behind the other, so that a stretch of tokens holds those of many.
        """
        chosen: list[NDArray[np.int64]] = []
        at_once = -(-_TOKENS_AT_ONCE // samples.sequence_length)
        for first in range(0, samples.num_samples, at_once):
            ids = np.arange(first, min(first + at_once, samples.num_samples))
            starts, lengths = samples.spans(ids)
            begin, ends = starts[0], starts + lengths
            whole = int(ends[-1] - begin)
            marks = self.are_targets((starts[:1], np.array([whole])), whole)[0]
            earlier = np.concatenate(([0], np.cumsum(marks, dtype=np.int64)))
            chosen.append(ids[earlier[ends - begin] > earlier[starts + 1 - begin]])
        return ChosenSamples(samples, np.concatenate([np.zeros(0, np.int64), *chosen]))
