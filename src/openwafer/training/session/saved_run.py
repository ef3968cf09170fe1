"""What a run has saved, in stores and checkpoints: which step is the newest, and its arrays."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import nn

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity, error
from openwafer.folder_lock import standing_still
from openwafer.training.collectives.group import FIRST_RANK
from openwafer.training.session.run_folder import RunFolder, quoted
from openwafer.training.session.run_state import (
    RunState,
    StoreSet,
    counts_of_owner,
    parse_run_state,
)
from openwafer.training.store import (
    ArraySpec,
    ParameterStore,
    Part,
    RecordLayout,
    Tier,
    list_checkpoints,
    load_checkpoint,
    read_checkpoint,
)
from openwafer.training.store.checkpoint import (
    INDEX_NAME,
    NOT_WRITTEN,
    ShardReader,
    being_read,
    require_fit,
)
from openwafer.training.store.layout import (
    KEPT_PARTS,
    slice_into,
    state_name,
    whole_name,
    whole_specs,
)
from openwafer.training.store.parameter_store import closed_on_error
from openwafer.training.store.record_access import LentParts, Records
from openwafer.training.store.store_folder import Manifest, manifests_of
from openwafer.training.store.update_rules.update_pass import (
    AVERAGE,
    LOW_BITS,
    TIE_BITS,
    SplitMaster,
    join_master,
)
from openwafer.training.stream.assemble import (
    Planned,
    create_store,
    execute,
    reopen,
)
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.stream.replicas.replica_link import Replicas, records_of

# By the index of the system that made a store: how often its parameters were updated, by the steps
# at which it can be opened.
SeenStores = Mapping[int, Mapping[int, UpdateCounts]]
Result = TypeVar("Result")


@dataclass(frozen=True)
class FoundStores:
    """All stores of a saved step.

    Attributes:
        step: training steps behind it.
        stores: what they commit as; ``None`` where one store has all records.
        readers: the system that reads each of them.
        counts: of all updates.
        are_in_place: whether each system has its own, where it would open it.
    """

    step: int
    stores: StoreSet | None
    readers: tuple[int, ...]
    counts: UpdateCounts
    are_in_place: bool

    def read_by(self, rank: int) -> list[int]:
        """Indices of the stores that a system reads."""
        return [index for index, reader in enumerate(self.readers) if reader == rank]


def num_stores(stores: StoreSet | None) -> int:
    """How many stores commit as one."""
    return 1 if stores is None else stores.size


def seen_stores(folder: RunFolder, stores: StoreSet | None) -> SeenStores:
    """Which of some stores this system sees."""
    seen = {}
    for index in range(num_stores(stores)):
        path = folder.store_of(index)
        manifests = _manifests(path, stores)
        if manifests:
            seen[index] = {step: _counts(index, path, one) for step, one in manifests.items()}
    return seen


def _manifests(path: Path, stores: StoreSet | None) -> dict[int, Manifest]:
    wanted = None if stores is None else asdict(stores)
    found = manifests_of(path).items()
    return {step: one for step, one in found if one.state.get("stores") == wanted}


def _counts(index: int, path: Path, manifest: Manifest) -> UpdateCounts:
    if index == FIRST_RANK:
        return parse_run_state(manifest.state).counts
    return counts_of_owner(path, manifest.state)


def located(stores: StoreSet | None, seen: Sequence[SeenStores]) -> FoundStores | list[int]:
    """Where some stores are, at the newest step that all of them hold.

    Otherwise the indices of those that nobody sees; of none, where they have no step in common.

    Args:
        stores: what they commit as.
        seen: by each system, in the order of their ranks.
    """
    holders = [_holders(index, seen) for index in range(num_stores(stores))]
    missing = [index for index, stores_of in enumerate(holders) if not stores_of]
    if missing:
        return missing
    steps = [{step for counts in of.values() for step in counts} for of in holders]
    step = max(set.intersection(*steps), default=None)
    if step is None:
        return []
    having = [{r: counts[step] for r, counts in of.items() if step in counts} for of in holders]
    readers = tuple(min(of) for of in having)
    first, *others = (of[reader] for of, reader in zip(having, readers, strict=True))
    are_in_place = len(seen) == len(having) and all(i in of for i, of in enumerate(having))
    return FoundStores(step, stores, readers, first.joined(others), are_in_place)


def _holders(index: int, seen: Sequence[SeenStores]) -> dict[int, Mapping[int, UpdateCounts]]:
    """What the systems that see a store know of it."""
    # What the run commits beside the first one is read by the system that leads.
    asked = seen[:1] if index == FIRST_RANK else seen
    return {rank: found[index] for rank, found in enumerate(asked) if index in found}


def found_here(folder: RunFolder, stores: StoreSet | None) -> FoundStores | list[int]:
    """As :func:`located`, of what this process alone sees."""
    return located(stores, [seen_stores(folder, stores)])


class JoinedStores(Records):
    """Stores that have a share of the records each, as one to read.

    See :class:`~openwafer.training.store.record_access.Records`.

    Args:
        stores: of which no two have a record of one name.
    """

    def __init__(self, stores: Sequence[ParameterStore]) -> None:
        self._stores = stores
        self._home = {record: store for store in stores for record in store.layouts}

    @property
    def layouts(self) -> Mapping[str, RecordLayout]:
        return {record: store.layouts[record] for record, store in self._home.items()}

    def borrow(
        self,
        record: str,
        parts: Collection[Part],
        *,
        read_only: bool = False,
        fresh: Collection[Part] = (),
    ) -> LentParts:
        return self._home[record].borrow(record, parts, read_only=read_only, fresh=fresh)

    def close(self) -> None:
        """Close all of them."""
        for store in self._stores:
            store.close()


def open_found(folder: RunFolder, found: FoundStores, rank: int) -> JoinedStores:
    """Open the stores that a system reads, at their step and to read, with nothing in DRAM."""
    with ExitStack() as stack:
        indices = found.read_by(rank)
        stores = [stack.enter_context(_opened(folder, found, index)) for index in indices]
        stack.pop_all()
    return JoinedStores(stores)


def _opened(folder: RunFolder, found: FoundStores, index: int) -> ParameterStore:
    path = folder.store_of(index)
    catalog = manifests_of(path)[found.step].catalog
    largest = max(
        (
            sum(layout.part_bytes(part) for part in layout.parts)
            for layout in catalog.layouts.values()
        ),
        default=0,
    )
    return ParameterStore.open(
        path,
        placement=dict.fromkeys(catalog.placement, Tier.DISK),
        ring_bytes=2 * largest,
        read_only=True,
        step=found.step,
    )


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
    checkpoint = to_restore(saved, planned.layouts, folder)
    with closed_on_error(create_store(planned, folder.store)) as store:
        records = records_of(store, planned.layouts, replicas)
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


class SavedArrays(Protocol):
    """The arrays of a saved step, each read when it is asked for and not kept."""

    @property
    def specs(self) -> Mapping[Part, Mapping[str, ArraySpec]]:
        """The arrays of each part by name, in the order of the files."""

    def read(self, part: Part, name: str) -> torch.Tensor:
        """A copy of one array."""


class CheckpointArrays:
    """The arrays of a checkpoint, which nobody changes meanwhile; see :class:`SavedArrays`.

    Args:
        folder: of the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._arrays = read_checkpoint(folder).arrays
        self._shards = ShardReader(folder)
        self.specs = {
            part: {name: stored.spec for name, stored in arrays.items()}
            for part, arrays in self._arrays.items()
        }

    def read(self, part: Part, name: str) -> torch.Tensor:
        """See :class:`SavedArrays`."""
        return self._shards.read_whole(self._arrays[part][name])


