"""An owner of records does what rank 0 asks: it lends and takes them, and makes their updates.

Rank 0 knows which gradients there are and decides what becomes of a step. The bytes of a record are
with its owner, and so are its updates. What rank 0 asks comes while the owner listens; see
:class:`~openwafer.training.systems.control.Control`.

Between two steps rank 0 so reaches the records of all ranks: it fills stores, evaluates, and writes
checkpoints. One record passes at a time, and the next may be on its way, so no host holds a second
whole model.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from openwafer.training.collectives.group import FIRST_RANK, Group, Pending, wait_for
from openwafer.training.step import kept_norms
from openwafer.training.store.layout import Part, RecordLayout, flat
from openwafer.training.store.record_access import LentParts, Records
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.execute.pass_watch import Graph
from openwafer.training.stream.link.updates import StepRules, UpdateCounts
from openwafer.training.stream.stages.stage_execution import StageExecution
from openwafer.training.systems.control import Control

TAG: Final = 0
"""Of the bytes of records."""


@dataclass(frozen=True)
class LendParts:
    """The owner sends parts of a record."""

    record: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class TakeParts:
    """The owner takes parts of a record."""

    record: str
    parts: tuple[Part, ...]


class Owner:
    """See the module.

    Args:
        execution: over the records of this rank.
        group: as records pass.
        commit: begins to commit the store as it is, after so many steps.
    """

    def __init__(
        self,
        execution: StreamedExecution | StageExecution,
        group: Group,
        commit: Callable[[int], None] = lambda steps_done: None,
    ) -> None:
        self._execution = execution
        self._group = group
        self._commit = commit
        self._steps_done = 0
        self._waits_for_hooks = False
        execution.on_updates_applied = self._updates_applied

    def answer(self, asked: object) -> object:
        """Do what rank 0 asks, which is a call of a method of an owner, or parts of a record.

        Returns:
            What it is told; ``None`` where that is nothing.

        Raises:
            OpenwaferError: ``rank-lost``, or as the store does.
        """
        execution = self._execution
        with execution.device.host_section():
            match asked:
                case LendParts(record, parts):
                    execution.flush()
                    with execution.lent(record, *parts) as loan:
                        pass_parts(loan, self._group, asked)
                case TakeParts():
                    execution.settle()
                    serve(execution.store, self._group, asked)
                case _:
                    assert callable(asked)
                    return asked(self)
        return None

    def flush(self) -> None:
        """Bring the store up to date with every update."""
        self._execution.flush()

    def apply(
        self, rules: StepRules | None, steps_done: int = 0, *, is_hooked: bool = False
    ) -> None:
        """Apply the gradients that are kept, which are those of a whole step.

        Args:
            rules: what they are applied by; ``None`` discards them.
            steps_done: training steps behind this one, where steps are committed.
            is_hooked: whether rank 0 calls somebody behind the updates, before that.
        """
        self._steps_done = steps_done
        if rules is None:
            self._execution.discard_gradients()
            self._commit(steps_done)
            return
        self._waits_for_hooks = is_hooked
        self._execution.complete_by(rules)
        if is_hooked:
            self._execution.flush()

    def _updates_applied(self) -> None:
        if not self._waits_for_hooks:
            self._commit(self._steps_done)

    def commit(self, steps_done: int) -> None:
        """Commit a step, which rank 0 has changed behind its updates."""
        self._waits_for_hooks = False
        self._commit(steps_done)

    def told_counts(self) -> UpdateCounts:
        """:attr:`counts` with every update."""
        self._execution.flush()
        return self.counts

    @property
    def counts(self) -> UpdateCounts:
        """Of the parameters of this rank's records."""
        names = {
            place.spec.name
            for layout in self._execution.store.layouts.values()
            for place in layout.parts[Part.WEIGHTS]
        }
        return self._execution.updater.counts.only(names)

    def close(self) -> None:
        """Give the model its own forwards back, end threads and close the store."""
        self._execution.close()
        self._execution.store.close()


