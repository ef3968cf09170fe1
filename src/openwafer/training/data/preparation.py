"""Makes a folder of token shards from a data source, once, and reuses it while nothing changes.

One document and one shard are in memory at most.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from math import inf
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from openwafer.config import InvalidFieldError, PathLike, path_of
from openwafer.diagnostics import error
from openwafer.folder_lock import folder_to_itself
from openwafer.training.data.chat_template import ChatTemplate
from openwafer.training.data.chats import Chat, Completion
from openwafer.training.data.dataset import Sampling, TokenDataset
from openwafer.training.data.documents import Document, read_files
from openwafer.training.data.mix import Sources, check_sources, parts_of, shares_of
from openwafer.training.data.shards import (
    INDEX_FILE,
    VERSION,
    Index,
    ShardHeader,
    Split,
    TokenisedDocument,
    read_index,
    write_index,
    write_shard,
)
from openwafer.training.data.sources import DataSource, Learn, fingerprint, list_files
from openwafer.training.data.tokenizer import (
    SavedTokenizer,
    Tokenizer,
    TokenizerTraining,
    cut_at_line_ends,
    load_tokenizer,
    train_tokenizer,
)

PIECE_CHARS = 256 * 1024
BATCH_CHARS = 2 * 1024**2


@dataclass(frozen=True)
class Encoding:
    """How the documents of a source become token ids.

    Attributes:
        tokenizer: of the texts.
        saved: the folder whose template the chats follow; ``None`` where the tokenizer is trained.
        learn: which tokens are targets.
    """

    tokenizer: Tokenizer
    saved: SavedTokenizer | None = None
    learn: Learn = Learn.ANSWERS

    @cached_property
    def template(self) -> ChatTemplate:
        """That of the tokenizer's folder."""
        is_answers_only = self.learn is Learn.ANSWERS
        template = ChatTemplate.load(_folder_of(self.saved), is_answers_only=is_answers_only)
        if self.tokenizer.is_splitting:
            raise error(
                "split-chat",
                "the special tokens of a chat template would be encoded as ordinary characters",
                help="set tokenizer.split_special_tokens: false",
            )
        return template

    def encode(self, documents: Iterable[Document]) -> Iterator[TokenisedDocument]:
        """Yield the ids of each document, in their order."""
        for kind, group in groupby(documents, lambda document: type(document.content)):
            if kind is str:
                texts = (document.text for document in group)
                yield from map(TokenisedDocument, tokenise(texts, self.tokenizer))
            else:
                yield from map(self._encode, group)

    def _encode(self, document: Document) -> TokenisedDocument:
        content = document.content
        if isinstance(content, Chat):
            return self._within(self.template.encode(content, document.origin), document)
        learned_from = len(content.prompt) if isinstance(content, Completion) else 0
        ids, marks = self.tokenizer.encode_marking(document.text, learned_from)
        are_targets = np.array([*marks, True]) if self.learn is Learn.ANSWERS else None
        end = self.tokenizer.end_of_text_id
        return TokenisedDocument(np.array([*ids, end], np.uint32), are_targets)

    def _within(self, found: TokenisedDocument, document: Document) -> TokenisedDocument:
        """A folder's settings may add tokens that are not in its tokenizer.json."""
        largest = int(found.ids.max(initial=0))
        if largest >= self.tokenizer.vocab_size:
            raise error(
                "token-of-settings",
                f"{document.origin}: the chat template of {_folder_of(self.saved)} writes token "
                f"{largest}, and its tokenizer.json has {self.tokenizer.vocab_size} tokens",
                help="load the folder with transformers and save it with save_pretrained, which "
                "writes the tokens of tokenizer_config.json into tokenizer.json",
            )
        return found


def _folder_of(saved: SavedTokenizer | None) -> Path:
    if saved is None:
        raise error(
            "no-chat-template",
            "the source holds chats, and a tokenizer that is trained has no template for them",
            help="set tokenizer: {path: FOLDER, split_special_tokens: false} to the folder of a "
            "tokenizer that has a chat template",
        )
    return saved.path.expanduser()


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
        self._documents: list[TokenisedDocument] = []
        self._num_tokens = 0
        self._headers: dict[str, ShardHeader] = {}

    def add(self, document: TokenisedDocument) -> None:
        """Append one document of at least one token."""
        self._documents.append(document)
        self._num_tokens += document.ids.size
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


REPORT_BYTES = 1024**2
KEY_DIGITS = 16


