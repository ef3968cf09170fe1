"""The index of a checkpoint names the shard of each array, and the state to go on from.

The format is described in docs/formats/openwafer-checkpoint.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import OpenwaferError, error
from openwafer.json_files import Count, SealedFormat, Unchecked, path_named
from openwafer.training.store.dtype_names import dtype_name, dtype_named
from openwafer.training.store.json_state import Json
from openwafer.training.store.layout import KEPT_PARTS, ArraySpec, Part

INDEX_NAME = "index.json"


@dataclass(frozen=True)
class _Piece:
    shard: str
    start: tuple[Count, ...]
    shape: tuple[Count, ...]
    xxh3_64: str


@dataclass(frozen=True)
class _ArrayEntry:
    dtype: str
    shape: tuple[Count, ...]
    pieces: tuple[_Piece]


@dataclass(frozen=True)
class _IndexContent:
    step: Count
    state: Unchecked
    num_updates: dict[str, Count]
    arrays: dict[Part, dict[str, _ArrayEntry]]


FORMAT = SealedFormat(
    name="openwafer-checkpoint",
    version=2,
    content=_IndexContent,
    broken_code="checkpoint-broken",
    broken_help="use an earlier checkpoint, or copy this one again",
    version_code="checkpoint-format",
    version_help="use the program version that wrote the checkpoint",
)


@dataclass(frozen=True)
class StoredArray:
    """An array of the model as the checkpoint holds it, with its xxh3_64 checksum in hexadecimal.

    The file says for each piece where it starts in the whole array; here a piece is the whole.
    """

    spec: ArraySpec
    shard: str
    checksum: str


@dataclass(frozen=True)
class Checkpoint:
    """The head of a checkpoint. `num_updates` counts the updates each parameter has had."""

    folder: Path
    step: int
    state: Mapping[str, Json]
    num_updates: Mapping[str, int]
    arrays: Mapping[Part, Mapping[str, StoredArray]]

    @property
    def shards(self) -> frozenset[str]:
        """Names of the files that hold the arrays."""
        return frozenset(array.shard for part in self.arrays.values() for array in part.values())

    def encode(self) -> bytes:
        """The index as JSON text in UTF-8."""
        arrays = {
            part: {name: _encode_array(array) for name, array in self.arrays[part].items()}
            for part in KEPT_PARTS
        }
        return FORMAT.encode(
            _IndexContent(self.step, dict(self.state), dict(self.num_updates), arrays)
        )


def read_checkpoint(folder: PathLike) -> Checkpoint:
    """Read the head of a checkpoint.

    Raises `checkpoint-missing`, `checkpoint-broken`, `checkpoint-format`, and `name-outside` for a
    shard that is not in its folder.
    """
    folder = path_of(folder, "folder")
    path = folder / INDEX_NAME
    try:
        return _decode(folder, FORMAT.decode(path, path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError) as cause:
        raise missing(folder) from cause
    except (ValueError, KeyError) as cause:
        raise broken(path, f"{type(cause).__name__}: {cause}") from cause


def missing(folder: Path) -> OpenwaferError:
    """The error for a folder without a checkpoint."""
    return error(
        "checkpoint-missing",
        f"there is no checkpoint in {folder}: it has no {INDEX_NAME}",
        help="give a folder such as checkpoints/step-00000020",
    )


def broken(path: Path, reason: str) -> OpenwaferError:
    """The error for a file that is not what its index or format promises."""
    return FORMAT.broken(path, reason)


def _encode_array(array: StoredArray) -> _ArrayEntry:
    shape = array.spec.shape
    piece = _Piece(array.shard, (0,) * len(shape), shape, array.checksum)
    return _ArrayEntry(dtype_name(array.spec.dtype), shape, (piece,))


def _decode(folder: Path, content: _IndexContent) -> Checkpoint:
    arrays = {
        part: {name: _decode_array(name, entry) for name, entry in content.arrays[part].items()}
        for part in KEPT_PARTS
    }
    head = Checkpoint(folder, content.step, content.state, content.num_updates, arrays)
    for shard in head.shards:
        path_named(shard, folder / INDEX_NAME)
    return head


def _decode_array(name: str, entry: _ArrayEntry) -> StoredArray:
    [piece] = entry.pieces
    if piece.shape != entry.shape:
        raise ValueError(f"{name!r} is stored as a part of the array only")
    spec = ArraySpec(name, dtype_named(entry.dtype), entry.shape)
    return StoredArray(spec, piece.shard, piece.xxh3_64)
