"""The records of other systems of a loop, as rank 0 reaches them.

What is asked of their owners is told in :mod:`openwafer.training.frontends.loop.owned_share`.
"""

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch

from openwafer.diagnostics import error
from openwafer.training.collectives.group import Group
from openwafer.training.frontends.loop.owned_share import (
    CompleteStep,
    CountUpdates,
    DiscardGradients,
    Flush,
    KeepGradients,
    LendArray,
    TakeArray,
    TellNorms,
)
from openwafer.training.store.layout import Part, RecordLayout, flat
from openwafer.training.stream.link.updates import StepRules, Updater
from openwafer.training.stream.replicas.kept_sums import KeptElsewhere
from openwafer.training.stream.replicas.run_store import TAG
from openwafer.training.systems.control import Control


def require_sendable(updater: Updater) -> None:
    """See that the rules of a step can go to the systems that update by them.

    Raises:
        OpenwaferError: ``optimizer-unsendable``.
    """
    try:
        pickle.dumps(updater.this_step())
    except (pickle.PicklingError, AttributeError, TypeError) as cause:
        kinds = ", ".join(type(one).__name__ for one in updater.optimizers)
        raise error(
            "optimizer-unsendable",
            f"systems that own records update them by the {kinds} of rank 0, which cannot be sent: "
            f"{cause}",
            help="set store_systems to first",
        ) from cause


class OtherShares:
    """See the module.

    Args:
        layouts: of all records.
        owners: the ranks that have those of others, by record.
        group: as records pass.
        control: what asks the others.
        check: raises where a rank could not answer.

    Attributes:
        kept: the gradients that they keep.
    """

    def __init__(
        self,
        layouts: Mapping[str, RecordLayout],
        owners: Mapping[str, int],
        group: Group,
        control: Control,
        check: Callable[[int], None],
    ) -> None:
        self.kept = KeptElsewhere()
        self._layouts = layouts
        self._owners = owners
        self._ranks = sorted(set(owners.values()))
        self._group = group
        self._control = control
        self._check = check
        self._record_of = {
            place.spec.name: record
            for record in owners
            for place in layouts[record].parts[Part.WEIGHTS]
        }
        # Whether the last step may be still to be applied.
        self._owes_updates = False

    def __contains__(self, record: object) -> bool:
        return record in self._owners

    # Gradients.

    def note_kept(self, told: Mapping[int, object]) -> None:
        """A backward is over, and each rank has told what it keeps."""
        self.kept.clear()
        for places in told.values():
            assert isinstance(places, tuple)
            for record, name in places:
                self.kept.add(record, name)

    def keep(self, record: str, name: str) -> None:
        """The bytes of a gradient that its owner has count; see :class:`KeepGradients`."""
        if not self.kept.has(record, name):
            self.kept.add(record, name)
            self._ask(self._owners[record], KeepGradients(record, (name,)))

    def discard(self, names: Iterable[str]) -> None:
        """Gradients of the step under way count no more."""
        for rank, gone in self._by_owner(self.kept.names & set(names)).items():
            for name in gone:
                self.kept.discard(self._record_of[name], name)
            self._ask(rank, DiscardGradients(tuple(gone)))

    def _by_owner(self, names: Iterable[str]) -> dict[int, list[str]]:
        found = defaultdict(list)
        for name in names:
            found[self._owners[self._record_of[name]]].append(name)
        return found

    def ask_norms(
        self, factors: Mapping[str, float], norm_type: float, dtype: torch.dtype | None
    ) -> Callable[[], dict[str, torch.Tensor]]:
        """Begin to take norms of gradients; returns what waits for them.

        Args:
            factors: by name, what a gradient is multiplied by first.
            norm_type, dtype: of the norm.
        """
        by_owner = self._by_owner(factors)
        for rank, names in by_owner.items():
            by_record: dict[str, dict[str, float]] = defaultdict(dict)
            for name in names:
                by_record[self._record_of[name]][name] = factors[name]
            self._ask(rank, TellNorms(by_record, norm_type, dtype))
            self._control.deliver(rank)
        return partial(self._norms, tuple(by_owner))

    def _norms(self, ranks: Iterable[int]) -> dict[str, torch.Tensor]:
        return {
            name: norm for rank in ranks for name, norm in self._control.answer_of(rank).items()
        }

    # Steps.

    def complete_step(self, rules: StepRules) -> set[str]:
        """Gradients that are kept are those of a whole step; returns those that are applied."""
        for rank in self._ranks:
            self._ask(rank, CompleteStep(rules))
        applied = self.kept.names
        self._owes_updates = bool(applied)
        self.kept.clear()
        return applied

    def flush(self) -> None:
        """Let all updates be made before anything else is asked."""
        if self._owes_updates:
            for rank in self._ranks:
                self._ask(rank, Flush())
            self._owes_updates = False

    def count(self, num_updates: Mapping[str, int]) -> None:
        """Parameters have had so many updates."""
        for rank, names in self._by_owner(filter(self._record_of.get, num_updates)).items():
            self._ask(rank, CountUpdates({name: num_updates[name] for name in names}))

    # Values.

    @contextmanager
    def lent(self, record: str, *, changes: bool) -> Iterator["Arrays"]:
        """Context in which arrays of a record are here that are looked up.

        Args:
            changes: whether they go back at its end.
        """
        arrays = Arrays(partial(self._read, record))
        yield arrays
        if changes:
            for (name, part), array in arrays.found.items():
                self._write(TakeArray(record, part, name, array))

    def write_gradient(self, record: str, name: str, gradient: torch.Tensor) -> None:
        """Keep a gradient in the place of the one that is kept, if one is; no update is due."""
        array = self._layouts[record].place(name, Part.GRADIENTS).spec.empty()
        self._write(TakeArray(record, Part.GRADIENTS, name, array.copy_(gradient)))
        self.keep(record, name)

    def _write(self, asked: TakeArray) -> None:
        # No more than one waits to leave: a loop may write the whole model.
        for rank in self._ranks:
            if any(isinstance(one, TakeArray) for one in self._control.asked(rank)):
                self._control.deliver(rank)
        self._ask(self._owners[asked.record], asked)

    def _read(self, record: str, name: str, part: Part) -> torch.Tensor:
        array = self._layouts[record].place(name, part).spec.empty()
        asked, owner = LendArray(record, part, name), self._owners[record]
        self._ask(owner, asked)
        self._control.deliver(owner)
        self._group.receive(flat(array), owner, TAG, str(asked)).wait()
        return array

    def _ask(self, rank: int, asked: object) -> None:
        self._check(rank)
        self._control.ask(asked, rank)


class Arrays:
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
            self.found[key] = self._read(*key)
        return self.found[key]
