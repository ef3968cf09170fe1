"""Portable checkpoints: every kept array by name, in safetensors shards, for any tier."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from openwafer import atomic_file
from openwafer.atomic_file import sync_path
from openwafer.diagnostics import error
from openwafer.training.store.checkpoint_index import INDEX_NAME, Checkpoint, read_checkpoint
from openwafer.training.store.checkpoint_shards import ShardReader, write_shards
from openwafer.training.store.dtype_names import dtype_name
from openwafer.training.store.json_state import Json, json_copy
from openwafer.training.store.layout import KEPT_PARTS, ArraySpec, Part, RecordLayout
from openwafer.training.store.parameter_store import ParameterStore

SHARD_BYTES = 1 << 30
MAX_LISTED = 8
NOT_WRITTEN = "checkpoint-not-written"


def save_checkpoint(
    store: ParameterStore,
    folder: Path,
    step: int,
    state: Mapping[str, Json],
    *,
    num_updates: Mapping[str, int] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write weights and states to `folder`/step-NNNNNNNN and return that path.

    The folder appears whole or not at all; one of the same step is replaced. One part of a record
    is in memory at a time, and the next on its way. No loan may be changing the store meanwhile.
    Raises `checkpoint-not-written` when the disk refuses.
    """
    saved_state = json_copy(state)
    final = folder / f"step-{step:08d}"
    partial = folder / f".{final.name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        arrays = {part: write_shards(store, partial, part, shard_bytes) for part in KEPT_PARTS}
        head = Checkpoint(final, step, saved_state, dict(num_updates or {}), arrays)
        atomic_file.write_bytes(partial / INDEX_NAME, head.encode())
        _replace_folder(partial, final)
    except OSError as cause:
        raise error(
            NOT_WRITTEN,
            f"cannot write the checkpoint {final}: {cause}",
            help="free some space, or write to another folder; a disk tier keeps its last commit, "
            "a store in DRAM what earlier checkpoints hold",
        ) from cause
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def load_checkpoint(folder: Path, store: ParameterStore) -> Checkpoint:
    """Fill the weights and states of a store, wherever they are placed, from a checkpoint.

    Commit afterwards to make a store with a folder durable. Before anything is changed, raises
    `checkpoint-mismatch` with all arrays that are missing, unexpected or of another shape.
    """
    head = read_checkpoint(folder)
    require_fit(head, store.layouts.values())
    shards = ShardReader(folder)
    for part in KEPT_PARTS:
        for layout in store.layouts.values():
            loan = store.borrow(layout.name, (part,), fresh=(part,))
            loan.wait()
            try:
                for place in layout.parts[part]:
                    target = loan.part_bytes_view(part)[place.offset_bytes : place.end_bytes]
                    shards.read(head.arrays[part][place.spec.name], target)
            finally:
                loan.release()
    return head


def list_checkpoints(folder: Path) -> tuple[Path, ...]:
    """The whole checkpoints in `folder`, from the lowest step to the highest."""
    return tuple(sorted(path.parent for path in folder.glob(f"step-*/{INDEX_NAME}")))


def keep_last(folder: Path, num_kept: int) -> tuple[Path, ...]:
    """Delete all but the `num_kept` checkpoints of the highest steps; return those deleted."""
    checkpoints = list_checkpoints(folder)
    deleted = checkpoints[: max(len(checkpoints) - num_kept, 0)]
    for path in deleted:
        # Without its index, what is left after a kill is no checkpoint.
        (path / INDEX_NAME).unlink()
        shutil.rmtree(path)
    return deleted


def require_fit(head: Checkpoint, layouts: Collection[RecordLayout]) -> None:
    """Raise ``checkpoint-mismatch`` unless a checkpoint has just the arrays of the records."""
    for part in KEPT_PARTS:
        _require_match(head, layouts, part)


def _require_match(head: Checkpoint, layouts: Collection[RecordLayout], part: Part) -> None:
    wanted = {p.spec.name: p.spec for layout in layouts for p in layout.parts[part]}
    found = {name: array.spec for name, array in head.arrays[part].items()}
    differing = [
        f"{name} is {_describe(found[name])} and must be {_describe(wanted[name])}"
        for name in wanted.keys() & found.keys()
        if found[name] != wanted[name]
    ]
    facts = {
        "missing": sorted(wanted.keys() - found.keys()),
        "unexpected": sorted(found.keys() - wanted.keys()),
        "different": sorted(differing),
    }
    if any(facts.values()):
        raise error(
            "checkpoint-mismatch",
            f"the {part} of {head.folder} do not fit the store",
            notes=tuple(f"{what}: {_listed(names)}" for what, names in facts.items() if names),
            help="keep the model, the optimizer and the average that it was saved with",
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"{', '.join(names[:MAX_LISTED])}{more}"


def _describe(spec: ArraySpec) -> str:
    return f"{dtype_name(spec.dtype)}{list(spec.shape)}"


def _replace_folder(new: Path, final: Path) -> None:
    # A folder cannot replace a folder in one call; a kill in between leaves the complete new one
    # under its temporary name and all earlier steps in place.
    replaced = new.with_suffix(".replaced")
    if final.exists():
        final.rename(replaced)
    new.rename(final)
    sync_path(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)
