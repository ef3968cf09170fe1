"""The stores of several systems on their disks: where a run finds them again, and at which step.

Each system's store commits by itself, once all are ready, so that all of them can be opened at one
step at least; see docs/decisions/0020-a-record-has-one-owner.md.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.training.session.config import RunConfig
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import StoreSet
from openwafer.training.session.saved_run import SavedRun
from openwafer.training.session.systems import Systems
from openwafer.training.store.manifest import manifests_of
from openwafer.training.store.options import StoreOptions
from openwafer.training.stream.assemble import Planned
from openwafer.training.stream.replicas.ownership import dealing_of


@dataclass(frozen=True)
class FindStores:
    """The leader wants to know which steps each system's store holds.

    Attributes:
        folder: of the run.
        stores: the store is to be one of these.
    """

    folder: Path
    stores: StoreSet


def tell_steps(systems: Systems, asked: FindStores) -> int | None:
    """The newest step that the stores of all systems hold, if there is one; all call this."""
    folder = RunFolder(asked.folder).store_of(systems.rank)
    wanted = asdict(asked.stores)
    own = {
        step
        for step, manifest in manifests_of(folder).items()
        if manifest.state.get("stores") == wanted
    }
    found = systems.gathered(own, "which steps its store holds")
    common = set.intersection(*(steps for steps in found if isinstance(steps, set)))
    return max(common, default=None)


def step_finder(
    config: RunConfig,
    folder: RunFolder,
    systems: Systems | None,
    say: Callable[[Diagnostic], None],
) -> Callable[[StoreSet], int | None]:
    """What finds the step at which the stores of a run are opened; ``None`` for a checkpoint's.

    Args:
        config, folder: of the run.
        systems: those of the run; ``None`` where there is one.
        say: is told why stores are of no use.
    """

    def find(stores: StoreSet) -> int | None:
        size = 1 if systems is None else systems.size
        if systems is None or not config.shares_store or size != stores.size:
            say(_not_used(stores, f"systems is {size} and store_systems {config.store_systems}"))
            return None
        asked = FindStores(folder.path.absolute(), stores)
        systems.ask(asked)
        step = tell_steps(systems, asked)
        if step is None:
            say(_not_used(stores, "some of them are not there, or have no step in common"))
        return step

    return find


def _not_used(stores: StoreSet, reason: str) -> Diagnostic:
    return Diagnostic(
        Severity.WARNING,
        "run-stores",
        f"the last steps of the run are in the stores of {stores.size} systems, and {reason}",
        notes=("the run goes on from its last checkpoint, or from its beginning without one",),
        help="nothing: the steps since then are made again, and are the same",
    )


def store_set(config: RunConfig, planned: Planned, saved: SavedRun | None) -> StoreSet | None:
    """What the stores of a run commit as: as those that are opened, or as new ones.

    Args:
        config: of the run.
        planned: the plan.
        saved: where the run goes on, if it does; a checkpoint names no stores.
    """
    if not (config.shares_store and planned.uses_disk):
        return None
    dealing = dealing_of(planned.plan.layouts, planned.owners)
    opened = None if saved is None else saved.state.stores
    return opened or StoreSet(uuid4().hex, config.systems, dealing)


def store_options(
    options: StoreOptions, config: RunConfig, systems: Systems | None
) -> StoreOptions:
    """How the store of a system talks to its disk."""
    if systems is None or not config.shares_store:
        return options
    # A commit waits for that of each other system.
    seconds = options.stall_seconds + config.systems_timeout
    return replace(options, agree=systems.agree, stall_seconds=seconds)
