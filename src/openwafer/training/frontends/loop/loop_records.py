"""The records of a loop, in one store or in those of several systems, as its lines reach them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager

import torch

from openwafer.training.frontends.loop.other_shares import OtherShares
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.record_access import Arrays
from openwafer.training.stream.execute.execution import StreamedExecution


class LoopRecords:
    """See the module.

    Args:
        execution: over the store of this system.
        others: the records that are not there; ``None`` where all are.

    Attributes:
        layouts: of all records by name.
    """

    def __init__(self, execution: StreamedExecution, others: OtherShares | None) -> None:
        self.layouts: Mapping[str, RecordLayout] = execution.records.layouts
        self._execution = execution
        self._link = execution.link
        self._others = others
        self._record_of = execution.executor.split.record_of

    @property
    def are_elsewhere(self) -> bool:
        """Whether other systems have some of them."""
        return self._others is not None

    def _elsewhere(self, record: str) -> OtherShares | None:
        """The records of others, if that one is among them."""
        return None if self._others is None or record not in self._others else self._others

    # Values.

    def lent(
        self, record: str, parts: Collection[Part], *, read_only: bool = False
    ) -> AbstractContextManager[Arrays]:
        """Context in which parts of a record can be read, between two steps.

        Args:
            record: its name.
            parts: that are looked at.
            read_only: whether what is looked at stays as it is.
        """
        elsewhere = self._elsewhere(record)
        if elsewhere is None:
            return self._execution.store.lent(record, parts, read_only=read_only)
        return elsewhere.lent(record, changes=not read_only)

    def lent_in_pass(
        self, record: str, part: Part, *, changes: bool = False
    ) -> AbstractContextManager[Arrays]:
        """The same of one part, also while a pass is open; see :meth:`StoreLink.lent`."""
        elsewhere = self._elsewhere(record)
        if elsewhere is None:
            return self._link.lent(record, part, changes=changes)
        return elsewhere.lent(record, changes=changes)

    # Steps.

    def flush(self) -> None:
        """Bring all stores up to date with every step completed."""
        self._execution.flush()
        if self._others is not None:
            self._others.flush()

    def settle(self) -> None:
        """The same between two steps, with nothing lent to the device."""
        self._execution.settle()
        self.flush()

    def complete_step(self, coefficient: float) -> None:
        """The gradients that are kept are those of a whole step: multiply them and apply them."""
        if self._others is None:
            self._execution.complete_step(coefficient)
            return
        updater = self._execution.updater
        rules = updater.this_step(coefficient)
        for name in filter(updater.trains, self._others.complete_step(rules)):
            updater.count(name, rules.steps_before)
        self._execution.complete_by(rules)

    def note_counts(self, names: Iterable[str]) -> None:
        """The counts of updates of these parameters are others than the owners know."""
        if self._others is not None:
            counts = self._execution.updater.counts
            self._others.count({name: counts.updates_of(name) for name in names})

    # Gradients.

    @property
    def kept(self) -> set[str]:
        """Parameters whose gradients wait for their step to be completed."""
        own = self._link.kept.names
        return own if self._others is None else own | self._others.kept.names

    def is_kept(self, name: str) -> bool:
        """Whether the gradient of a parameter waits for its step to be completed."""
        record = self._record_of[name]
        elsewhere = self._elsewhere(record)
        if elsewhere is None:
            return self._link.kept.is_waiting(record, name)
        return elsewhere.kept.has(record, name)

    def keep(self, names: Iterable[str]) -> None:
        """Gradients in the store that were applied wait for a step again."""
        for name in names:
            record = self._record_of[name]
            elsewhere = self._elsewhere(record)
            if elsewhere is None:
                self._link.kept.add(record, name)
            else:
                elsewhere.keep(record, name)

    def discard(self, names: Collection[str]) -> None:
        """Forget gradients that wait for their step."""
        self._link.kept.discard(names)
        if self._others is not None:
            self._others.discard(names)

    def write_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """Keep a gradient in the place of the one that is kept, if one is; no update is due."""
        record = self._record_of[name]
        elsewhere = self._elsewhere(record)
        if elsewhere is None:
            self._link.keep_gradient(record, name, gradient)
        else:
            elsewhere.write_gradient(record, name, gradient)

    def ask_norms(
        self, factors: Mapping[str, float], norm_type: float
    ) -> Callable[[], dict[str, torch.Tensor]]:
        """Begin to take the norms of gradients that others keep; returns what waits for them.

        Args:
            factors: by name, what a gradient is multiplied by first.
            norm_type: of the norm.
        """
        if self._others is None:
            return dict
        found = {name: factor for name, factor in factors.items() if not self.is_here(name)}
        return self._others.ask_norms(found, norm_type, self._execution.updater.norm_dtype)

    def is_here(self, name: str) -> bool:
        """Whether the record of a parameter is in the store of this system."""
        return self._elsewhere(self._record_of[name]) is None
