"""What a run has saved, and how a new process takes it up: from its store or from a checkpoint."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from torch import nn

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, error
from openwafer.folder_lock import standing_still
from openwafer.training.session.found_stores import FoundStores, found_here
from openwafer.training.session.run_folder import RunFolder, quoted
from openwafer.training.session.run_state import RunState, StoreSet, parse_run_state
from openwafer.training.store import (
    RecordLayout,
    list_checkpoints,
    load_checkpoint,
    read_checkpoint,
)
from openwafer.training.store.checkpoint import INDEX_NAME, NOT_WRITTEN, being_read, require_fit
from openwafer.training.store.parameter_store import closed_on_error
from openwafer.training.store.store_folder import manifests_of
from openwafer.training.stream.assemble import (
    Planned,
    create_store,
    execute,
    reopen,
)
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.replicas.replica_link import Replicas, records_of

Result = TypeVar("Result")


@dataclass(frozen=True)
class SavedRun:
    """One saved step of a run.

    Attributes:
        state: of the run at that step.
        checkpoint: the checkpoint's folder; ``None`` where the parameter store itself holds it.
        is_chosen: whether it need not be the newest: the store and later checkpoints are set aside.
        found: the parameter stores that hold it, where there is no checkpoint.
    """

    state: RunState
    checkpoint: Path | None
    is_chosen: bool = False
    found: FoundStores | None = None


def find_newest(
    folder: RunFolder,
    *,
    with_store: bool = True,
    find: Callable[[StoreSet], FoundStores | None] | None = None,
) -> SavedRun | None:
    """The saved step to go on from: the store's last commit or a later checkpoint.

    ``None`` where the run ended before anything was saved. Without the store it is a checkpoint.

    Args:
        folder: of the run.
        with_store: whether it may be the store's.
        find: finds the stores of several systems; ``None`` looks for them on this host alone.
    """
    found = _of_stores(folder, find) if with_store else []
    found += [from_checkpoint(path) for path in list_checkpoints(folder.checkpoints)[-1:]]
    # Of two of the same step the first is taken: the store, which need not be written again.
    return max(found, key=lambda saved: saved.state.steps_done, default=None)


def _of_stores(
    folder: RunFolder, find: Callable[[StoreSet], FoundStores | None] | None
) -> list[SavedRun]:
    manifests = manifests_of(folder.store)
    states = {step: parse_run_state(one.state) for step, one in manifests.items()}
    if not states:
        _require_unmoved(folder)
        return []
    # The last is that of the last commit, if there was one.
    *_, newest = states.values()
    if newest.stores is None or find is None:
        found = found_here(folder, newest.stores)
    else:
        found = find(newest.stores) or []
    if not isinstance(found, FoundStores):
        return []
    state = replace(states[found.step], counts=found.counts)
    return [SavedRun(state, None, found=found)]


def _require_unmoved(folder: RunFolder) -> None:
    """Raise ``run-moving`` where an earlier program was killed while it renamed stores."""
    moving = folder.path / "moving"
    if moving.exists():
        raise error(
            "run-moving",
            f"the last steps of the run are in {moving}, on their way to the stores of other "
            "systems, and no program moves stores any more",
            help=f"on each host, delete the stores in {quoted(folder.path)} and move those of "
            f"{quoted(moving)} there; or delete {quoted(moving)} to go on from the last checkpoint",
        )


def read_newest(folder: RunFolder, read: Callable[[SavedRun], Result]) -> Result:
    """Read the newest saved step of a run, also beside the process that trains it; write nothing.

    The store is read only where nobody trains, and nobody can begin meanwhile. Beside a training it
    is the newest checkpoint, which training leaves alone while it is read. One that is deleted, or
    replaced by another of its step, before the reader has it gives way to the next.

    Args:
        folder: of the run.
        read: what is to be done with the step.

    Raises:
        OpenwaferError: ``run-nothing-saved``, and what ``read`` raises.
    """
    while True:
        before = _newest_index(folder)
        try:
            with standing_still(folder.path) as is_still:
                saved = find_newest(folder, with_store=is_still)
                if saved is None:
                    raise _nothing_saved(folder, is_still=is_still)
                if saved.checkpoint is None:
                    return read(saved)
            with being_read(saved.checkpoint):
                return read(saved)
        except OpenwaferError:
            if _newest_index(folder) == before:
                raise


def _newest_index(folder: RunFolder) -> tuple[Path, bytes] | None:
    """The newest checkpoint with what its index says, to see whether another has come."""
    for path in list_checkpoints(folder.checkpoints)[-1:]:
        try:
            return path, (path / INDEX_NAME).read_bytes()
        except FileNotFoundError:
            return None
    return None


def _nothing_saved(folder: RunFolder, *, is_still: bool) -> OpenwaferError:
    if is_still:
        remedy = f"train it first: openwafer resume {quoted(folder.path)}"
    else:
        remedy = "wait for its first checkpoint; checkpoint.every says when that is"
    return error(
        "run-nothing-saved",
        f"the run {folder.path} has saved nothing yet"
        if is_still
        else f"the run {folder.path} is being trained and has no checkpoint yet",
        help=remedy,
    )


def from_checkpoint(path: Path, *, is_chosen: bool = False) -> SavedRun:
    """The step that a checkpoint holds."""
    return SavedRun(parse_run_state(read_checkpoint(path).state), path, is_chosen)


def _set_aside(folder: RunFolder, step: int) -> None:
    """Move the store, and the checkpoints of later steps, out of the way; delete nothing."""
    checkpoints = list_checkpoints(folder.checkpoints)
    later = [path for path in checkpoints if read_checkpoint(path).step > step]
    for path in (folder.store, *later):
        folder.put_aside(path)


def restore_execution(
    saved: SavedRun,
    model: nn.Module,
    planned: Planned,
    folder: RunFolder,
    replicas: Replicas | None = None,
) -> Execution:
    """Execute a plan over a checkpoint of any plan and tier, or over the stores of this plan."""
    if saved.checkpoint is None:
        step = None if saved.state.stores is None else saved.state.steps_done
        execution = reopen(model, planned, folder=folder.store, replicas=replicas, step=step)
        planned.updater.counts = saved.state.counts.copy()
        return execution
    checkpoint = to_restore(saved, planned.plan.layouts, folder)
    with closed_on_error(create_store(planned, folder.store)) as store:
        records = records_of(store, planned.plan.layouts, replicas)
        load_checkpoint(checkpoint, records)
        # Several stores commit when training begins.
        if planned.uses_disk and records is store:
            store.commit(saved.state.steps_done, saved.state.to_json())
        planned.updater.counts = saved.state.counts.copy()
        return execute(model, planned, store, replicas)


def to_restore(saved: SavedRun, layouts: Mapping[str, RecordLayout], folder: RunFolder) -> Path:
    """A checkpoint that has all records of a run, with no store in its way."""
    assert saved.checkpoint is not None
    # Before anything is moved or deleted: a config may describe another model by now.
    require_fit(read_checkpoint(saved.checkpoint), layouts.values())
    if saved.is_chosen:
        _set_aside(folder, saved.state.steps_done)
    # What is still there is no newer than the checkpoint.
    folder.delete_store()
    return saved.checkpoint


@contextmanager
def naming_checkpoints(folder: RunFolder) -> Iterator[None]:
    """Context that adds the newest checkpoint to the errors of a store or of another checkpoint."""
    try:
        yield
    except OpenwaferError as found:
        checkpoints = list_checkpoints(folder.checkpoints)
        code = found.diagnostics[0].code
        if not checkpoints or not (code.startswith("store-") or code == NOT_WRITTEN):
            raise
        resume = f"openwafer resume {quoted(folder.path)}"
        remedy = Diagnostic(
            Severity.NOTE,
            "run-checkpoint",
            f"the newest checkpoint of the run is {checkpoints[-1]}",
            help=resume
            if code == NOT_WRITTEN
            else f"{resume} --checkpoint {quoted(checkpoints[-1])}",
        )
        raise OpenwaferError(*found.diagnostics, remedy) from found
