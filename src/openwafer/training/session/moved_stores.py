"""Records of a saved step that go from the stores that have them to those of other systems.

Each store is read by a system that sees it, and its records pass one by one to their new owners.
The stores stay until the new ones have committed, so a run that is killed meanwhile goes on from
them; see docs/decisions/0024-stores-move-to-other-systems.md.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from openwafer.training.collectives.group import FIRST_RANK
from openwafer.training.session.config import RunConfig
from openwafer.training.session.found_stores import FoundStores, open_found, place_of
from openwafer.training.session.owned_records import CommitStep
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import RunState, StoreSet
from openwafer.training.session.saved_run import SavedRun, restore_execution
from openwafer.training.session.shared_stores import store_set
from openwafer.training.session.systems import Systems
from openwafer.training.store import ParameterStore, RecordLayout, save_checkpoint
from openwafer.training.store.joined_stores import JoinedStores
from openwafer.training.store.layout import KEPT_PARTS
from openwafer.training.store.manifest import MANIFEST_NAME, READY_NAME, read_manifest
from openwafer.training.store.parameter_store import closed_on_error
from openwafer.training.store.record_access import Records
from openwafer.training.stream.assemble import (
    Planned,
    create_store,
    execute,
    reopen,
)
from openwafer.training.stream.execute.execution import Execution
from openwafer.training.stream.replicas.ownership import dealing_of
from openwafer.training.stream.replicas.replica_link import Replicas, over, records_of
from openwafer.training.stream.replicas.run_store import (
    Asking,
    LendParts,
    RunStore,
    TakeParts,
    serve,
)


@dataclass(frozen=True)
class OpenFormer:
    """The leader wants the stores of a saved step read.

    Attributes:
        folder: of the run.
        found: the stores.
    """

    folder: Path
    found: FoundStores


class MoveFormer:
    """The leader wants those stores out of the way of new ones."""


@dataclass(frozen=True)
class LendFormer:
    """The leader wants parts of a record of those stores."""

    asked: LendParts | TakeParts


@dataclass(frozen=True)
class EndFormer:
    """The leader has read what it wants.

    Attributes:
        is_over: whether the stores are of no use any more.
    """

    is_over: bool


class FormerStores:
    """The stores of a saved step that a system reads, on behalf of the one that leads.

    Args:
        systems: those of the run; ``None`` where there is one.

    Attributes:
        records: what they have; nothing unless they are open.
    """

    def __init__(self, systems: Systems | None) -> None:
        self._systems = systems
        self._rank = FIRST_RANK if systems is None else systems.rank
        self._opened: OpenFormer | None = None
        self.records = JoinedStores(())

    def answer(self, asked: object) -> bool:
        """Do what the leader asks, if it is of these stores; whether it is.

        Raises:
            OpenwaferError: ``rank-lost``, or as the stores do.
        """
        match asked:
            case OpenFormer():
                self.open(asked)
            case MoveFormer():
                self.move()
            case LendFormer(lent):
                if lent.owner == self._rank:
                    assert self._systems is not None
                    serve(self.records, self._systems.records, lent, FIRST_RANK)
            case EndFormer(is_over):
                self.end(is_over=is_over)
            case _:
                return False
        return True

    def open(self, asked: OpenFormer) -> list[Mapping[str, RecordLayout]]:
        """Open the stores; returns the layouts of what each system reads."""
        self._opened = asked
        self.records = open_found(RunFolder(asked.folder), asked.found, self._rank)
        own = self.records.layouts
        if self._systems is None:
            return [own]
        tables = self._systems.gathered(own, "the records of earlier stores")
        return [table for table in tables if isinstance(table, dict)]

    def move(self) -> None:
        """Put all stores that are in a system's place out of the way. They stay open."""
        assert self._opened is not None
        folder, found = RunFolder(self._opened.folder), self._opened.found
        for index in found.read_by(self._rank):
            if place_of(folder, found, index) == folder.store_of(index):
                folder.move_store_of(index)
        if self._systems is not None:
            self._systems.gathered(None, "that earlier stores are out of the way")

    def end(self, *, is_over: bool) -> None:
        """Close the stores, and delete them where they have moved and are over."""
        self.records.close()
        if is_over and self._opened is not None:
            folder = RunFolder(self._opened.folder)
            for index in self._opened.found.read_by(self._rank):
                _delete(folder.moving_store_of(index))
            with suppress(OSError):
                # Another system of this host may have stores there.
                folder.moving.rmdir()
        self._opened, self.records = None, JoinedStores(())


def _delete(store: Path) -> None:
    # Without its manifests, what is left after a kill is no store.
    for name in (MANIFEST_NAME, READY_NAME):
        (store / name).unlink(missing_ok=True)
    shutil.rmtree(store)


