"""Records on their way from the system that leads to those that keep them, as a run begins."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch

from openwafer.training.collectives.group import Group
from openwafer.training.store import ParameterStore, Part, RecordLayout, Tier, read_checkpoint
from openwafer.training.store.checkpoint import fill_from
from openwafer.training.store.layout import KEPT_PARTS
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.records import write_weights
from openwafer.training.stream.stages.stage_plan import StagePlan

Fill = Callable[[ParameterStore], None]


def memory_store(layouts: Mapping[str, RecordLayout]) -> ParameterStore:
    """A store in memory alone."""
    placement = {(name, part): Tier.DRAM for name in layouts for part in Part}
    return ParameterStore.create(layouts.values(), placement, folder=None, ring_bytes=0)


def initial(weights: Mapping[str, torch.Tensor], updater: Updater) -> Fill:
    """Fills a store with weights and the states that a run begins with."""

    def fill(store: ParameterStore) -> None:
        write_weights(store, weights)
        updater.initialise(store)

    return fill


def saved(checkpoint: Path) -> Fill:
    """Fills a store from a checkpoint, which may hold more."""
    head = read_checkpoint(checkpoint)
    return lambda store: fill_from(head, store)


def deal_out(stages: StagePlan, fill: Fill, group: Group) -> ParameterStore:
    """Bring every record to the system that has it; returns the store of the first.

    Other replicas get their weights from the first. One record of others is in memory at a time.
    """
    own = memory_store(stages.layouts_of(group.rank))
    fill(own)
    for owner, layouts in enumerate(stages.layouts):
        if owner == group.rank:
            continue
        for name, layout in layouts.items():
            with memory_store({name: layout}) as passing:
                fill(passing)
                _send(passing, name, layout.kept_parts, owner, group)
    return own


def take_dealt(stages: StagePlan, leader: int, group: Group) -> ParameterStore:
    """The store of a stage that does not lead, as :func:`deal_out` fills it."""
    own = memory_store(stages.layouts_of(group.rank))
    if stages.replica_of(group.rank) > 0:
        return own
    for name, layout in own.layouts.items():
        _receive(own, name, layout.kept_parts, leader, group)
    return own


def _send(
    store: ParameterStore, record: str, parts: Collection[Part], to: int, group: Group
) -> None:
    with store.lent(record, parts, read_only=True) as loan:
        for part in KEPT_PARTS:
            if part in parts and store.layouts[record].part_bytes(part):
                group.send(loan.part_bytes_view(part), to, 0, _named(record, part)).wait()


def _receive(
    store: ParameterStore, record: str, parts: Collection[Part], source: int, group: Group
) -> None:
    with store.lent(record, parts, fresh=parts) as loan:
        for part in KEPT_PARTS:
            if part in parts and store.layouts[record].part_bytes(part):
                group.receive(loan.part_bytes_view(part), source, 0, _named(record, part)).wait()


def _named(record: str, part: Part) -> str:
    return f"the {part} of {record!r}"
