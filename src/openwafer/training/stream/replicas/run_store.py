"""The store of a run whose records are dealt to its ranks, as the rank that leads has it.

Between two steps the leader reads and writes any record: to fill the stores, to evaluate, to write
a checkpoint. It asks the record's owner, which sends the bytes or takes them. One record passes at
a time, and the next may be on its way, so no host holds a second whole model.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from openwafer.training.collectives.group import Group, Pending
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.record_access import LentParts, Records

TAG: Final = 0


@dataclass(frozen=True)
class LendParts:
    """The leader asks an owner to send parts of a record."""

    owner: int
    record: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class TakeParts:
    """The leader asks an owner to take parts of a record from it."""

    owner: int
    record: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Asking:
    """How the leader reaches the owners of records.

    Attributes:
        group: the ranks; nothing but parts of records passes in it.
        ask: tells all ranks what one of them is to do.
    """

    group: Group
    ask: Callable[[LendParts | TakeParts], None]


class RunStore:
    """See :class:`~openwafer.training.store.record_access.Records`.

    Args:
        own: the leader's records.
        layouts: all records.
        owners: the rank that has a record.
        asking: how owners are reached.
    """

    def __init__(
        self,
        own: Records,
        layouts: Mapping[str, RecordLayout],
        owners: Mapping[str, int],
        asking: Asking,
    ) -> None:
        self._own = own
        self._layouts = layouts
        self._owners = owners
        self._group = asking.group
        self._ask = asking.ask

    @property
    def layouts(self) -> Mapping[str, RecordLayout]:
        """All records by name, in the order of the plan."""
        return self._layouts

    def borrow(
        self,
        record: str,
        parts: Collection[Part],
        *,
        read_only: bool = False,
        fresh: Collection[Part] = (),
    ) -> LentParts:
        """Ask for parts of a record; see :meth:`ParameterStore.borrow`.

        Raises:
            OpenwaferError: ``rank-lost``, or as the leader's own store does.
        """
        if self._owners[record] == self._group.rank:
            return self._own.borrow(record, parts, read_only=read_only, fresh=fresh)
        return _Copy(self, self._layouts[record], tuple(parts), tuple(fresh))

    @contextmanager
    def lent(
        self,
        record: str,
        parts: Collection[Part],
        *,
        read_only: bool = False,
        fresh: Collection[Part] = (),
    ) -> Iterator[LentParts]:
        """See :meth:`ParameterStore.lent`."""
        loan = self.borrow(record, parts, read_only=read_only, fresh=fresh)
        try:
            loan.wait()
            yield loan
        finally:
            loan.release(dirty=() if read_only else parts)

    def read_weights(self, record: str, memory: torch.Tensor) -> Pending:
        """Begin to bring the weights of another rank's record into memory, uint8 [bytes]."""
        return self.ask_for(record, {Part.WEIGHTS: memory})[0]

    def ask_for(self, record: str, memory: Mapping[Part, torch.Tensor]) -> list[Pending]:
        """Begin to bring parts of another rank's record into memory, each uint8 [bytes]."""
        owner = self._owners[record]
        self._ask(LendParts(owner, record, tuple(memory)))
        return [
            self._group.receive(bytes_of, owner, TAG, f"the {part} of {record!r}")
            for part, bytes_of in memory.items()
        ]

    def give(self, record: str, memory: Mapping[Part, torch.Tensor]) -> list[Pending]:
        """Begin to replace parts of another rank's record."""
        owner = self._owners[record]
        self._ask(TakeParts(owner, record, tuple(memory)))
        return [
            self._group.send(bytes_of, owner, TAG, f"the {part} of {record!r}")
            for part, bytes_of in memory.items()
        ]


class _Copy:
    """Parts of another rank's record, in memory of the leader."""

    def __init__(
        self,
        run_store: RunStore,
        layout: RecordLayout,
        parts: tuple[Part, ...],
        fresh: tuple[Part, ...],
    ) -> None:
        self._run_store = run_store
        self._layout = layout
        self._fresh = fresh
        self._memory = {
            part: torch.zeros(layout.part_bytes(part), dtype=torch.uint8) for part in parts
        }
        self._coming = self._passing(run_store.ask_for, set(parts) - set(fresh))

    def _passing(
        self, begin: Callable[[str, Mapping[Part, torch.Tensor]], list[Pending]], parts: set[Part]
    ) -> list[Pending]:
        passing = {part: held for part, held in self._memory.items() if part in parts and len(held)}
        return begin(self._layout.name, passing) if passing else []

    def wait(self) -> None:
        """See :class:`Loan`."""
        for one in self._coming:
            one.wait()
        self._coming = []

    def tensor(self, array_name: str, part: Part) -> torch.Tensor:
        """See :class:`Loan`."""
        return self._layout.place(array_name, part).view_in(self._memory[part])

    def part_bytes_view(self, part: Part) -> torch.Tensor:
        """See :class:`Loan`."""
        return self._memory[part]

    def release(self, *, dirty: Collection[Part] = ()) -> None:
        """See :class:`Loan`. What was changed goes back to its owner."""
        self.wait()
        for one in self._passing(self._run_store.give, {*dirty, *self._fresh}):
            one.wait()
        self._memory = {}


def serve(store: Records, group: Group, asked: LendParts | TakeParts, leader: int) -> None:
    """Do what the leader asks of an owner.

    Raises:
        OpenwaferError: ``rank-lost``, or as the store does.
    """
    is_taken = isinstance(asked, TakeParts)
    fresh = asked.parts if is_taken else ()
    with store.lent(asked.record, asked.parts, read_only=not is_taken, fresh=fresh) as loan:
        pass_parts(loan, group, asked, leader)


def pass_parts(loan: LentParts, group: Group, asked: LendParts | TakeParts, leader: int) -> None:
    """Send parts of a record that are lent to the leader, or take them from it.

    Raises:
        OpenwaferError: ``rank-lost``.
    """
    pass_on = group.receive if isinstance(asked, TakeParts) else group.send
    under_way = [
        pass_on(loan.part_bytes_view(part), leader, TAG, f"the {part} of {asked.record!r}")
        for part in asked.parts
    ]
    for one in under_way:
        one.wait()