class MovingRecords:
    """The records of a saved step, which the system that leads reads from all stores.

    Args:
        found: the stores.
        folder: of the run.
        systems: those of the run, which this one leads; ``None`` where there is one.

    Attributes:
        records: all of them.
    """

    def __init__(self, found: FoundStores, folder: RunFolder, systems: Systems | None) -> None:
        self._systems = systems
        self._own = FormerStores(systems)
        asked = OpenFormer(folder.path.absolute(), found)
        self._tell(asked)
        tables = self._own.open(asked)
        self.records: Records = self._own.records
        if systems is not None:
            owners = {record: rank for rank, table in enumerate(tables) for record in table}
            layouts = {record: one for table in tables for record, one in table.items()}
            asking = Asking(systems.records, lambda lent: systems.ask(LendFormer(lent)))
            self.records = RunStore(self._own.records, layouts, owners, asking)

    def _tell(self, content: object) -> None:
        if self._systems is not None:
            self._systems.ask(content)

    def make_way(self) -> None:
        """Put the stores where those of other systems are not."""
        self._tell(MoveFormer())
        self._own.move()

    def fill(self, records: Records) -> None:
        """Give stores of the same records their weights and states, one part at a time."""
        for part in KEPT_PARTS:
            for record in records.layouts:
                with (
                    self.records.lent(record, (part,), read_only=True) as former,
                    records.lent(record, (part,), fresh=(part,)) as made,
                ):
                    made.part_bytes_view(part).copy_(former.part_bytes_view(part))

    def commit(self, store: ParameterStore, state: RunState) -> None:
        """Make what was filled durable in all stores, of which one is this system's."""
        if state.stores is not None:
            self._tell(CommitStep(state.steps_done))
        store.commit(state.steps_done, state.to_json())

    def to_checkpoint(self, state: RunState, folder: RunFolder) -> Path:
        """Save them all as a checkpoint, which fits any records and any tier."""
        path = save_checkpoint(
            self.records,
            folder.checkpoints,
            state.steps_done,
            state.to_json(),
            num_updates=state.counts.num_updates,
        )
        self.end(is_over=False)
        return path

    def end(self, *, is_over: bool) -> None:
        """The stores have been read; those that have moved are over then."""
        # This system's are the first to go: without them, nobody asks for the others.
        self._own.end(is_over=is_over)
        self._tell(EndFormer(is_over))

    def close(self) -> None:
        """Close this system's stores, if nobody has."""
        self._own.end(is_over=False)


@dataclass(frozen=True)
class TakenUp:
    """How a run goes on.

    Attributes:
        saved: where; ``None`` begins it.
        stores: what its stores commit as; ``None`` where there are not several.
        moving: the records of that step, where they move from stores to others.
    """

    saved: SavedRun | None
    stores: StoreSet | None
    moving: MovingRecords | None = None


@contextmanager
def taken_up(
    saved: SavedRun | None,
    planned: Planned,
    config: RunConfig,
    folder: RunFolder,
    systems: Systems | None,
) -> Iterator[TakenUp]:
    """Context in which the stores of a plan can take up a saved step.

    Where these are to be stores of other records, or in memory alone, the step becomes a checkpoint
    first.
    """
    stores = store_set(config, planned)
    if saved is None or saved.found is None:
        yield TakenUp(saved, stores)
        return
    if _is_in_place(saved.found, planned, config, folder):
        # What is left of a move that has come to its end.
        shutil.rmtree(folder.moving, ignore_errors=True)
        yield TakenUp(saved, saved.found.stores)
        return
    moving = MovingRecords(saved.found, folder, systems)
    try:
        if planned.uses_disk and _are_equal(moving.records.layouts, planned):
            moving.make_way()
            state = replace(saved.state, stores=stores)
            yield TakenUp(SavedRun(state, None), stores, moving)
        else:
            state = replace(saved.state, stores=None)
            yield TakenUp(SavedRun(state, moving.to_checkpoint(state, folder)), stores)
    finally:
        moving.close()


def _is_in_place(
    found: FoundStores, planned: Planned, config: RunConfig, folder: RunFolder
) -> bool:
    """Whether each system opens its own store, and it has the records of the plan."""
    if not (planned.uses_disk and found.are_in_place):
        return False
    if found.stores is None:
        layouts = read_manifest(folder.store).catalog.layouts
        return not config.shares_store and _are_equal(layouts, planned)
    dealing = dealing_of(planned.plan.layouts, planned.owners)
    return config.shares_store and found.stores.dealing == dealing


def _are_equal(layouts: Mapping[str, RecordLayout], planned: Planned) -> bool:
    return dict(layouts) == dict(planned.plan.layouts)


def execution_of(
    taken: TakenUp,
    model: nn.Module,
    planned: Planned,
    folder: RunFolder,
    replicas: Replicas | None,
) -> Execution:
    """Execute a plan over the arrays of a saved step, whatever plan and tier it was saved under."""
    saved = taken.saved
    assert saved is not None
    if saved.checkpoint is not None:
        return restore_execution(saved, model, planned, folder, replicas)
    if taken.moving is not None:
        return _moved(taken.moving, saved.state, model, planned, folder, replicas)
    step = None if saved.state.stores is None else saved.state.steps_done
    execution = reopen(model, planned, folder=folder.store, replicas=replicas, step=step)
    planned.updater.counts = saved.state.counts.copy()
    return execution


def _moved(
    moving: MovingRecords,
    state: RunState,
    model: nn.Module,
    planned: Planned,
    folder: RunFolder,
    replicas: Replicas | None,
) -> Execution:
    # Of a move that was broken off; the stores that move are elsewhere by now.
    shutil.rmtree(folder.store, ignore_errors=True)
    with closed_on_error(create_store(planned, folder.store)) as store:
        replicas = over(store, planned.plan.layouts, replicas)
        moving.fill(records_of(store, replicas))
        moving.commit(store, state)
        moving.end(is_over=True)
        planned.updater.counts = state.counts.copy()
        return execute(model, planned, store, replicas)