class _StoreArrays:
    def __init__(self, store: Records) -> None:
        self._store = store
        # Where an array is, or its slices in their order: names, each with its record.
        self._homes: dict[Part, dict[str, list[tuple[str, str]]]] = {p: {} for p in KEPT_PARTS}
        for record, layout in store.layouts.items():
            for part, homes in self._homes.items():
                for place in layout.parts[part]:
                    home = record, place.spec.name
                    homes.setdefault(whole_name(place.spec.name), []).append(home)
        self.specs = {
            part: whole_specs(
                place.spec for layout in store.layouts.values() for place in layout.parts[part]
            )
            for part in KEPT_PARTS
        }

    def read(self, part: Part, name: str) -> torch.Tensor:
        spec = self.specs[part][name]
        read = spec.empty()
        for record, array in self._homes[part][name]:
            with self._store.lent(record, (part,), read_only=True) as loan:
                stored = loan.tensor(array, part)
                slice_into(read, array, stored).copy_(stored)
        return read


@contextmanager
def saved_arrays(run: RunFolder, saved: SavedRun) -> Iterator[SavedArrays]:
    """Context that gives the arrays of a saved step, which nobody changes meanwhile."""
    if saved.checkpoint is not None:
        yield CheckpointArrays(saved.checkpoint)
        return
    assert saved.found is not None
    with closing(open_found(run, saved.found, FIRST_RANK)) as stores:
        yield _StoreArrays(stores)


class SavedWeights(Mapping[str, torch.Tensor]):
    """The values of a saved step's parameters by name, each read when it is asked for.

    Args:
        arrays: of the step.
        counts: of its updates.
        average_decay: gives moving averages of that decay instead, where a parameter has one.
        wants_masters: gives the fp32 master of a bf16 weight, where it has one.
    """

    def __init__(
        self,
        arrays: SavedArrays,
        counts: UpdateCounts,
        *,
        average_decay: float | None = None,
        wants_masters: bool = True,
    ) -> None:
        self._arrays = arrays
        self._counts = counts
        # Before the first step an average is the weight itself.
        self._decay = average_decay if counts.steps_applied else None
        masters = (LOW_BITS, TIE_BITS) if wants_masters or self._decay is not None else ()
        self._wanted = masters if self._decay is None else (AVERAGE, *masters)

    def __getitem__(self, name: str) -> torch.Tensor:
        weight = self._arrays.read(Part.WEIGHTS, name)
        states = {
            state: self._arrays.read(Part.STATES, state_name(state, name))
            for state in self._wanted
            if state_name(state, name) in self._arrays.specs[Part.STATES]
        }
        if LOW_BITS in states:
            parts = SplitMaster(weight.reshape(-1), states[LOW_BITS].view(-1), states[TIE_BITS])
            weight = join_master(parts, torch.empty(weight.numel())).view(weight.shape)
        if self._decay is None or AVERAGE not in states:
            return weight
        averaging = self._counts.averaging(name, self._decay, self._counts.steps_applied)
        averaging.catch_up(states[AVERAGE], weight)
        return states[AVERAGE]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays.specs[Part.WEIGHTS])

    def __len__(self) -> int:
        return len(self._arrays.specs[Part.WEIGHTS])
