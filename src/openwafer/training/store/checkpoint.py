"""Portable checkpoints: every kept array by name, in safetensors shards, for any tier."""

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from openwafer import atomic_file
from openwafer.atomic_file import sync_path
from openwafer.config import PathLike, Size, bytes_of, path_of
from openwafer.diagnostics import error
from openwafer.training.store.checkpoint_index import (
    INDEX_NAME,
    Checkpoint,
    missing,
    read_checkpoint,
)
from openwafer.training.store.checkpoint_shards import ShardReader, write_shards
from openwafer.training.store.dtype_names import dtype_name
from openwafer.training.store.json_state import Json, json_copy
from openwafer.training.store.layout import KEPT_PARTS, ArraySpec, Part, RecordLayout
from openwafer.training.store.record_access import Records
from openwafer.training.store.slices import offset_in_whole, whole_name, whole_specs
from openwafer.training.store.store_file import free_bytes_of

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


def keep_last(folder: PathLike, num_kept: int) -> tuple[Path, ...]:
    """Delete all but the `num_kept` checkpoints of the highest steps; return those deleted.

    Those that are :func:`being_read` stay for the next time.
    """
    folder = path_of(folder, "folder")
    checkpoints = list_checkpoints(folder)
    superfluous = checkpoints[: max(len(checkpoints) - num_kept, 0)]
    return tuple(path for path in superfluous if _delete_unread(path))


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
