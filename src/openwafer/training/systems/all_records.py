"""The records of all ranks, as rank 0 reaches them: it asks their owners.

Between two steps it so fills stores, evaluates, and writes checkpoints. An owner sends the bytes of
a record or takes them. One record passes at a time, and the next may be on its way, so no host
holds a second whole model.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from openwafer.training.collectives.group import Pending, wait_for
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.record_access import LentParts, Records
from openwafer.training.systems.control import Control
from openwafer.training.systems.owner import TAG, LendParts, TakeParts


@dataclass(frozen=True)
class Owners:
    """The owners of records, as rank 0 asks them.

    Attributes:
        control: asks them.
        ranks: theirs, by record.
        check: raises where a rank could not answer.
    """

    control: Control
    ranks: Mapping[str, int]
    check: Callable[[int], None] = lambda rank: None

    def ask(self, rank: int, what: object, *, waits: bool = False) -> None:
        """Have an owner do something, or put that aside until it is told what all do next.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        self.check(rank)
        self.control.ask(what, rank)
        if not waits:
            self.control.deliver(rank)

    def over(self, own: Records, layouts: Mapping[str, RecordLayout]) -> "AllRecords":
        """All records, of which rank 0 has its own."""
        return AllRecords(own, layouts, self)

    def read_weights(self, record: str, memory: torch.Tensor) -> Pending:
        """Begin to bring the weights of another rank's record into memory, uint8 [bytes]."""
        return self.lend(record, {Part.WEIGHTS: memory})[0]

    def lend(self, record: str, memory: Mapping[Part, torch.Tensor]) -> list[Pending]:
        """Begin to bring parts of another rank's record into memory, each uint8 [bytes]."""
        receive = self.control.group.receive
        return self._pass(LendParts(record, tuple(memory)), memory, receive)

    def take(self, record: str, memory: Mapping[Part, torch.Tensor]) -> list[Pending]:
        """Begin to replace parts of another rank's record."""
        return self._pass(TakeParts(record, tuple(memory)), memory, self.control.group.send)

    def _pass(
        self,
        asked: LendParts | TakeParts,
        memory: Mapping[Part, torch.Tensor],
        begin: Callable[[torch.Tensor, int, int, str], Pending],
    ) -> list[Pending]:
        owner = self.ranks[asked.record]
        self.ask(owner, asked)
        return [
            begin(bytes_of, owner, TAG, f"the {part} of {asked.record!r}")
            for part, bytes_of in memory.items()
        ]


class AllRecords(Records):
    """See :class:`~openwafer.training.store.record_access.Records`.

    Args:
        own: those of rank 0.
        layouts: all records by name, in the order of the plan.
        owners: of records.
    """

    def __init__(self, own: Records, layouts: Mapping[str, RecordLayout], owners: Owners) -> None:
        self._layouts = layouts
        self._own = own
        self._owners = owners

    @property
    def layouts(self) -> Mapping[str, RecordLayout]:
        """See :class:`Records`."""
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
            OpenwaferError: ``rank-lost``, or as the store of rank 0 does.
        """
        if self._owners.ranks[record] == self._owners.control.group.rank:
            return self._own.borrow(record, parts, read_only=read_only, fresh=fresh)
        return _Copy(self._owners, self._layouts[record], tuple(parts), tuple(fresh))


class _Copy:
    """Parts of another rank's record, in memory of rank 0."""

    def __init__(
        self,
        owners: Owners,
        layout: RecordLayout,
        parts: tuple[Part, ...],
        fresh: tuple[Part, ...],
    ) -> None:
        self._owners = owners
        self._layout = layout
        self._fresh = fresh
        self._memory = {
            part: torch.zeros(layout.part_bytes(part), dtype=torch.uint8) for part in parts
        }
        self._coming = self._passing(owners.lend, set(parts) - set(fresh))

    def _passing(
        self, begin: Callable[[str, Mapping[Part, torch.Tensor]], list[Pending]], parts: set[Part]
    ) -> list[Pending]:
        passing = {part: held for part, held in self._memory.items() if part in parts and len(held)}
        return begin(self._layout.name, passing) if passing else []

    def wait(self) -> None:
        """See :class:`Loan`."""
        wait_for(self._coming)

    def tensor(self, array_name: str, part: Part) -> torch.Tensor:
        """See :class:`Loan`."""
        return self._layout.place(array_name, part).view_in(self._memory[part])

    def part_bytes_view(self, part: Part) -> torch.Tensor:
        """See :class:`Loan`."""
        return self._memory[part]

    def release(self, *, dirty: Collection[Part] = ()) -> None:
        """See :class:`Loan`. What was changed goes back to its owner."""
        self.wait()
        wait_for(self._passing(self._owners.take, {*dirty, *self._fresh}))
        self._memory = {}
