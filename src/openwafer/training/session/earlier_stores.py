"""Stores of a saved step that a run cannot open as they are: they become a checkpoint first.

Each store is read by a system that sees it, and the leader writes all records, one by one. The
stores stay until the checkpoint is whole; see docs/decisions/0051-stores-become-a-checkpoint.md.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from openwafer.training.collectives.group import FIRST_RANK
from openwafer.training.session.config import RunConfig
from openwafer.training.session.found_stores import FoundStores, JoinedStores, open_found
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import RunState
from openwafer.training.session.saved_run import SavedRun
from openwafer.training.session.systems import Systems
from openwafer.training.store import RecordLayout, list_checkpoints, read_checkpoint
from openwafer.training.store.checkpoint import require_fit, save_checkpoint
from openwafer.training.store.record_access import Records
from openwafer.training.store.store_folder import MANIFEST_NAME, READY_NAME, read_manifest
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.replicas.ownership import dealing_of
from openwafer.training.systems.owner import LendParts, Owners, serve


@dataclass(frozen=True)
class OpenStores:
    """The leader wants the stores of a saved step opened, to read them.

    Attributes:
        folder: of the run.
        found: the stores.
    """

    folder: Path
    found: FoundStores


class DeleteStores:
    """The leader has a checkpoint of what the opened stores hold."""


class EarlierStores:
    """The stores of a saved step that this system reads for the leader.

    Args:
        systems: those of the run; ``None`` where there is one.
    """

    def __init__(self, systems: Systems | None) -> None:
        self._systems = systems
        self._rank = FIRST_RANK if systems is None else systems.rank
        self._places: list[Path] = []
        self._records = JoinedStores(())

    def answer(self, asked: object) -> None:
        """Do what the leader asks.

        Raises:
            OpenwaferError: ``rank-lost``, or as the stores do.
        """
        match asked:
            case OpenStores():
                self.open(asked)
            case LendParts():
                assert self._systems is not None
                serve(self._records, self._systems.control.group, asked)
            case DeleteStores():
                self.delete()
            case _:
                raise AssertionError(asked)

    def open(self, asked: OpenStores) -> Records:
        """Open the stores; to the leader, returns the records of all systems' stores."""
        folder, read = RunFolder(asked.folder), asked.found.read_by(self._rank)
        self._places = [folder.store_of(index) for index in read]
        own = self._records = open_found(folder, asked.found, self._rank)
        if self._systems is None:
            return own
        tables = self._systems.gathered(own.layouts, "the records of earlier stores")
        layouts: dict[str, RecordLayout] = {}
        owners: dict[str, int] = {}
        for rank, table in enumerate(tables):
            assert isinstance(table, dict)
            layouts |= table
            owners |= dict.fromkeys(table, rank)
        return Owners(self._systems.control, owners).over(own, layouts)

    def delete(self) -> None:
        """Close the stores and delete them."""
        self.close()
        for store in self._places:
            # Without its manifests, what is left after a kill is no store.
            for name in (MANIFEST_NAME, READY_NAME):
                (store / name).unlink(missing_ok=True)
            shutil.rmtree(store)
        if self._systems is not None:
            if self._systems.is_leader:
                # Nobody looks for the other stores of a run that has no first one.
                self._systems.ask(DeleteStores())
            # A system may make its own store where another one has deleted.
            self._systems.gathered(None, "that earlier stores are deleted")

    def close(self) -> None:
        """Close the stores."""
        self._records.close()
        self._records = JoinedStores(())


def openable(
    saved: SavedRun,
    planned: Planned,
    config: RunConfig,
    folder: RunFolder,
    systems: Systems | None,
    notify: Callable[[str], None],
) -> SavedRun:
    """The same step as this run can open it: as it is, or as a checkpoint in the place of stores.

    Raises:
        OpenwaferError: ``checkpoint-not-written``, ``checkpoint-mismatch``, ``rank-lost``, or as
            the stores do; all of them are still there.
    """
    if saved.found is None or _are_own(saved.found, planned, config, folder):
        return saved
    stores = EarlierStores(systems)
    asked = OpenStores(folder.path.absolute(), saved.found)
    try:
        if systems is not None:
            systems.ask(asked)
        records = stores.open(asked)
        state = replace(saved.state, stores=None)
        path = _checkpoint(state, records, folder, notify)
        require_fit(read_checkpoint(path), planned.plan.layouts.values())
        stores.delete()
    finally:
        stores.close()
    return SavedRun(state, path)


def _checkpoint(
    state: RunState, records: Records, folder: RunFolder, notify: Callable[[str], None]
) -> Path:
    """The checkpoint of a step, which an interrupted run of several systems has written."""
    for path in list_checkpoints(folder.checkpoints)[-1:]:
        if read_checkpoint(path).step == state.steps_done:
            return path
    notify("writing a checkpoint of the stores")
    return save_checkpoint(
        records,
        folder.checkpoints,
        state.steps_done,
        state.to_json(),
        num_updates=state.counts.num_updates,
    )


def _are_own(found: FoundStores, planned: Planned, config: RunConfig, folder: RunFolder) -> bool:
    """Whether each system has its own store, and in it the records of the plan."""
    if not (planned.uses_disk and found.are_in_place):
        return False
    if found.stores is None:
        layouts = read_manifest(folder.store).catalog.layouts
        return not config.shares_store and layouts == dict(planned.plan.layouts)
    dealing = dealing_of(planned.plan.layouts, planned.owners)
    return config.shares_store and found.stores.dealing == dealing
