"""Which gradients the store keeps, and whether they are due: to be applied before the next use."""

from collections.abc import Collection, Iterable

from openwafer.diagnostics import error
from openwafer.training.store.layout import KEPT_PARTS, Part
from openwafer.training.store.parameter_store import Loan
from openwafer.training.stream.link.updates import HostGradients, StepRules, Updater


class KeptGradients:
    """Names of the parameters whose gradients are kept, by record; their bytes are the store's.

    They wait for their step to be completed. Then they are due, until :meth:`take_due`. Those of a
    record that are all zero need no bytes.

    Args:
        updater: knows the hyper-parameters of a step.
    """

    def __init__(self, updater: Updater) -> None:
        self._updater = updater
        self._names: dict[str, list[str]] = {}
        # Records of which all that is kept is zero, and nowhere.
        self._zeros: set[str] = set()
        # How to apply them; None until the step that made them is complete.
        self._step: StepRules | None = None

    @property
    def has_waiting(self) -> bool:
        """Whether gradients wait for their step to be completed."""
        return bool(self._names) and self._step is None

    @property
    def names(self) -> set[str]:
        """Parameters whose gradients wait for their step to be completed."""
        kept = self._names.values() if self._step is None else ()
        return {name for names in kept for name in names}

    def is_waiting(self, record: str, name: str) -> bool:
        """Whether the gradient of a parameter waits for its step to be completed."""
        return self._step is None and self.has(record, name)

    def has(self, record: str, name: str) -> bool:
        """Whether the gradient of a parameter is kept, due or not."""
        return name in self._names.get(record, ())

    def has_bytes(self, record: str) -> bool:
        """Whether the store has bytes of gradients of the record that are kept, due or not."""
        return record in self._names and record not in self._zeros

    def add(self, record: str, name: str) -> None:
        """The gradient of a parameter is in the store; one that was applied may be so again."""
        if not self.has(record, name):
            self._names.setdefault(record, []).append(name)

    def add_zeros(self, record: str, names: Iterable[str]) -> None:
        """The gradients of a record are zero, of which no bytes are kept."""
        assert not self.has_bytes(record)
        self._zeros.add(record)
        for name in names:
            self.add(record, name)

    def take_zeros(self, record: str) -> Collection[str]:
        """The parameters whose zeros are from now on in the store, where the caller puts them."""
        is_zero = record in self._zeros
        self._zeros.discard(record)
        return self._names[record] if is_zero else ()

    def discard(self, names: Collection[str] | None = None) -> None:
        """Forget those kept since the last step, of all parameters or of some."""
        if self._step is None:
            gone = self.names if names is None else names
            left = {
                record: [name for name in kept if name not in gone]
                for record, kept in self._names.items()
            }
            self._names = {record: kept for record, kept in left.items() if kept}
            self._zeros &= self._names.keys()

    def complete_step(self, coefficient: float = 1.0) -> None:
        """They are those of a whole step: each record is to be updated before its next use.

        Args:
            coefficient: what gradients are multiplied by before they are applied.
        """
        self._require_applied()
        self.complete_by(self._updater.this_step(coefficient))

    def complete_by(self, rules: StepRules) -> None:
        """The same, by rules that were read at that step."""
        self._require_applied()
        self._step = rules

    def _require_applied(self) -> None:
        if self._step is not None:
            raise error(
                "step-without-gradients",
                "a step was completed before the updates of the one before were applied",
                help="call backward between two optimizer steps",
            )

    @property
    def due_records(self) -> tuple[str, ...]:
        """Records that are to be updated."""
        return tuple(self._names) if self._step is not None else ()

    def is_due(self, record: str) -> bool:
        """Whether a record is to be updated before its next use."""
        return self._step is not None and record in self._names

    def due_parts(self, record: str) -> Collection[Part]:
        """What the update of a record that is due needs."""
        return KEPT_PARTS if record in self._zeros else tuple(Part)

    def take_due(self, record: str, loan: Loan) -> tuple[HostGradients, StepRules]:
        """The gradients of a record that is due, as they lie in the store, and how to apply them.

        Args:
            loan: of :meth:`due_parts`. The gradients are kept no more.
        """
        step = self._step
        assert step is not None
        names = self._names.pop(record)
        if not self._names:
            self._step = None
        if record in self._zeros:
            self._zeros.remove(record)
            return dict.fromkeys(names), step
        return {name: loan.tensor(name, Part.GRADIENTS) for name in names}, step