@dataclass(frozen=True)
class DataConfig:
    """The data of a run.

    Attributes:
        source: where documents come from; of a mix, each source with its share of the samples,
            which becomes that of ``sampling``.
        tokenizer: how they become tokens.
        sampling: how tokens become batches.
        validation_share: share of the documents kept for validation, in [0, 1).
        split_seed: decides which documents; apart from the seed of the order, so that runs of
            several seeds validate on the same documents.
        shard_tokens: a shard is closed by the first document that fills it so far.
    """

    source: Sources
    tokenizer: TokenizerTraining | SavedTokenizer = field(default_factory=TokenizerTraining)
    sampling: Sampling = field(default_factory=Sampling)
    validation_share: float = 0.05
    split_seed: int = 0
    shard_tokens: int = 32 * 1024**2

    def __post_init__(self) -> None:
        check_sources(self.source)
        sampling = replace(self.sampling, shares=shares_of(self.source))
        object.__setattr__(self, "sampling", sampling)
        if not 0 <= self.validation_share < 1:
            raise InvalidFieldError(
                "validation_share",
                f"expected at least 0 and below 1, found {self.validation_share}",
                help="0.05 keeps about every twentieth document",
            )
        if self.shard_tokens < 1:
            raise InvalidFieldError(
                "shard_tokens", f"expected at least 1, found {self.shard_tokens}"
            )


class Stage(StrEnum):
    """The stages of ``prepare``."""

    TRAIN_TOKENIZER = "train tokenizer"
    TOKENISE = "tokenise"


@dataclass(frozen=True)
class Preparation:
    """How far a stage is, in bytes of source files (a good guess for table files)."""

    stage: Stage
    done_bytes: int
    total_bytes: int
    num_documents: int


Report = Callable[[Preparation], None]


def _silent(_: Preparation) -> None:
    pass


def prepare(config: DataConfig, folder: PathLike, progress: Report = _silent) -> TokenDataset:
    """Tokenise the source into a folder in ``folder``, unless it holds exactly that already.

    Several processes may call this for one folder, with any configs: equal ones share what one of
    them builds while the others wait, different ones leave each other's data alone.

    Args:
        config: source, tokenizer and sampling.
        folder: made when missing; receives a folder, named by all that the tokens depend on, with
            tokenizer.json, the shards and dataset.json.
        progress: called every megabyte of source, and at the end of each stage.

    Returns:
        The train split, for rank 0 of 1.
    """
    folder = path_of(folder, "folder")
    documents = _Documents.of(config, progress)
    key, texts_key = _keys(config, documents)
    try:
        of_texts = folder / texts_key[:KEY_DIGITS]
        if _holds(of_texts, texts_key):
            return TokenDataset.open(of_texts, config.sampling)
        own = folder / key[:KEY_DIGITS]
        own.mkdir(parents=True, exist_ok=True)
        with folder_to_itself(own):
            if not _holds(own, key):
                _build(config, documents, own, key)
        return TokenDataset.open(own, config.sampling)
    except OSError as problem:
        raise error(
            "cannot-prepare-data",
            f"data cannot be prepared in {folder}: {problem}",
            help="choose another folder, or free space on its disk",
        ) from problem


def _holds(folder: Path, key: str) -> bool:
    return (folder / INDEX_FILE).is_file() and read_index(folder).key == key


def _keys(config: DataConfig, documents: "_Documents") -> tuple[str, str]:
    """Fingerprints of everything the shards depend on; sampling and shares are not among it.

    The second leaves out how chats are written. Shards of releases that took no chats have it, and
    no others where there is a template, so that texts are not tokenised again.
    """
    chat_settings = ""
    match config.tokenizer:
        case TokenizerTraining():
            tokenizer = repr(config.tokenizer)
            if config.tokenizer.special_tokens:
                tokenizer += repr(config.tokenizer.special_tokens)
        case SavedTokenizer():
            loaded = _loaded_tokenizer(config.tokenizer)
            tokenizer, chat_settings = loaded.fingerprint, loaded.chat_settings
    sources = [fingerprint(source, files) for source, files in documents.sources]
    others = (config.validation_share, config.split_seed, config.shard_tokens, VERSION)
    joined = "\0".join(sources)
    key, texts_key = (
        xxhash.xxh3_128_hexdigest(repr((joined, tokenizer + chats, *others)).encode())
        for chats in (chat_settings, "")
    )
    return key, texts_key


