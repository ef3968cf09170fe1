"""Portable checkpoints: every kept array by name, in safetensors shards, for any tier.

An index names the shard of each array, and the state to go on from. The format is described in
docs/formats/openwafer-checkpoint.md.
"""

import fcntl
import os
import shutil
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO

import torch
import xxhash

from openwafer import atomic_file
from openwafer.atomic_file import sync_path
from openwafer.config import PathLike, Size, bytes_of, path_of
from openwafer.diagnostics import OpenwaferError, error
from openwafer.json_files import Count, SealedFormat, Unchecked, path_named
from openwafer.training.store.layout import (
    KEPT_PARTS,
    ArrayPlace,
    ArraySpec,
    Part,
    RecordLayout,
    dtype_name,
    dtype_named,
    offset_in_whole,
    whole_name,
    whole_specs,
)
from openwafer.training.store.parts import Json, json_copy
from openwafer.training.store.record_access import Records
from openwafer.training.store.safetensors_file import (
    cut_into_shards,
    read_header,
    write_header,
)
from openwafer.training.store.store_file import free_bytes_of

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


def write_shards(
    store: Records, folder: Path, part: Part, shard_bytes: int
) -> dict[str, StoredArray]:
    """Write all arrays of one part of all records, and say where each went. Raises OSError.

    Slices of an array are written as that array. A shard exceeds `shard_bytes` only where one array
    does. Names of shards that are there are passed over. One record's part is in memory at a time,
    and the next on its way.
    """
    specs = [place.spec for layout in store.layouts.values() for place in layout.parts[part]]
    with closing(_ShardWriter(folder, part)) as writer, closing(_stream(store, part)) as windows:
        for shard in cut_into_shards(whole_specs(specs).values(), shard_bytes):
            writer.begin(shard)
        for spec, window in windows:
            writer.write(spec, window)
        return writer.stored


class _ShardWriter:
    """Writes arrays into shards, slices of them too, each behind the one before it.

    Attributes:
        stored: the arrays that are complete, in the order in which they were.
    """

    def __init__(self, folder: Path, part: Part) -> None:
        self.stored: dict[str, StoredArray] = {}
        self._folder = folder
        names = {path.name for path in folder.iterdir()}
        self._free = (
            name for number in count(1) if (name := _shard_name(part, number)) not in names
        )
        self._places: dict[str, tuple[str, ArrayPlace]] = {}
        self._checksums: dict[str, xxhash.xxh3_64] = {}
        self._num_unwritten: dict[str, int] = {}
        self._file: BinaryIO | None = None
        self._open_name = ""

    def begin(self, shard: Sequence[ArraySpec]) -> None:
        """Make a shard for these arrays, which are still to be written."""
        name = next(self._free)
        with (self._folder / name).open("xb") as file:
            write_header(file, shard)
        header = read_header(self._folder / name)
        self._places |= {spec.name: (name, header[spec.name]) for spec in shard}
        self._num_unwritten[name] = len(shard)

    def write(self, spec: ArraySpec, window: memoryview) -> None:
        """Write an array, or the next slice of one."""
        whole, offset = whole_name(spec.name), offset_in_whole(spec)
        name, place = self._places[whole]
        if whole in self.stored:
            # One number for all slices.
            return
        file = self._opened(name)
        file.seek(place.offset_bytes + offset)
        file.write(window)
        checksum = self._checksums.setdefault(whole, xxhash.xxh3_64())
        checksum.update(window)
        if offset + len(window) == place.num_bytes:
            del self._checksums[whole]
            self.stored[whole] = StoredArray(place.spec, name, checksum.hexdigest())
            self._end_one_of(name)

    def _opened(self, name: str) -> BinaryIO:
        if self._file is None or name != self._open_name:
            self.close()
            self._file, self._open_name = (self._folder / name).open("r+b"), name
        return self._file

    def _end_one_of(self, name: str) -> None:
        self._num_unwritten[name] -= 1
        if not self._num_unwritten[name]:
            self.close()
            sync_path(self._folder / name)

    def close(self) -> None:
        """Close the shard that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _shard_name(part: Part, number: int) -> str:
    return f"{part}-{number:05d}.safetensors"


class ShardReader:
    """Reads arrays of one checkpoint; each shard's header is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._headers: dict[str, dict[str, ArrayPlace]] = {}
        self._checksums: dict[str, xxhash.xxh3_64] = {}

    def read(self, stored: StoredArray, target: torch.Tensor, offset_bytes: int = 0) -> None:
        """Fill `target`, uint8 with one dim, and verify it. Raises `checkpoint-broken`.

        Slices of an array are read one after the other, and verified with the last of them.
        """
        path, name = path_named(stored.shard, self._folder / INDEX_NAME), stored.spec.name
        try:
            place = self._place(path, name)
            with path.open("rb") as file:
                file.seek(place.offset_bytes + offset_bytes)
                num_read = file.readinto(target.numpy().data)
        except (OSError, ValueError, KeyError) as cause:
            raise broken(path, f"{type(cause).__name__}: {cause}") from cause
        if not offset_bytes:
            self._checksums[name] = xxhash.xxh3_64()
        checksum, end_bytes = self._checksums[name], offset_bytes + num_read
        checksum.update(target.numpy().data)
        is_last = end_bytes >= stored.spec.num_bytes
        if num_read != target.numel() or (is_last and checksum.hexdigest() != stored.checksum):
            raise broken(
                path,
                f"{name} at byte {place.offset_bytes}: {end_bytes} of {stored.spec.num_bytes} "
                f"bytes read, checksum {checksum.hexdigest()} where {stored.checksum} was written",
            )

    def read_whole(self, stored: StoredArray) -> torch.Tensor:
        """An array in memory of its own. Raises `checkpoint-broken`."""
        data = torch.empty(stored.spec.num_bytes, dtype=torch.uint8)
        self.read(stored, data)
        return data.view(stored.spec.dtype).view(stored.spec.shape)

    def _place(self, path: Path, name: str) -> ArrayPlace:
        if path.name not in self._headers:
            self._headers[path.name] = read_header(path)
        return self._headers[path.name][name]


