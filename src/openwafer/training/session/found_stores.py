"""Where the stores of a run's last commits are: who sees them, and at which step all can be opened.

A store is in the place where its system has it, or among those whose records are on their way to
other systems, until these have committed them.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from openwafer.training.collectives.group import FIRST_RANK
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import StoreSet, counts_of_owner, parse_run_state
from openwafer.training.store import ParameterStore, Tier
from openwafer.training.store.joined_stores import JoinedStores
from openwafer.training.store.manifest import Manifest, manifests_of
from openwafer.training.stream.link.updates import UpdateCounts


@dataclass(frozen=True)
class SeenStore:
    """A store that a system sees.

    Attributes:
        counts: of the updates of its parameters, by the steps at which it can be opened.
        is_in_place: whether it is where its system has it.
    """

    counts: Mapping[int, UpdateCounts]
    is_in_place: bool


# By the index of the system that made it.
SeenStores = Mapping[int, SeenStore]


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
        for path in (folder.store_of(index), folder.moving_store_of(index)):
            manifests = _manifests(path, stores)
            if manifests:
                counts = {step: _counts(index, path, one) for step, one in manifests.items()}
                seen[index] = SeenStore(counts, path == folder.store_of(index))
                break
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
    steps = [{step for one in of.values() for step in one.counts} for of in holders]
    step = max(set.intersection(*steps), default=None)
    if step is None:
        return []
    having = [{r: one for r, one in of.items() if step in one.counts} for of in holders]
    readers = tuple(min(of) for of in having)
    first, *others = (of[reader].counts[step] for of, reader in zip(having, readers, strict=True))
    in_place = [index in of and of[index].is_in_place for index, of in enumerate(having)]
    are_in_place = len(seen) == len(having) and all(in_place)
    return FoundStores(step, stores, readers, _joined(first, others), are_in_place)


def _holders(index: int, seen: Sequence[SeenStores]) -> dict[int, SeenStore]:
    """The systems that see a store."""
    # What the run commits beside the first one is read by the system that leads.
    asked = seen[:1] if index == FIRST_RANK else seen
    return {rank: found[index] for rank, found in enumerate(asked) if index in found}


def _joined(first: UpdateCounts, others: Iterable[UpdateCounts]) -> UpdateCounts:
    joined = first.of_wholes()
    for counts in others:
        joined.num_updates.update(counts.num_updates)
        joined.num_averaged.update(counts.num_averaged)
    return joined


def found_here(folder: RunFolder, stores: StoreSet | None) -> FoundStores | list[int]:
    """As :func:`located`, of what this process alone sees."""
    return located(stores, [seen_stores(folder, stores)])


def open_found(folder: RunFolder, found: FoundStores, rank: int) -> JoinedStores:
    """Open the stores that a system reads, at their step and to read, with nothing in DRAM."""
    with ExitStack() as stack:
        indices = found.read_by(rank)
        stores = [stack.enter_context(_opened(folder, found, index)) for index in indices]
        stack.pop_all()
    return JoinedStores(stores)


def place_of(folder: RunFolder, found: FoundStores, index: int) -> Path:
    """The folder of a store that this system sees."""
    places = (folder.store_of(index), folder.moving_store_of(index))
    return next(path for path in places if found.step in _manifests(path, found.stores))


def _opened(folder: RunFolder, found: FoundStores, index: int) -> ParameterStore:
    path = place_of(folder, found, index)
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
