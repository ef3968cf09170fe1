"""Token shards, memory-mapped files of token ids with the bounds of documents, and their index.

docs/formats/openwafer-token-shard.md describes the bytes.
"""

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
    """

    dtype: str
    num_tokens: Count
    num_documents: Count
    tokenizer: str
    checksum: str

    @property
    def tokens_bytes(self) -> int:
        """Size of the ids, padded to where the bounds start."""
        return _padded(self.num_tokens * _DTYPES[self.dtype].itemsize)

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return HEADER_BYTES + self.tokens_bytes + (self.num_documents + 1) * _BOUND.itemsize


@dataclass(frozen=True)
class Shard:
    """An open shard.

    Attributes:
        path: its file.
        header: see ``ShardHeader``.
        tokens: ids, [num_tokens], mapped from the file.
        bounds: document ``d`` is ``tokens[bounds[d]:bounds[d + 1]]``; [num_documents + 1].
    """

    path: Path
    header: ShardHeader
    tokens: Tokens
    bounds: NDArray[np.uint64]


def write_shard(
    path: Path, documents: Sequence[NDArray[np.uint32]], tokenizer: str, vocab_size: int
) -> ShardHeader:
    """Write ``documents`` as one shard, atomically.

    Args:
        path: file to replace.
        documents: token ids of each document, below ``vocab_size``.
        tokenizer: fingerprint of the tokenizer.
        vocab_size: decides between u16 and u32.
    """
    name = "u16" if vocab_size <= 2**16 else "u32"
    tokens = np.concatenate(documents, dtype=_DTYPES[name], casting="same_kind")
    bounds = np.zeros(len(documents) + 1, _BOUND)
    np.cumsum([len(document) for document in documents], out=bounds[1:])
    padding = bytes(_padded(tokens.nbytes) - tokens.nbytes)
    content = (tokens.data, padding, bounds.data)
    header = ShardHeader(name, tokens.size, len(documents), tokenizer, _checksum(*content))
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
    bounds: NDArray[np.uint64] = np.frombuffer(mapped, _BOUND, offset=bounds_start)
    return Shard(path, header, tokens, bounds)


def _header_bytes(header: ShardHeader) -> bytes:
    content = {"format": FORMAT, "version": VERSION, **asdict(header)}
    return encode(content).ljust(HEADER_BYTES - 1) + b"\n"


@dataclass(frozen=True)
class _FileHeader(ShardHeader):
    format: str
    version: int


def _parse_header(path: Path, raw: bytes) -> ShardHeader:
    try:
        found = asdict(decode(_FileHeader, raw))
    except JsonMistake as problem:
        raise _corrupt(path, "header", f"JSON of format {FORMAT}", str(problem)) from None
    for key, expected in (("format", FORMAT), ("version", VERSION)):
        if (value := found.pop(key)) != expected:
            raise _corrupt(path, key, repr(expected), repr(value))
    if found["dtype"] not in _DTYPES:
        raise _corrupt(path, "dtype", " or ".join(_DTYPES), repr(found["dtype"]))
    return ShardHeader(**found)


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
    """

    key: str
    tokenizer: str
    shards: Mapping[Split, Mapping[str, ShardHeader]]

    def of_split(self, split: Split) -> Mapping[str, ShardHeader]:
        """The shards of a split; none where it has no documents."""
        return self.shards.get(split, {})


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