def _stream(store: Records, part: Part) -> Generator[tuple[ArraySpec, memoryview], None, None]:
    layouts = [layout for layout in store.layouts.values() if layout.parts[part]]
    loans = deque(store.borrow(layout.name, (part,), read_only=True) for layout in layouts[:1])
    try:
        for number, layout in enumerate(layouts):
            loans[0].wait()
            for following in layouts[number + 1 : number + 2]:
                loans.append(store.borrow(following.name, (part,), read_only=True))
            view = loans[0].part_bytes_view(part).numpy().data
            for place in layout.parts[part]:
                if place.spec.strides is None:
                    yield place.spec, view[place.offset_bytes : place.end_bytes]
                else:
                    in_c_order = loans[0].tensor(place.spec.name, part).contiguous()
                    yield place.spec, in_c_order.view(-1).view(torch.uint8).numpy().data
            loans.popleft().release()
    finally:
        for loan in loans:
            loan.release()


SHARD_BYTES = 1 << 30
MAX_LISTED = 8
NOT_WRITTEN = "checkpoint-not-written"


def save_checkpoint(
    store: Records,
    folder: PathLike,
    step: int,
    state: Mapping[str, Json],
    *,
    num_updates: Mapping[str, int] | None = None,
    shard_bytes: Size = SHARD_BYTES,
) -> Path:
    """Write weights and states to `folder`/step-NNNNNNNN and return that path.

    The folder appears whole or not at all; the content of one of the same step is replaced in one
    system call. One part of a record
    is in memory at a time, and the next on its way. No loan may be changing the store meanwhile.
    Raises `checkpoint-not-written` when the disk has no room, with both numbers, or refuses.
    """
    folder = path_of(folder, "folder")
    most_bytes = bytes_of(shard_bytes, "shard_bytes")
    saved_state = json_copy(state)
    final = folder / f"step-{step:08d}"
    is_again = (final / INDEX_NAME).exists()
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            sync_path(folder.parent)
        _require_room(store, folder)
        with _replacing_shards(final) if is_again else _appearing(final) as place:
            arrays = {part: write_shards(store, place, part, most_bytes) for part in KEPT_PARTS}
            head = Checkpoint(final, step, saved_state, dict(num_updates or {}), arrays)
            # The shards' names must be on disk before an index that promises them.
            sync_path(place)
            atomic_file.write_bytes(place / INDEX_NAME, head.encode())
    except OSError as cause:
        raise error(
            NOT_WRITTEN,
            f"cannot write the checkpoint {final}: {cause}",
            help="free some space, or write to another folder; a disk tier keeps its last commit, "
            "a store in DRAM what earlier checkpoints hold",
        ) from cause
    return final


def _require_room(store: Records, folder: Path) -> None:
    """Raise OSError unless a disk has room for the weights and states of records."""
    layouts = store.layouts.values()
    kept = (place for layout in layouts for part in KEPT_PARTS for place in layout.parts[part])
    num_bytes, free_bytes = sum(place.num_bytes for place in kept), free_bytes_of(folder)
    if num_bytes > free_bytes:
        raise OSError(f"it needs {num_bytes} bytes, the disk has {free_bytes} bytes free")


def load_checkpoint(folder: PathLike, store: Records) -> Checkpoint:
    """Fill the weights and states of a store, wherever they are placed, from a checkpoint.

    Commit afterwards to make a store with a folder durable. Before anything is changed, raises
    `checkpoint-mismatch` with all arrays that are missing, unexpected or of another shape.
    """
    folder = path_of(folder, "folder")
    head = read_checkpoint(folder)
    require_fit(head, store.layouts.values())
    fill_from(head, store)
    return head


