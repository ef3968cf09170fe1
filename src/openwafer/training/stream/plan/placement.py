"""Decides which parts of which records live in DRAM and which on disk."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.parameter_store import Tier
from openwafer.training.stream.replicas.ownership import HostMemory


class StoreTier(StrEnum):
    """Where the parameter store may keep its records."""

    AUTO = "auto"  # DRAM when all fits the host memory, else disk
    DRAM = "dram"
    DISK = "disk"  # states on disk; weights in DRAM as far as the host memory allows


@dataclass(frozen=True)
class HostBudget:
    """What the store may use on the host.

    Attributes:
        tier: where records may live.
        budget_bytes: host memory for the store, its ring included.
        has_folder: whether there is a folder for a disk tier.
    """

    tier: StoreTier
    budget_bytes: int
    has_folder: bool


@dataclass(frozen=True)
class StorePlacement:
    """Where every part lives.

    Attributes:
        tiers: tier by (record, part).
        ring_bytes: memory for read-ahead and write-behind; 0 without a disk tier.
        dram_bytes: memory of the parts in DRAM.
    """

    tiers: Mapping[tuple[str, Part], Tier]
    ring_bytes: int
    dram_bytes: int


def place(
    layouts: Mapping[str, RecordLayout], host: HostBudget, *, speculates: bool = False
) -> StorePlacement:
    """Place all parts so that a step moves the fewest bytes to and from disk.

    A byte of weights kept in DRAM saves three bytes of disk traffic a step (two reads, one write),
    a byte of gradients or states two, so weights go first. Records in the middle of the model go
    before those at its ends, which the ring still holds where a pass turns: the last ones between
    forward and backward, the first ones between backward and forward.

    Gradients go last where steps are updated as gradients arrive, so that few steps keep them.

    Raises:
        OpenwaferError: ``store-too-large`` when the records fit neither the host memory nor, for
            want of a folder, a disk; ``host-memory-too-small`` when one of those on disk cannot be
            updated within it.
    """
    sizes = {
        (record, part): layout.part_bytes(part)
        for record, layout in layouts.items()
        for part in Part
        if layout.part_bytes(part)
    }
    if not sizes or not _wants_disk(layouts.values(), host):
        return StorePlacement(dict.fromkeys(sizes, Tier.DRAM), 0, sum(sizes.values()))
    too_large = record_without_room(layouts, host)
    if too_large is not None:
        raise too_large_to_update(too_large, host)
    return _on_disk(sizes, layouts, host, speculates=speculates)


def on_first_host(
    placements: Sequence[StorePlacement], hosts: Sequence[HostMemory]
) -> list[StorePlacement]:
    """Those of the ranks on the first one's host; of all where no hosts are known."""
    names = [host.name for host in hosts] or [""] * len(placements)
    return [one for one, name in zip(placements, names, strict=True) if name == names[0]]


def merged(placements: Sequence[StorePlacement]) -> StorePlacement:
    """Where every part of a run lives whose records are dealt to several stores."""
    return StorePlacement(
        {key: tier for one in placements for key, tier in one.tiers.items()},
        sum(one.ring_bytes for one in placements),
        sum(one.dram_bytes for one in placements),
    )


def _wants_disk(layouts: Iterable[RecordLayout], host: HostBudget) -> bool:
    """Whether records go to a disk.

    Raises:
        OpenwaferError: ``store-too-large`` when they need one and may not use it, or have none.
    """
    total = sum(map(update_bytes, layouts))
    fits = total <= host.budget_bytes
    is_asked_for = host.tier is StoreTier.DISK or (host.tier is StoreTier.AUTO and not fits)
    if (not fits and not is_asked_for) or (is_asked_for and not host.has_folder):
        raise _too_large(total, host)
    return is_asked_for


def record_without_room(
    layouts: Mapping[str, RecordLayout], host: HostBudget
) -> RecordLayout | None:
    """The largest record, if records go to a disk and it is too large to be updated.

    Raises:
        OpenwaferError: ``store-too-large`` when they have to go to one and may not.
    """
    if not layouts:
        return None
    total = sum(map(update_bytes, layouts.values()))
    # What fits as a whole may yet be resident, whatever tier is asked for.
    if total <= host.budget_bytes or not _wants_disk(layouts.values(), host):
        return None
    largest = max(layouts.values(), key=update_bytes)
    return largest if update_bytes(largest) > host.budget_bytes else None


def update_bytes(layout: RecordLayout) -> int:
    """Host memory that a record takes while it is updated: that of all its parts."""
    return layout.num_bytes


def too_large_to_update(record: RecordLayout, host: HostBudget) -> OpenwaferError:
    """The error for a record that cannot be split so that it fits."""
    return error(
        "host-memory-too-small",
        f"the largest record needs {update_bytes(record):,} bytes of host memory while it is "
        f"updated, and the store may use {host.budget_bytes:,} bytes",
        notes=(f"the record {record.name!r} cannot be split further",),
        help="raise streaming.host_memory (in Python StreamOptions(host_memory_bytes=...)), or "
        "choose an optimizer that keeps less state",
    )


def _on_disk(
    sizes: Mapping[tuple[str, Part], int],
    layouts: Mapping[str, RecordLayout],
    host: HostBudget,
    *,
    speculates: bool,
) -> StorePlacement:
    largest = max(map(update_bytes, layouts.values()))
    free = host.budget_bytes - largest
    ring_bytes = min(largest + free // 2, 3 * largest)
    free = host.budget_bytes - ring_bytes
    tiers = dict.fromkeys(sizes, Tier.DISK)
    parts = [Part.WEIGHTS, Part.GRADIENTS]
    if host.tier is StoreTier.AUTO:
        parts.insert(1 if speculates else 2, Part.STATES)
    kept = 0
    names = list(layouts)
    middle_first = sorted(range(len(names)), key=lambda index: -min(index, len(names) - 1 - index))
    for part in parts:
        for record in (names[index] for index in middle_first):
            num_bytes = sizes.get((record, part), 0)
            if num_bytes and num_bytes <= free:
                tiers[record, part] = Tier.DRAM
                free -= num_bytes
                kept += num_bytes
    return StorePlacement(tiers, ring_bytes, kept)


def _too_large(total: int, host: HostBudget) -> OpenwaferError:
    return error(
        "store-too-large",
        f"weights, optimizer state and gradients need {total:,} bytes, "
        f"and the store may use {host.budget_bytes:,} bytes of host memory",
        help="set streaming.store to disk (in Python StreamOptions(tier=StoreTier.DISK)) and give "
        "a folder on a disk with room",
    )
