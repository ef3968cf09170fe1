"""The stores of several systems on their disks: where a run finds them again, and at which step.

Each system's store commits by itself, once all are ready, so that all of them can be opened at one
step at least; see docs/decisions/0020-a-record-has-one-owner.md. Stores that a run cannot open as
they are become a checkpoint first: each is read by a system that sees it, and the leader writes all
records, one by one; see docs/decisions/0051-stores-become-a-checkpoint.md.
"""

import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from openwafer.diagnostics import Diagnostic, Severity, error
from openwafer.training.collectives.group import FIRST_RANK, Rank
from openwafer.training.session.config import RunConfig
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import RunState, StoreSet
from openwafer.training.session.saved_run import (
    FoundStores,
    JoinedStores,
    SavedRun,
    found_here,
    located,
    open_found,
    seen_stores,
)
from openwafer.training.session.systems import Systems
from openwafer.training.store import RecordLayout, list_checkpoints, read_checkpoint
from openwafer.training.store.checkpoint import require_fit, save_checkpoint
from openwafer.training.store.parameter_store import StoreOptions
from openwafer.training.store.record_access import Records
from openwafer.training.store.store_folder import MANIFEST_NAME, READY_NAME, read_manifest
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.replicas.ownership import dealing_of
from openwafer.training.systems.owner import LendParts, Owners, serve


@dataclass(frozen=True)
class FindStores:
    """The leader wants to know which of some stores each system sees.

    Attributes:
        folder: of the run.
        stores: the stores are these.
    """

    folder: Path
    stores: StoreSet


def tell_stores(systems: Systems, asked: FindStores) -> FoundStores | list[int]:
    """Where the stores are, or those that no system sees; all call this."""
    own = seen_stores(RunFolder(asked.folder), asked.stores)
    seen = systems.control.gather(own, "which stores it sees")
    return located(asked.stores, [found for found in seen if isinstance(found, dict)])


@dataclass(frozen=True)
class FindRun:
    """The leader has no run, and wants to know which systems have one.

    Attributes:
        folder: where it would be.
    """

    folder: Path


def tell_run(systems: Systems, asked: FindRun) -> list[Rank]:
    """The systems that have the run on their hosts; all call this."""
    found = systems.control.gather(
        RunFolder(asked.folder).config.is_file(), "whether it has the run"
    )
    return [rank for rank, is_there in zip(systems.ranks, found, strict=True) if is_there]


def require_led_here(folder: RunFolder, systems: Systems) -> None:
    """Raise ``run-elsewhere`` where another system than the one that leads has the run."""
    if folder.config.is_file():
        return
    asked = FindRun(folder.path.absolute())
    systems.ask(asked)
    for holder in tell_run(systems, asked):
        with systems.leading():
            raise error(
                "run-elsewhere",
                f"{systems.ranks[FIRST_RANK]} leads, and the run {folder.path} is with {holder}",
                help=f"start the system of host {holder.host!r} as the first one, such as by "
                "--node-rank 0, or move what the folder has there; for a new run, choose another "
                "name: --set name=NAME",
            )


class StoreFinder:
    """Finds the stores of several systems, on all hosts of a run.

    Args:
        folder: of the run.
        systems: those of the run; ``None`` where there is one.

    Attributes:
        warnings: why stores are of no use.
    """

    def __init__(self, folder: RunFolder, systems: Systems | None) -> None:
        self._folder = folder
        self._systems = systems
        self.warnings: list[Diagnostic] = []

    def find(self, stores: StoreSet) -> FoundStores | None:
        """Where all of them are, if they can be opened at one step."""
        if self._systems is None:
            found, hosts = found_here(self._folder, stores), [socket.gethostname()]
        else:
            asked = FindStores(self._folder.path.absolute(), stores)
            self._systems.ask(asked)
            found = tell_stores(self._systems, asked)
            hosts = [rank.host for rank in self._systems.ranks]
        if isinstance(found, FoundStores):
            return found
        self.warnings.append(_not_used(stores, self._missing(found, hosts)))
        return None

    def _missing(self, missing: Sequence[int], hosts: Sequence[str]) -> str:
        if not missing:
            return "they have no step in common"
        names = ", ".join(self._folder.store_of(index).name for index in missing)
        is_missing = "is" if len(missing) == 1 else "are"
        where = ", ".join(dict.fromkeys(hosts))
        return f"{names} {is_missing} not in {self._folder.path} on {where}"


def _not_used(stores: StoreSet, reason: str) -> Diagnostic:
    return Diagnostic(
        Severity.WARNING,
        "run-stores",
        f"the last steps of the run are in the stores of {stores.size} systems, and {reason}",
        notes=("the run goes on from its last checkpoint, or from its beginning without one",),
        help="nothing: the steps since then are made again, and are the same",
    )


def store_set(saved: SavedRun | None, config: RunConfig, planned: Planned) -> StoreSet | None:
    """What the stores that a run opens, or those that it makes, commit as; of one, ``None``."""
    if saved is not None and saved.checkpoint is None:
        return saved.state.stores
    if not (config.shares_store and planned.uses_disk):
        return None
    dealing = dealing_of(planned.plan.layouts, planned.owners)
    return StoreSet(uuid4().hex, config.systems, dealing)


def store_options(
    options: StoreOptions, config: RunConfig, systems: Systems | None
) -> StoreOptions:
    """How the store of a system talks to its disk."""
    if systems is None or not config.shares_store:
        return options
    # A commit waits for that of each other system.
    seconds = options.stall_seconds + config.systems_timeout
    return replace(options, agree=systems.agree, stall_seconds=seconds)


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
        tables = self._systems.control.gather(own.layouts, "the records of earlier stores")
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
            self._systems.control.gather(None, "that earlier stores are deleted")

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
    return write_checkpoint(state, records, folder)


def write_checkpoint(state: RunState, records: Records, folder: RunFolder) -> Path:
    """Write the checkpoint of a step.

    Raises:
        OpenwaferError: ``checkpoint-not-written``.
    """
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
