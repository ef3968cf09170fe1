"""Records on their way between the system that leads and those that keep them."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from openwafer.training.collectives.group import Group
from openwafer.training.session.pipelined.messages import Wanted
from openwafer.training.store import Loan, ParameterStore, Part, RecordLayout, Tier, read_checkpoint
from openwafer.training.store.checkpoint import fill_from
from openwafer.training.store.layout import KEPT_PARTS
from openwafer.training.stream.link.updates import Updater
from openwafer.training.stream.records import write_weights
from openwafer.training.stream.stages.stage_plan import StagePlan

Fill = Callable[[ParameterStore], None]
Telling = Callable[[object], AbstractContextManager[None]]
"""Context in which the others do what they are told."""


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
    """Bring every record to the stage that has it; returns the store of the first.

    One record of the others is in memory at a time.
    """
    own = memory_store(stages.layouts[group.rank])
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
    own = memory_store(stages.layouts[group.rank])
    for name, layout in own.layouts.items():
        _receive(own, name, layout.kept_parts, leader, group)
    return own


def show(store: ParameterStore, wanted: Wanted, leader: int, group: Group) -> None:
    """Send the leader what it wants, if it is here."""
    if wanted.record in store.layouts:
        _send(store, wanted.record, wanted.parts, leader, group)


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


class CollectedRecords:
    """The records of all stages, to be read one after the other.

    Args:
        own: the store of the system that leads.
        stages: who has what.
        group: the stages.
        telling: tells the others.

    Attributes:
        layouts: of all records.
    """

    def __init__(
        self, own: ParameterStore, stages: StagePlan, group: Group, telling: Telling
    ) -> None:
        self.layouts = stages.all_layouts
        self._own, self._owners, self._group, self._telling = own, stages.owners, group, telling

    def borrow(
        self,
        record: str,
        parts: Collection[Part],
        *,
        read_only: bool = False,
        fresh: Collection[Part] = (),
    ) -> Loan:
        """See :class:`ParameterStore`; what comes from elsewhere is a copy, to be read only."""
        if record in self._own.layouts:
            return self._own.borrow(record, parts, read_only=read_only, fresh=fresh)
        copied = memory_store({record: self.layouts[record]})
        with self._telling(Wanted(record, tuple(parts))):
            _receive(copied, record, parts, self._owners[record], self._group)
        return copied.borrow(record, parts, read_only=True)

    @contextmanager
    def lent(
        self,
        record: str,
        parts: Collection[Part],
        *,
        read_only: bool = False,
        fresh: Collection[Part] = (),
    ) -> Iterator[Loan]:
        """See :class:`ParameterStore`, and :meth:`borrow`."""
        loan = self.borrow(record, parts, read_only=read_only, fresh=fresh)
        is_own = record in self._own.layouts
        try:
            loan.wait()
            yield loan
        finally:
            loan.release(dirty=parts if is_own and not read_only else ())
