"""Which rank's store has which records."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import xxhash

from openwafer.training.store.catalog import Placement
from openwafer.training.store.layout import RecordLayout
from openwafer.training.store.options import StoreOptions
from openwafer.training.store.parameter_store import ParameterStore

FIRST_RANK: Final = 0
HOST_SHARE: Final = 0.8


class StoreSystems(StrEnum):
    """Which ranks have records in their stores: all of them, or the first one."""

    ALL = "all"
    FIRST = "first"


def owners_of(
    layouts: Mapping[str, RecordLayout], num_ranks: int, where: StoreSystems
) -> dict[str, int]:
    """The rank that owns each record, by its name.

    Records are dealt to all ranks so that their bytes are about equal: the largest first, each to
    the rank that has the fewest by then. The same records are dealt alike in every process.
    """
    if where is StoreSystems.FIRST:
        return dict.fromkeys(layouts, FIRST_RANK)
    sizes = {name: layout.num_bytes for name, layout in layouts.items()}
    dealt_bytes = [0] * num_ranks
    owners = {}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        owner = dealt_bytes.index(min(dealt_bytes))
        owners[name] = owner
        dealt_bytes[owner] += sizes[name]
    return {name: owners[name] for name in layouts}


def dealing_of(layouts: Mapping[str, RecordLayout], owners: Mapping[str, int]) -> str:
    """A digest of which rank has which arrays, and where they lie in their records."""
    dealt = [(name, owners[name], layout.parts) for name, layout in layouts.items()]
    return xxhash.xxh3_64_hexdigest(repr(dealt).encode())


def share_of(
    layouts: Mapping[str, RecordLayout], owners: Mapping[str, int], rank: int
) -> dict[str, RecordLayout]:
    """The records that a rank owns, in the order of all."""
    return {name: layout for name, layout in layouts.items() if owners[name] == rank}


def fullest_share(
    layouts: Mapping[str, RecordLayout], num_ranks: int, where: StoreSystems
) -> dict[str, RecordLayout]:
    """The records of the rank that has most bytes of them."""
    owners = owners_of(layouts, num_ranks, where)
    shares = [share_of(layouts, owners, rank) for rank in range(num_ranks)]
    return max(shares, key=lambda share: sum(layout.num_bytes for layout in share.values()))


@dataclass(frozen=True)
class HostMemory:
    """What the host of a rank has.

    Attributes:
        name: of the host.
        free_bytes: that its processes may take.
    """

    name: str
    free_bytes: int


def fair_bytes(hosts: Sequence[HostMemory], most_bytes: int | None) -> tuple[int, ...]:
    """Host memory for the store of each rank: ranks of one host share what it has.

    Args:
        hosts: of the ranks.
        most_bytes: for the stores of one host; ``None`` is most of what is free.
    """
    on_host = Counter(host.name for host in hosts)
    free = {host.name: int(host.free_bytes * HOST_SHARE) for host in hosts}
    return tuple(
        (free[host.name] if most_bytes is None else most_bytes) // on_host[host.name]
        for host in hosts
    )


@dataclass(frozen=True)
class StoreShare:
    """What the store of one rank holds.

    Attributes:
        layouts: its records.
        tiers: where their parts live.
        ring_bytes: see :class:`ParameterStore`.
        uses_disk: whether some rank has parts on disk, so that all of them commit.
    """

    layouts: Mapping[str, RecordLayout]
    tiers: Placement
    ring_bytes: int
    uses_disk: bool

    def create(self, folder: Path | None, options: StoreOptions) -> ParameterStore:
        """The store, all zero. ``folder`` is used only where it commits."""
        return ParameterStore.create(
            self.layouts.values(),
            self.tiers,
            folder=folder if self.uses_disk else None,
            ring_bytes=self.ring_bytes,
            options=options,
        )

    def open(self, folder: Path, options: StoreOptions, step: int | None = None) -> ParameterStore:
        """The store that was made in a folder, at its last commit or at a step."""
        return ParameterStore.open(
            folder,
            placement=self.tiers,
            ring_bytes=self.ring_bytes,
            options=options,
            step=step,
        )
