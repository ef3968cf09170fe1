"""Token shards, memory-mapped files of token ids with the bounds of documents, and their index.

docs/formats/openwafer-token-shard.md describes the bytes.
"""

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from openwafer import atomic_file
from openwafer.atomic_file import replacing
from openwafer.diagnostics import OpenwaferError, error
from openwafer.json_files import Count, JsonMistake, SealedFormat, decode, encode, path_named

FORMAT = "openwafer-token-shard"
VERSION = 1
VERSION_OF_MARKED = 2
"""Of a shard that marks which tokens are targets."""
HEADER_BYTES = 4096
_DTYPES: dict[str, np.dtype[Any]] = {"u16": np.dtype("<u2"), "u32": np.dtype("<u4")}
_BOUND = np.dtype("<u8")

Tokens = NDArray[np.uint16] | NDArray[np.uint32]


@dataclass(frozen=True)
class ShardHeader:
    """The head of a shard.

    Attributes:
        dtype: ``u16`` where every id of the vocabulary fits, else ``u32``; little-endian.
        num_tokens: tokens of all documents, ends of text included.
        num_documents: documents, each of at least one token.
        tokenizer: fingerprint of the tokenizer that made the ids.
        checksum: XXH3-128 of everything behind the header, in hexadecimal.
        num_targets: tokens that a model learns to predict, where they are marked; ``None`` where
            all are.
    """

    dtype: str
    num_tokens: Count
    num_documents: Count
    tokenizer: str
    checksum: str
    # Fingerprints of data without marks stay those of releases that had none.
    num_targets: Count | None = field(default=None, repr=False)

    @property
    def tokens_bytes(self) -> int:
        """Size of the ids, padded to where the bounds start."""
        return _padded(self.num_tokens * _DTYPES[self.dtype].itemsize)

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.marks_start + self.marks_bytes

    @property
    def marks_start(self) -> int:
        """Where the marks of targets begin, if there are any."""
        return HEADER_BYTES + self.tokens_bytes + (self.num_documents + 1) * _BOUND.itemsize

    @property
    def marks_bytes(self) -> int:
        """Size of the marks: a bit a token."""
        return 0 if self.num_targets is None else -(-self.num_tokens // 8)


@dataclass(frozen=True)
class Shard:
    """An open shard.

    Attributes:
        path: its file.
        header: see ``ShardHeader``.
        tokens: ids, [num_tokens], mapped from the file.
        bounds: document ``d`` is ``tokens[bounds[d]:bounds[d + 1]]``; [num_documents + 1].
        marks: bit ``t``, from the lowest of each byte, says that token ``t`` is a target;
            [num_tokens / 8], rounded up. ``None`` where all tokens are.
    """

    path: Path
    header: ShardHeader
    tokens: Tokens
    bounds: NDArray[np.uint64]
    marks: NDArray[np.uint8] | None = None

    def are_targets(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Whether each token from one up to another is a target."""
        if self.marks is None:
            return np.ones(stop - start, np.bool_)
        first = start // 8
        bits = np.unpackbits(self.marks[first : -(-stop // 8)], bitorder="little")
        return bits[start - 8 * first : stop - 8 * first].astype(np.bool_)


@dataclass(frozen=True)
class TokenisedDocument:
    """A document as token ids.

    Attributes:
        ids: [tokens].
        are_targets: which of them a model learns to predict, [tokens]; ``None`` for all.
    """

    ids: NDArray[np.uint32]
    are_targets: NDArray[np.bool_] | None = None


def write_shard(
    path: Path, documents: Sequence[TokenisedDocument], tokenizer: str, vocab_size: int
) -> ShardHeader:
    """Write ``documents`` as one shard, atomically.

    Args:
        path: file to replace.
        documents: token ids of each document, below ``vocab_size``.
        tokenizer: fingerprint of the tokenizer.
        vocab_size: decides between u16 and u32.
    """
    name = "u16" if vocab_size <= 2**16 else "u32"
    ids = [document.ids for document in documents]
    tokens = np.concatenate(ids, dtype=_DTYPES[name], casting="same_kind")
    bounds = np.zeros(len(documents) + 1, _BOUND)
    np.cumsum([len(document) for document in ids], out=bounds[1:])
    padding = bytes(_padded(tokens.nbytes) - tokens.nbytes)
    marks, num_targets = _marks(documents)
    content = (tokens.data, padding, bounds.data, marks)
    header = ShardHeader(
        name, tokens.size, len(documents), tokenizer, _checksum(*content), num_targets
    )
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.writelines((_header_bytes(header), *content))
    except OSError as problem:
        raise error(
            "cannot-write-shard",
            f"{path} of {header.file_bytes} bytes cannot be written: {problem}",
            help="free space on this disk, or choose another folder for the data",
        ) from problem
    return header


def _marks(documents: Sequence[TokenisedDocument]) -> tuple[bytes, int | None]:
    """Bits of all tokens, and how many are set; nothing where no document has marks."""
    if all(document.are_targets is None for document in documents):
        return b"", None
    are_targets = np.concatenate(
        [
            np.ones(len(document.ids), np.bool_)
            if document.are_targets is None
            else document.are_targets
            for document in documents
        ]
    )
    return np.packbits(are_targets, bitorder="little").tobytes(), int(are_targets.sum())


def open_shard(path: Path, *, verify: bool = True) -> Shard:
    """Map a shard.

    Args:
        path: file to open.
        verify: reads the whole file once and compares its checksum.
    """
    if not path.is_file():
        raise error("shard-missing", f"the token shard {path} does not exist", help=_REMEDY)
    found_bytes = path.stat().st_size
    if found_bytes < HEADER_BYTES:
        raise _corrupt(path, "size", f"at least {HEADER_BYTES} bytes", f"{found_bytes} bytes")
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header = _parse_header(path, mapped[:HEADER_BYTES])
    if found_bytes != header.file_bytes:
        raise _corrupt(path, "size", f"{header.file_bytes} bytes", f"{found_bytes} bytes")
    if verify:
        found = _checksum(memoryview(mapped)[HEADER_BYTES:])
        if found != header.checksum:
            raise _corrupt(path, "checksum", header.checksum, found)
    tokens: Tokens = np.frombuffer(mapped, _DTYPES[header.dtype], header.num_tokens, HEADER_BYTES)
    bounds_start = HEADER_BYTES + header.tokens_bytes
    bounds: NDArray[np.uint64] = np.frombuffer(
        mapped, _BOUND, header.num_documents + 1, bounds_start
    )
    marks: NDArray[np.uint8] | None = None
    if header.num_targets is not None:
        marks = np.frombuffer(mapped, np.uint8, header.marks_bytes, header.marks_start)
    return Shard(path, header, tokens, bounds, marks)


def _version(header: ShardHeader) -> int:
    return VERSION if header.num_targets is None else VERSION_OF_MARKED


def _header_bytes(header: ShardHeader) -> bytes:
    content = {"format": FORMAT, "version": _version(header), **asdict(header)}
    if header.num_targets is None:
        del content["num_targets"]
    return encode(content).ljust(HEADER_BYTES - 1) + b"\n"


@dataclass(frozen=True, kw_only=True)
class _FileHeader(ShardHeader):
    format: str
    version: int


def _parse_header(path: Path, raw: bytes) -> ShardHeader:
    try:
        found = asdict(decode(_FileHeader, raw))
    except JsonMistake as problem:
        raise _corrupt(path, "header", f"JSON of format {FORMAT}", str(problem)) from None
    named, version = found.pop("format"), found.pop("version")
    header = ShardHeader(**found)
    for key, value, expected in (
        ("format", named, FORMAT),
        ("version", version, _version(header)),
    ):
        if value != expected:
            raise _corrupt(path, key, repr(expected), repr(value))
    if header.dtype not in _DTYPES:
        raise _corrupt(path, "dtype", " or ".join(_DTYPES), repr(header.dtype))
    return header


_REMEDY = "delete dataset.json beside it; the next run tokenises the source again"


def _corrupt(path: Path, what: str, expected: str, found: str) -> OpenwaferError:
    return error(
        "shard-corrupt",
        f"the token shard {path} is damaged: {what}: expected {expected}, found {found}",
        help=_REMEDY,
    )


def _checksum(*parts: memoryview | bytes) -> str:
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _BOUND.itemsize) * _BOUND.itemsize


INDEX_FILE = "dataset.json"


class Split(StrEnum):
    """A set of documents; each document is in exactly one."""

    TRAIN = "train"
    VALIDATION = "validation"


@dataclass(frozen=True)
class Index:
    """Names all shards of a data folder.

    Attributes:
        key: fingerprint of all that the shards were made from.
        tokenizer: fingerprint of the tokenizer beside the index.
        shards: file names and headers by split, in order.
        parts: of a mix, how many of a split's shards are of which source, in order; empty where
            there is one source.
    """

    key: str
    tokenizer: str
    shards: Mapping[Split, Mapping[str, ShardHeader]]
    parts: Mapping[Split, tuple[int, ...]] = field(default_factory=dict)

    def of_split(self, split: Split) -> Mapping[str, ShardHeader]:
        """The shards of a split; none where it has no documents."""
        return self.shards.get(split, {})

    def parts_of(self, split: Split) -> tuple[int, ...]:
        """How many shards of a split each source has."""
        return self.parts.get(split) or (len(self.of_split(split)),)


_INDEX_REMEDY = "delete this file; the next run tokenises the source again"
INDEX_FORMAT = SealedFormat(
    name="openwafer-token-dataset",
    version=2,
    content=Index,
    broken_code="wrong-index",
    broken_help=_INDEX_REMEDY,
    version_code="wrong-index",
    version_help=_INDEX_REMEDY,
)


def write_index(folder: Path, index: Index) -> None:
    """Write ``dataset.json``; from then on the folder holds these shards."""
    atomic_file.write_bytes(folder / INDEX_FILE, INDEX_FORMAT.encode(index))


def read_index(folder: Path) -> Index:
    """Read ``dataset.json``; a folder without one, or with another version, is an error."""
    path = folder / INDEX_FILE
    if not path.is_file():
        raise error(
            "no-token-dataset",
            f"{folder} holds no token dataset: it has no {INDEX_FILE}",
            help="a run makes it; from Python, prepare(config, folder) does, in a folder below",
        )
    index = INDEX_FORMAT.decode(path, path.read_bytes())
    for shards in index.shards.values():
        for file in shards:
            path_named(file, path)
    return index


def open_shards(folder: Path, split: Split, *, verify: bool) -> tuple[Shard, ...]:
    """Open the shards of ``split`` and compare each header with the index."""
    index = read_index(folder)
    if not index.of_split(split):
        raise error(
            "no-such-split",
            f"{folder} holds no {split} documents",
            help="raise validation_share, or give a source of more documents"
            if split is Split.VALIDATION
            else "lower validation_share, or give a source of more documents",
        )
    shards = []
    for file, expected in index.of_split(split).items():
        shard = open_shard(folder / file, verify=verify)
        if shard.header != expected:
            raise error(
                "shard-mismatch",
                f"{shard.path} is another shard than {INDEX_FILE} lists",
                notes=(f"expected {expected}", f"found {shard.header}"),
                help=f"delete {folder / INDEX_FILE}; the next run tokenises the source again",
            )
        shards.append(shard)
    return tuple(shards)