class LoopOwner(Owner):
    """An owner in a loop of the user's own, whose lines reach arrays and gradients one by one.

    Args:
        execution, group: see :class:`Owner`.
    """

    def __init__(self, execution: StreamedExecution, group: Group) -> None:
        super().__init__(execution, group)
        self._link, self._watch = execution.link, execution.executor.watch

    def lend(self, record: str, part: Part, name: str) -> None:
        """Send an array of a record."""
        self._execution.flush()
        with self._link.lent(record, part) as loan:
            array = flat(loan.tensor(name, part))
            self._group.send(array, FIRST_RANK, TAG, called(record, part, name)).wait()

    def take(self, record: str, part: Part, name: str, values: torch.Tensor) -> None:
        """Give an array of a record other values, of its shape, strides and dtype."""
        if part is Part.GRADIENTS:
            self._execution.flush()
        else:
            self._execution.settle()
        with self._link.lent(record, part, changes=True) as loan, torch.no_grad():
            loan.tensor(name, part).copy_(values)

    def move_graphs(self) -> Sequence[Graph]:
        """Move graphs of earlier forwards to host memory, and say what they still hold."""
        return self._watch.move_graphs()

    def count(self, num_updates: Mapping[str, int]) -> None:
        """Note that parameters have other states, with so many updates."""
        self._execution.updater.counts.num_updates.update(num_updates)

    @property
    def kept(self) -> Mapping[str, Sequence[str]]:
        """By record, the parameters whose gradients are kept here, and wait for their step."""
        return self._link.kept.waiting

    def keep(self, record: str, names: Sequence[str]) -> None:
        """Let gradients count whose bytes are in the store, new ones or applied before."""
        self._link.kept.add(record, names)

    def discard(self, names: Collection[str]) -> None:
        """Let gradients of the step under way count no more."""
        self._link.kept.discard(names)

    def norms(
        self,
        factors: Mapping[str, Mapping[str, float]],
        norm_type: float,
        dtype: torch.dtype | None,
    ) -> dict[str, torch.Tensor]:
        """Norms of gradients.

        Args:
            factors: by record and name, what a gradient is multiplied by first.
            norm_type, dtype: of the norm.
        """
        norms: dict[str, torch.Tensor] = {}
        for record, held in factors.items():
            with self._link.lent(record, Part.GRADIENTS) as loan:
                norms |= kept_norms(loan, held, norm_type, dtype)
        return norms


def called(record: str, part: Part, name: str) -> str:
    """An array of a record, in errors."""
    return f"{name!r} among the {part} of {record!r}"


def serve(store: Records, group: Group, asked: LendParts | TakeParts) -> None:
    """Lend or take parts of a record in any store, between two steps.

    Raises:
        OpenwaferError: ``rank-lost``, or as the store does.
    """
    is_taken = isinstance(asked, TakeParts)
    fresh = asked.parts if is_taken else ()
    with store.lent(asked.record, asked.parts, read_only=not is_taken, fresh=fresh) as loan:
        pass_parts(loan, group, asked)


def pass_parts(loan: LentParts, group: Group, asked: LendParts | TakeParts) -> None:
    """Send parts of a record that are lent to rank 0, or take them from it.

    Raises:
        OpenwaferError: ``rank-lost``.
    """
    pass_on = group.receive if isinstance(asked, TakeParts) else group.send
    wait_for(
        [
            pass_on(loan.part_bytes_view(part), FIRST_RANK, TAG, f"the {part} of {asked.record!r}")
            for part in asked.parts
        ]
    )


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

    def ask(self, rank: int, what: object) -> None:
        """Have an owner do something.

        Raises:
            OpenwaferError: ``rank-lost``.
        """
        self.ask_later(rank, what)
        self.control.deliver(rank)

    def ask_later(self, rank: int, what: object) -> None:
        """Have an owner do something before it is told what all do next."""
        self.check(rank)
        self.control.ask(what, rank)

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
