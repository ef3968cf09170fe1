"""Decides which parts of which records live in DRAM and which on disk."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from openwafer.diagnostics import error
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.parameter_store import Tier


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
        OpenwaferError: the records fit neither the host memory nor, for want of a folder, a disk.
    """
    sizes = {
        (record, part): layout.part_bytes(part)
        for record, layout in layouts.items()
        for part in Part
        if layout.part_bytes(part)
    }
    total = sum(sizes.values())
    fits = total <= host.budget_bytes
    if host.tier is StoreTier.DRAM or (host.tier is StoreTier.AUTO and fits):
        if not fits:
            raise _too_large(total, host)
        return StorePlacement(dict.fromkeys(sizes, Tier.DRAM), 0, total)
    if not host.has_folder:
        raise _too_large(total, host)
    return _on_disk(sizes, layouts, host, speculates=speculates)


def _on_disk(
    sizes: Mapping[tuple[str, Part], int],
    layouts: Mapping[str, RecordLayout],
    host: HostBudget,
    *,
    speculates: bool,
) -> StorePlacement:
    largest = max(sum(sizes.get((record, part), 0) for part in Part) for record in layouts)
    free = host.budget_bytes - largest
    if free < 0:
        raise error(
            "host-memory-too-small",
            f"the largest record needs {largest:,} bytes of host memory while it is updated, "
            f"and the store may use {host.budget_bytes:,} bytes",
            help="raise the host memory, or split the layer with a layer pattern",
        )
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


def _too_large(total: int, host: HostBudget) -> Exception:
    return error(
        "store-too-large",
        f"weights, optimizer state and gradients need {total:,} bytes, "
        f"and the store may use {host.budget_bytes:,} bytes of host memory",
        help="set streaming.store to disk (in Python StreamOptions(tier=StoreTier.DISK)) and give "
        "a folder on a disk with room",
    )
