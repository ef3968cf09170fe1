"""Turns documents into shards of token ids, with one document and one shard in memory at most."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openwafer.training.data.shard import ShardHeader, write_shard
from openwafer.training.data.tokenizer import Tokenizer, cut_at_line_ends

PIECE_CHARS = 256 * 1024
BATCH_CHARS = 2 * 1024**2


def tokenise(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[NDArray[np.uint32]]:
    """Yield the ids of each text, its end-of-text token last.

    Texts are encoded several at a time, in parallel. One of more than ``PIECE_CHARS`` characters
    is encoded in pieces cut behind a line end, so no token spans the cut.
    """
    end = np.array([tokenizer.end_of_text_id], np.uint32)
    parts: list[NDArray[np.uint32]] = []
    for batch in _batches(texts):
        for piece, ids in zip(batch, tokenizer.encode_batch([p.text for p in batch]), strict=True):
            parts.append(np.array(ids, np.uint32))
            if piece.is_last:
                yield np.concatenate((*parts, end))
                parts = []


@dataclass(frozen=True)
class _Piece:
    text: str
    is_last: bool


def _batches(texts: Iterable[str]) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    num_chars = 0
    for text in texts:
        pieces = list(cut_at_line_ends(text, PIECE_CHARS))
        for number, piece in enumerate(pieces, start=1):
            batch.append(_Piece(piece, is_last=number == len(pieces)))
            num_chars += len(piece)
            if num_chars >= BATCH_CHARS:
                yield batch
                batch, num_chars = [], 0
    if batch:
        yield batch


class ShardWriter:
    """Collects documents and writes a shard whenever it has ``shard_tokens`` of them."""

    def __init__(self, folder: Path, prefix: str, shard_tokens: int, tokenizer: Tokenizer) -> None:
        self._folder = folder
        self._prefix = prefix
        self._shard_tokens = shard_tokens
        self._tokenizer = tokenizer
        self._documents: list[NDArray[np.uint32]] = []
        self._num_tokens = 0
        self._headers: dict[str, ShardHeader] = {}

    def add(self, document: NDArray[np.uint32]) -> None:
        """Append one document of at least one token."""
        self._documents.append(document)
        self._num_tokens += document.size
        if self._num_tokens >= self._shard_tokens:
            self._write()

    def close(self) -> dict[str, ShardHeader]:
        """Write what is left; returns the header of each file, in order."""
        if self._documents:
            self._write()
        return self._headers

    def _write(self) -> None:
        name = f"{self._prefix}-{len(self._headers):05}.tokens"
        fingerprint, vocab_size = self._tokenizer.fingerprint, self._tokenizer.vocab_size
        header = write_shard(self._folder / name, self._documents, fingerprint, vocab_size)
        self._headers[name] = header
        self._documents = []
        self._num_tokens = 0
