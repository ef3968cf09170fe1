"""The stores of several systems on their disks: where a run finds them again, and at which step.

Each system's store commits by itself, once all are ready, so that all of them can be opened at one
step at least; see docs/decisions/0020-a-record-has-one-owner.md.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from openwafer.diagnostics import Diagnostic, Severity, error
from openwafer.training.collectives.group import FIRST_RANK, Rank
from openwafer.training.session.config import RunConfig
from openwafer.training.session.found_stores import (
    FoundStores,
    found_here,
    located,
    seen_stores,
)
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import StoreSet
from openwafer.training.session.saved_run import SavedRun
from openwafer.training.session.systems import Systems
from openwafer.training.store.parameter_store import StoreOptions
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.replicas.ownership import dealing_of


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
    seen = systems.gathered(own, "which stores it sees")
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
    found = systems.gathered(RunFolder(asked.folder).config.is_file(), "whether it has the run")
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
