"""The records of a loop, in one store or in those of all ranks, as the lines of rank 0 reach them.

Rank 0 goes on as if it had all records. What it asks of their owners waits until these listen, but
for values and norms, which rank 0 needs at once; see
:class:`~openwafer.training.systems.control.Control`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain

import torch

from openwafer.training.collectives.group import FIRST_RANK
from openwafer.training.store.layout import Part, RecordLayout, flat
from openwafer.training.store.record_access import Arrays
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.link.updates import KeptGradients
from openwafer.training.stream.replicas.loop_link import LoopLink
from openwafer.training.systems.owner import TAG, LoopOwner, Owner, Owners, called


class LoopRecords:
    """See the module.

    Args:
        execution: over the store of rank 0.
        owners: of records; ``None`` where rank 0 has all.

    Attributes:
        layouts: of all records by name.
        record_of: the record of a parameter.
        kept_elsewhere: the gradients that other ranks keep.
    """

    def __init__(self, execution: StreamedExecution, owners: Owners | None) -> None:
        self.layouts: Mapping[str, RecordLayout] = execution.records.layouts
        link = execution.executor.link
        self.kept_elsewhere = link.kept_elsewhere if isinstance(link, LoopLink) else KeptGradients()
        self._execution = execution
        self._link = execution.link
        self._owners = owners
        ranks = {} if owners is None else owners.ranks
        # Of the records that rank 0 has not.
        self._owner_of = {record: rank for record, rank in ranks.items() if rank != FIRST_RANK}
        self._ranks = sorted(set(self._owner_of.values()))
        self.record_of = execution.executor.split.record_of
        # Whether owners may have the last step still to apply.
        self._owe_updates = False

    @property
    def are_elsewhere(self) -> bool:
        """Whether other ranks have some of them."""
        return bool(self._owner_of)

    def is_here(self, name: str) -> bool:
        """Whether the record of a parameter is in the store of rank 0."""
        return self.record_of[name] not in self._owner_of

    def like(self, name: str) -> torch.Tensor:
        """A weight without memory, of a parameter's shape, strides and dtype."""
        return self.layouts[self.record_of[name]].place(name, Part.WEIGHTS).spec.empty("meta")

    # Values.

    def lent(
        self, record: str, parts: Collection[Part], *, read_only: bool = False
    ) -> AbstractContextManager[Arrays]:
        """Context in which parts of a record can be read, in a pass or between two.

        Args:
            record: its name.
            parts: that are looked at.
            read_only: whether what is looked at stays as it is.
        """
        if record in self._owner_of:
            return self._lent_elsewhere(record, read_only=read_only)
        return self._link.lent(record, *parts, changes=not read_only)

    @contextmanager
    def _lent_elsewhere(self, record: str, *, read_only: bool) -> Iterator[Arrays]:
        """Context in which arrays come that are looked up; changed ones go back at its end."""
        arrays = _ComingArrays(partial(self._read, record))
        yield arrays
        if not read_only:
            for (name, part), array in arrays.found.items():
                self._write(record, part, name, array)

    def _read(self, record: str, name: str, part: Part) -> torch.Tensor:
        array = self.layouts[record].place(name, part).spec.empty()
        owner, group = self._owner_of[record], self._reach.control.group
        self._reach.ask(owner, partial(LoopOwner.lend, record=record, part=part, name=name))
        group.receive(flat(array), owner, TAG, called(record, part, name)).wait()
        return array

    def _write(self, record: str, part: Part, name: str, values: torch.Tensor) -> None:
        # No more than one waits to leave: a loop may write the whole model.
        control = self._reach.control
        for rank in self._ranks:
            asked = (one for one in control.asked(rank) if isinstance(one, partial))
            if any(one.func is LoopOwner.take for one in asked):
                control.deliver(rank)
        take = partial(LoopOwner.take, record=record, part=part, name=name, values=values)
        self._reach.ask_later(self._owner_of[record], take)

    @property
    def _reach(self) -> Owners:
        assert self._owners is not None
        return self._owners

    # Steps.

    def flush(self) -> None:
        """Bring all stores up to date with every step completed."""
        self._execution.flush()
        if self._owe_updates:
            for rank in self._ranks:
                self._reach.ask_later(rank, Owner.flush)
            self._owe_updates = False

    def settle(self) -> None:
        """The same between two steps, with nothing lent to the device."""
        self._execution.settle()
        self.flush()

    def complete_step(self, coefficient: float) -> None:
        """The gradients that are kept are those of a whole step: multiply them and apply them."""
        updater = self._execution.updater
        rules = updater.this_step(coefficient)
        for rank in self._ranks:
            self._reach.ask_later(rank, partial(Owner.apply, rules=rules))
        applied = self.kept_elsewhere.names
        self._owe_updates = bool(applied)
        self.kept_elsewhere.discard()
        for name in filter(updater.trains, applied):
            updater.count(name, rules.steps_before)
        self._execution.complete_by(rules)

    def note_counts(self, names: Iterable[str]) -> None:
        """The counts of updates of these parameters are others than the owners know."""
        counts = self._execution.updater.counts
        for rank, held in self._by_owner(names).items():
            num_updates = {name: counts.updates_of(name) for name in held}
            self._reach.ask_later(rank, partial(LoopOwner.count, num_updates=num_updates))

    def _by_owner(self, names: Iterable[str]) -> dict[int, list[str]]:
        """Those of these parameters whose records others have."""
        found = defaultdict(list)
        for name in names:
            if not self.is_here(name):
                found[self._owner_of[self.record_of[name]]].append(name)
        return found

    # Gradients.

    @property
    def kept(self) -> set[str]:
        """Parameters whose gradients wait for their step to be completed."""
        return self._link.kept.names | self.kept_elsewhere.names

    def is_kept(self, name: str) -> bool:
        """Whether the gradient of a parameter waits for its step to be completed."""
        record = self.record_of[name]
        return self._kept_of(record).is_waiting(record, name)

    def _kept_of(self, record: str) -> KeptGradients:
        return self.kept_elsewhere if record in self._owner_of else self._link.kept

    def keep(self, names: Iterable[str]) -> None:
        """Gradients in the store that were applied wait for a step again."""
        for name in names:
            record = self.record_of[name]
            if record in self._owner_of and not self.is_kept(name):
                keep = partial(LoopOwner.keep, record=record, names=(name,))
                self._reach.ask_later(self._owner_of[record], keep)
            self._kept_of(record).add(record, (name,))

    def discard(self, names: Collection[str]) -> None:
        """Forget gradients that wait for their step."""
        for rank, gone in self._by_owner(self.kept_elsewhere.names & set(names)).items():
            self._reach.ask_later(rank, partial(LoopOwner.discard, names=gone))
        self.kept_elsewhere.discard(names)
        self._link.kept.discard(names)

    def note_kept(self, told: Iterable[Mapping[str, Sequence[str]]]) -> None:
        """A backward is over, and each owner has told which gradients it keeps."""
        self.kept_elsewhere.discard()
        for record, names in chain.from_iterable(one.items() for one in told):
            self.kept_elsewhere.add(record, names)

    def write_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """Keep a gradient in the place of the one that is kept, if one is; no update is due."""
        record = self.record_of[name]
        if self.is_here(name):
            self._link.keep_gradient(record, name, gradient)
            return
        array = self.layouts[record].place(name, Part.GRADIENTS).spec.empty()
        self._write(record, Part.GRADIENTS, name, array.copy_(gradient))
        self.keep((name,))

    def ask_norms(
        self, factors: Mapping[str, float], norm_type: float
    ) -> Callable[[], dict[str, torch.Tensor]]:
        """Begin to take the norms of gradients that others keep; returns what waits for them.

        Args:
            factors: by name, what a gradient is multiplied by first.
            norm_type: of the norm.
        """
        asked = self._by_owner(factors)
        for rank, names in asked.items():
            by_record: dict[str, dict[str, float]] = defaultdict(dict)
            for name in names:
                by_record[self.record_of[name]][name] = factors[name]
            dtype = self._execution.updater.norm_dtype
            asking = partial(LoopOwner.norms, factors=by_record, norm_type=norm_type, dtype=dtype)
            self._reach.ask(rank, asking)
        return partial(self._norms, tuple(asked))

    def _norms(self, ranks: Iterable[int]) -> dict[str, torch.Tensor]:
        answers = [self._reach.control.answer_of(rank) for rank in ranks]
        return {name: norm for answer in answers for name, norm in answer.items()}


class _ComingArrays:
    """Arrays of a record that come when they are looked up.

    Args:
        read: brings one.

    Attributes:
        found: those that have come.
    """

    def __init__(self, read: Callable[[str, Part], torch.Tensor]) -> None:
        self._read = read
        self.found: dict[tuple[str, Part], torch.Tensor] = {}

    def tensor(self, array_name: str, part: Part) -> torch.Tensor:
        """The array of that name."""
        key = array_name, part
        if key not in self.found:
            self.found[key] = self._read(array_name, part)
        return self.found[key]
