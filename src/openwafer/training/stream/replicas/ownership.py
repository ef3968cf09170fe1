"""Which rank's store has which records, and which rank computes with them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final

import psutil
import torch
import xxhash

from openwafer.training.collectives.group import FIRST_RANK, Group
from openwafer.training.store.layout import Part, RecordLayout, lay_out, slice_of
from openwafer.training.store.parameter_store import ParameterStore, StoreOptions, Tier
from openwafer.training.store.store_folder import Placement

HOST_SHARE: Final = 0.8


class StoreSystems(StrEnum):
    """Which ranks have records in their stores: all of them, or the first one.

    What `auto` stands for is known to a run; in a loop of a user's own it is `first`.
    """

    AUTO = "auto"
    ALL = "all"
    FIRST = "first"


@dataclass(frozen=True)
class StoreChoice:
    """Which ranks have records in their stores, and why, for people."""

    systems: StoreSystems
    reason: str


def owners_of(
    layouts: Mapping[str, RecordLayout], num_ranks: int, where: StoreSystems
) -> dict[str, int]:
    """The rank that owns each record, by its name.

    Records are dealt to all ranks so that their bytes are about equal: the largest first, each to
    the rank that has the fewest by then. The same records are dealt alike in every process. Of the
    experts of a weight, each rank has as many neighbours.
    """
    if where is not StoreSystems.ALL:
        return dict.fromkeys(layouts, FIRST_RANK)
    sizes = {name: layout.num_bytes for name, layout in layouts.items()}
    dealt_bytes = [0] * num_ranks
    owners = _owners_of_experts(layouts, num_ranks)
    for name, owner in owners.items():
        dealt_bytes[owner] += sizes.pop(name)
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        owner = dealt_bytes.index(min(dealt_bytes))
        owners[name] = owner
        dealt_bytes[owner] += sizes[name]
    return {name: owners[name] for name in layouts}


def _owners_of_experts(layouts: Iterable[str], num_ranks: int) -> dict[str, int]:
    slices = {name: found for name in layouts if (found := slice_of(name)) is not None}
    num_slices = Counter(found.whole for found in slices.values())
    return {
        name: found.index * num_ranks // num_slices[found.whole] for name, found in slices.items()
    }


def dealing_of(layouts: Mapping[str, RecordLayout], owners: Mapping[str, int]) -> str:
    """A digest of which rank has which arrays, and where they lie in their records."""
    dealt = [(name, owners[name], layout.parts) for name, layout in layouts.items()]
    return xxhash.xxh3_64_hexdigest(repr(dealt).encode())


def share_of(
    layouts: Mapping[str, RecordLayout], owners: Mapping[str, int], rank: int
) -> dict[str, RecordLayout]:
    """The records that a rank owns, in the order of all."""
    return {name: layout for name, layout in layouts.items() if owners[name] == rank}


@dataclass(frozen=True)
class Ownership:
    """Which rank has each record in its store, and which computes with it.

    Attributes:
        owners: the rank that has a record, by its name; the first has those that are not named.
        staying: records whose weights are not fetched: who has them computes with them for others.
        group_size: how many neighbouring ranks have all records that stay. Those of the first group
            own them, those of others have copies of the weights.
    """

    owners: Mapping[str, int] = field(default_factory=dict)
    staying: frozenset[str] = frozenset()
    group_size: int = 1

    def owner(self, record: str) -> int:
        """The rank in whose store a record is."""
        return self.owners.get(record, FIRST_RANK)

    def computed_by(self, record: str, rank: int) -> int:
        """The rank that computes with a record what the micro-batches of a rank need of it.

        It is that rank, where the weights are fetched, or the one of its group that has them.
        """
        if record not in self.staying:
            return rank
        return rank - rank % self.group_size + self.owner(record)


def fetched_but_experts(owners: Mapping[str, int], num_ranks: int) -> Ownership:
    """Of records that all ranks fetch, but for experts that are records by themselves."""
    experts = frozenset(name for name in owners if slice_of(name) is not None)
    return Ownership(owners, experts, num_ranks)


@dataclass(frozen=True)
class HostMemory:
    """What the host of a rank has.

    Attributes:
        name: of the host.
        free_bytes: that its processes may take.
    """

    name: str
    free_bytes: int


def hosts_of(group: Group) -> tuple[HostMemory, ...]:
    """What the hosts of all ranks have, in their order; all of them call this."""
    own = torch.tensor([psutil.virtual_memory().available])
    free = group.gather(own, "how much memory its host has")
    pairs = zip(group.ranks, free, strict=True)
    return tuple(HostMemory(rank.host, int(found.item())) for rank, found in pairs)


def bytes_of_hosts(hosts: Iterable[HostMemory], most_bytes: int | None) -> dict[str, int]:
    """What hosts have for a run, by name: so much each, or most of what is free for ``None``."""
    return {
        host.name: int(host.free_bytes * HOST_SHARE) if most_bytes is None else most_bytes
        for host in hosts
    }


def fair_bytes(
    hosts: Sequence[HostMemory], most_bytes: int | None, held_bytes: Sequence[int]
) -> tuple[int, ...]:
    """Host memory for the store of each rank: ranks of one host share it by what they hold.

    So records that fit a host fit it in several stores, too.

    Args:
        hosts: of the ranks.
        most_bytes: for the stores of one host; ``None`` is most of what is free.
        held_bytes: of the records of each rank.
    """
    on_host: Counter[str] = Counter()
    for host, held in zip(hosts, held_bytes, strict=True):
        on_host[host.name] += held
    rooms = bytes_of_hosts(hosts, most_bytes)
    return tuple(
        rooms[host.name] * held // max(on_host[host.name], 1)
        for host, held in zip(hosts, held_bytes, strict=True)
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


@dataclass(frozen=True)
class StagePlan:
    """The stages of a run.

    Attributes:
        layers: names of the layers whose calls are dealt out.
        spans: calls by stage.
        layouts: records by stage.
        tied: weights that two stages use: the one that has it, and the one that borrows it.
        num_replicas: pipelines, each with all stages, on neighbouring ranks; the first one has the
            records.
    """

    layers: tuple[str, ...]
    spans: tuple[range, ...]
    layouts: tuple[Mapping[str, RecordLayout], ...]
    tied: Mapping[str, tuple[int, int]]
    num_replicas: int = 1

    @property
    def num_ranks(self) -> int:
        """Of all replicas."""
        return len(self.spans) * self.num_replicas

    def stage_of(self, rank: int) -> int:
        """The stage that a rank has."""
        return rank % len(self.spans)

    def replica_of(self, rank: int) -> int:
        """The replica that a rank is in."""
        return rank // len(self.spans)

    def where(self, rank: int) -> str:
        """What a rank has of the model, in words."""
        stage = f"stage {self.stage_of(rank)}"
        return stage if self.num_replicas == 1 else f"{stage} of replica {self.replica_of(rank)}"

    def pipeline_of(self, rank: int) -> range:
        """The ranks of the same replica, by stage."""
        start = self.replica_of(rank) * len(self.spans)
        return range(start, start + len(self.spans))

    def alike(self, rank: int) -> range:
        """The ranks that have the same stage, by replica."""
        return range(self.stage_of(rank), self.num_ranks, len(self.spans))

    def share(self, rank: int) -> StoreShare:
        """What the store of a rank holds: of other replicas than the first, weights alone."""
        layouts = {
            name: layout if self.ownership.owner(name) == rank else _weights_of(layout)
            for name, layout in self.all_layouts.items()
            if self.ownership.computed_by(name, rank) == rank
        }
        tiers = {(name, part): Tier.DRAM for name in layouts for part in Part}
        return StoreShare(layouts, tiers, ring_bytes=0, uses_disk=False)

    @cached_property
    def ownership(self) -> Ownership:
        """Of all records, which stay with their stages; the first replica has them."""
        owners = {name: stage for stage, held in enumerate(self.layouts) for name in held}
        return Ownership(owners, frozenset(owners), len(self.spans))

    @property
    def all_layouts(self) -> Mapping[str, RecordLayout]:
        """Of all stages, first to last."""
        return {name: layout for held in self.layouts for name, layout in held.items()}


def _weights_of(layout: RecordLayout) -> RecordLayout:
    """The record without states and gradients."""
    return lay_out(layout.name, [place.spec for place in layout.parts[Part.WEIGHTS]])