def fill_from(head: Checkpoint, store: Records) -> None:
    """Fill the weights and states of a store from a checkpoint, which has all its arrays."""
    shards = ShardReader(head.folder)
    for part in KEPT_PARTS:
        for layout in store.layouts.values():
            with store.lent(layout.name, (part,), fresh=(part,)) as loan:
                for place in layout.parts[part]:
                    stored = head.arrays[part][whole_name(place.spec.name)]
                    if place.spec.strides is None:
                        view = loan.part_bytes_view(part)[place.offset_bytes : place.end_bytes]
                        shards.read(stored, view, offset_in_whole(place.spec))
                    else:
                        loan.tensor(place.spec.name, part).copy_(shards.read_whole(stored))


def list_checkpoints(folder: PathLike) -> tuple[Path, ...]:
    """The whole checkpoints in `folder`, from the lowest step to the highest."""
    folder = path_of(folder, "folder")
    return tuple(sorted(path.parent for path in folder.glob(f"step-*/{INDEX_NAME}")))


def step_named(checkpoint: Path) -> int:
    """The step after which a checkpoint was written, by its folder's name, unread."""
    return int(checkpoint.name.removeprefix("step-"))


def keep_last(folder: PathLike, num_kept: int, best: Path | None = None) -> tuple[Path, ...]:
    """Delete all but the `num_kept` checkpoints of the highest steps, and but `best`.

    Those that are :func:`being_read` stay for the next time. Returns those deleted.
    """
    folder = path_of(folder, "folder")
    checkpoints = list_checkpoints(folder)
    superfluous = checkpoints[: max(len(checkpoints) - num_kept, 0)]
    return tuple(path for path in superfluous if path != best and _delete_unread(path))


def _delete_unread(checkpoint: Path) -> bool:
    """Delete a checkpoint unless somebody reads it; whether it is gone."""
    with _opened(checkpoint) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # Without its index, what is left after a kill is no checkpoint.
        (checkpoint / INDEX_NAME).unlink()
        shutil.rmtree(checkpoint)
    return True


@contextmanager
def being_read(checkpoint: Path) -> Iterator[None]:
    """Context in which no :func:`keep_last`, of any process, deletes a checkpoint.

    Raises `checkpoint-missing` where there is none.
    """
    with ExitStack() as stack:
        try:
            fcntl.flock(stack.enter_context(_opened(checkpoint)), fcntl.LOCK_SH)
        except FileNotFoundError as cause:
            raise missing(checkpoint) from cause
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Context with a descriptor of a folder itself: unlike its index, no file takes its place."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def require_fit(head: Checkpoint, layouts: Collection[RecordLayout]) -> None:
    """Raise ``checkpoint-mismatch`` unless a checkpoint has just the arrays of the records."""
    for part in KEPT_PARTS:
        found = {name: array.spec for name, array in head.arrays[part].items()}
        require_match(head.folder, found, layouts, part)


def require_match(
    folder: Path, found: Mapping[str, ArraySpec], layouts: Collection[RecordLayout], part: Part
) -> None:
    """Raise ``checkpoint-mismatch`` unless what is in a folder are a part's arrays, all of them."""
    wanted = whole_specs(place.spec for layout in layouts for place in layout.parts[part])
    differing = [
        f"{name} is {_describe(found[name])} and must be {_describe(wanted[name])}"
        for name in wanted.keys() & found.keys()
        if found[name].in_c_order != wanted[name].in_c_order
    ]
    facts = {
        "missing": sorted(wanted.keys() - found.keys()),
        "unexpected": sorted(found.keys() - wanted.keys()),
        "different": sorted(differing),
    }
    if any(facts.values()):
        raise error(
            "checkpoint-mismatch",
            f"the {part} of {folder} do not fit the store",
            notes=tuple(f"{what}: {_listed(names)}" for what, names in facts.items() if names),
            help="keep the model, its sparsity, its number format, the optimizer and the average "
            "that it was saved with",
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"{', '.join(names[:MAX_LISTED])}{more}"


def _describe(spec: ArraySpec) -> str:
    return f"{dtype_name(spec.dtype)}{list(spec.shape)}"


@contextmanager
def _appearing(final: Path) -> Iterator[Path]:
    """Context that writes a new checkpoint, in a folder that takes its name at the end."""
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        # Without an index it is what a kill left of a deleted checkpoint.
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        sync_path(final.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _replacing_shards(final: Path) -> Iterator[Path]:
    """Context that writes a checkpoint of the same step beside the one there.

    No folder can replace a folder in one call, but one index another: until then the old one and
    its shards are the checkpoint. At the end, files that the index in force lacks are deleted.
    """
    index = final / INDEX_NAME
    earlier, earlier_index = _own_files(final), index.read_bytes()
    superfluous = earlier
    try:
        yield final
    except BaseException:
        is_replaced = index.read_bytes() != earlier_index
        superfluous = set() if is_replaced else _own_files(final) - earlier
        raise
    finally:
        for path in superfluous:
            path.unlink()


def _own_files(folder: Path) -> set[Path]:
    """Shards, and what a kill left of an index under its temporary name."""
    return {*folder.glob("*.safetensors"), *folder.glob(f".{Path(INDEX_NAME).stem}.*")}
