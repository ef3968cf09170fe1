"""Packing cuts documents into samples of one length; no token is lost or doubled."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from openwafer.training.data.samples import JoinedSamples, SeparateSamples, TokenStream
from openwafer.training.data.shards import Shard, ShardHeader

PADDING = 9_999
DOCUMENT_LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=12)
SHARD_SIZES = st.integers(1, 12)
LENGTHS = st.integers(2, 20)


def shard_of(documents: list[NDArray[np.uint32]]) -> Shard:
    tokens = np.concatenate(documents)
    bounds = np.cumsum([0, *map(len, documents)]).astype(np.uint64)
    header = ShardHeader("u32", tokens.size, len(documents), "", "")
    return Shard(Path(), header, tokens, bounds)


def stream_of(lengths: list[int], documents_a_shard: int) -> TokenStream:
    """Documents of the given lengths, whose tokens count 0, 1, 2 ... through all shards."""
    edges = np.cumsum(lengths)
    documents = np.split(np.arange(edges[-1], dtype=np.uint32), edges[:-1])
    firsts = range(0, len(documents), documents_a_shard)
    return TokenStream([shard_of(documents[n : n + documents_a_shard]) for n in firsts])


def all_samples(stream: TokenStream, samples: JoinedSamples | SeparateSamples) -> list[list[int]]:
    """Every sample without its padding."""
    ids = np.arange(samples.num_samples)
    rows = stream.gather(samples.spans(ids), samples.sequence_length, PADDING)
    return [[token for token in row if token != PADDING] for row in rows.tolist()]


def cut(tokens: list[int], length: int) -> list[list[int]]:
    return [tokens[start : start + length] for start in range(0, len(tokens), length)]


@given(DOCUMENT_LENGTHS, SHARD_SIZES, LENGTHS)
def test_joined_samples_hold_each_token_once_up_to_the_last_whole_sample(
    lengths: list[int], documents_a_shard: int, length: int
) -> None:
    stream = stream_of(lengths, documents_a_shard)
    samples = all_samples(stream, JoinedSamples(stream.num_tokens, length))
    whole = sum(lengths) // length * length
    assert samples == cut(list(range(whole)), length)


@given(DOCUMENT_LENGTHS, SHARD_SIZES, LENGTHS)
def test_separate_samples_hold_each_token_once_but_pieces_of_one_token(
    lengths: list[int], documents_a_shard: int, length: int
) -> None:
    stream = stream_of(lengths, documents_a_shard)
    samples = all_samples(stream, SeparateSamples(stream.document_bounds(), length))
    ends = np.cumsum(lengths).tolist()
    pieces = [
        piece
        for end, size in zip(ends, lengths, strict=True)
        for piece in cut(list(range(end - size, end)), length)
    ]
    assert samples == [piece for piece in pieces if len(piece) > 1]


@given(DOCUMENT_LENGTHS, SHARD_SIZES)
def test_document_bounds_run_through_all_shards(lengths: list[int], documents_a_shard: int) -> None:
    stream = stream_of(lengths, documents_a_shard)
    assert stream.document_bounds().tolist() == [0, *np.cumsum(lengths)]
