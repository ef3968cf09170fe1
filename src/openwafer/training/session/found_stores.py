"""The stores of a run's last commits: who sees them, and at which step all can be opened."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from openwafer.training.collectives.group import FIRST_RANK
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import StoreSet, counts_of_owner, parse_run_state
from openwafer.training.store import ParameterStore, Tier
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.record_access import LentParts, Records
from openwafer.training.store.store_folder import Manifest, manifests_of
from openwafer.training.stream.link.updates import UpdateCounts

# By the index of the system that made a store: how often its parameters were updated, by the steps
# at which it can be opened.
SeenStores = Mapping[int, Mapping[int, UpdateCounts]]


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
        """See :class:`Records`."""
        return {record: store.layouts[record] for record, store in self._home.items()}

    def borrow(
        self,
        record: str,
        parts: Collection[Part],
        *,
        read_only: bool = False,
        fresh: Collection[Part] = (),
    ) -> LentParts:
        """See :meth:`ParameterStore.borrow`."""
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