@dataclass(frozen=True)
class _Documents:
    """The documents of all sources, which report how far they are read."""

    sources: Sequence[tuple[DataSource, Sequence[Path]]]
    report: Report

    @classmethod
    def of(cls, config: DataConfig, report: Report) -> "_Documents":
        return cls([(source, list_files(source)) for source in parts_of(config.source)], report)

    def read(self, stage: Stage, limits: Sequence[float]) -> Iterator[tuple[int, Document]]:
        """Yield the documents of each source up to the one that reaches its limit of bytes.

        The number of its source, from 0, is beside each.
        """
        sizes = [sum(file.stat().st_size for file in files) for _, files in self.sources]
        totals = [int(min(size, limit)) for size, limit in zip(sizes, limits, strict=True)]
        earlier = num_documents = reported_bytes = 0
        for number, (source, files) in enumerate(self.sources):
            done_bytes = 0
            for document in read_files(source, files):
                yield number, document
                done_bytes += document.source_bytes
                num_documents += 1
                if done_bytes >= limits[number]:
                    break
                if earlier + done_bytes - reported_bytes >= REPORT_BYTES:
                    reported_bytes = earlier + done_bytes
                    shown_bytes = earlier + min(done_bytes, totals[number])
                    self.report(Preparation(stage, shown_bytes, sum(totals), num_documents))
            earlier += totals[number]
        self.report(Preparation(stage, sum(totals), sum(totals), num_documents))


def _build(config: DataConfig, documents: _Documents, folder: Path, key: str) -> None:
    tokenizer, saved = _tokenizer(config, documents)
    parts: list[dict[Split, dict[str, ShardHeader]]] = []
    sources = parts_of(config.source)
    everything = documents.read(Stage.TOKENISE, [inf] * len(sources))
    for source, group in groupby(everything, lambda one: one[0]):
        encoding = Encoding(tokenizer, saved, sources[source].learn)
        encoded = encoding.encode(document for _, document in group)
        parts.append(_written(config, encoded, folder, tokenizer, source))
    shards = {
        split: {n: one for part in parts for n, one in part[split].items()} for split in Split
    }
    counts = {split: tuple(len(part[split]) for part in parts) for split in Split}
    index = Index(key, tokenizer.fingerprint, shards, counts if config.sampling.shares else {})
    # Without an index, a crash between the two files leaves no index beside a foreign tokenizer.
    (folder / INDEX_FILE).unlink(missing_ok=True)
    tokenizer.save(folder)
    write_index(folder, index)
    _remove_unlisted(folder, index)


def _tokenizer(
    config: DataConfig, documents: _Documents
) -> tuple[Tokenizer, SavedTokenizer | None]:
    """The tokenizer, and where it was loaded from. Each source trains it by its share."""
    match config.tokenizer:
        case TokenizerTraining(vocab_size, training_bytes, special_tokens):
            shares = config.sampling.shares or (1.0,)
            limits = [training_bytes * share / sum(shares) for share in shares]
            read = documents.read(Stage.TRAIN_TOKENIZER, limits)
            texts = _texts(document for _, document in read)
            return train_tokenizer(texts, vocab_size, special_tokens), None
        case SavedTokenizer() as saved:
            return _loaded_tokenizer(saved), saved


def _written(
    config: DataConfig,
    documents: Iterable[TokenisedDocument],
    folder: Path,
    tokenizer: Tokenizer,
    source: int,
) -> dict[Split, dict[str, ShardHeader]]:
    """Shards of one source, by split."""
    prefix = f"{source}-" if config.sampling.shares else ""
    writers = {
        split: ShardWriter(folder, f"{prefix}{split}", config.shard_tokens, tokenizer)
        for split in Split
    }
    for number, document in enumerate(documents):
        writers[_split_of(number, config)].add(document)
    return {split: writer.close() for split, writer in writers.items()}


def _texts(documents: Iterable[Document]) -> Iterator[str]:
    for document in documents:
        if isinstance(document.content, Chat):
            _folder_of(None)
        yield document.text


def _loaded_tokenizer(saved: SavedTokenizer) -> Tokenizer:
    return load_tokenizer(
        saved.path.expanduser(),
        saved.end_of_text,
        split_special_tokens=saved.split_special_tokens,
    )


def _split_of(number: int, config: DataConfig) -> Split:
    """A keyed hash of the document's number, so that documents added behind move no other."""
    drawn = xxhash.xxh3_64_intdigest(f"{config.split_seed} {number}".encode())
    return Split.VALIDATION if drawn < config.validation_share * 2**64 else Split.TRAIN


def _remove_unlisted(folder: Path, index: Index) -> None:
    """Delete what a build that was killed has left."""
    listed = {file for shards in index.shards.values() for file in shards}
    for file in folder.glob("*.tokens"):
        if file.name not in listed:
            file.unlink()
