"""Updates of records: made at once, or once the step that their gradients are of is complete."""

from collections.abc import Callable, Collection, Mapping

import torch

from openwafer.diagnostics import error
from openwafer.training.store.layout import KEPT_PARTS, Part
from openwafer.training.store.parameter_store import Loan
from openwafer.training.stream.device.recorder import Recorder
from openwafer.training.stream.link.updates import StepRules, Updater


class PendingUpdates:
    """Knows which gradients the store keeps, and whether they are to be applied.

    Args:
        updater: applies the update rules.
        recorder: receives the spans of updates.
        on_update: called when a record has been updated.
    """

    def __init__(
        self, updater: Updater, recorder: Recorder, on_update: Callable[[str], None]
    ) -> None:
        self._on_update = on_update
        self._updater = updater
        self._recorder = recorder
        # Parameters that have a gradient in the store, by record, and how to apply them; None until
        # the step that made them is complete.
        self._names: dict[str, list[str]] = {}
        self._step: StepRules | None = None

    @property
    def has_gradients(self) -> bool:
        """Whether gradients wait for their step to be completed."""
        return bool(self._names) and self._step is None

    @property
    def records(self) -> tuple[str, ...]:
        """Records of which gradients are kept."""
        return tuple(self._names)

    def is_due(self, record: str) -> bool:
        """Whether a record is to be updated before its next use."""
        return self._step is not None and record in self._names

    def names(self, record: str) -> list[str]:
        """Parameters of a record whose gradients are kept; who keeps another one appends it."""
        return self._names.setdefault(record, [])

    def has_any(self, record: str) -> bool:
        """Whether a gradient of the record is kept."""
        return bool(self._names.get(record))

    def gradients(self, record: str, loan: Loan) -> dict[str, torch.Tensor]:
        """The kept gradients of a lent record, by parameter name, as they lie in the store."""
        names = self._names.get(record, ())
        return {name: loan.tensor(name, Part.GRADIENTS) for name in names}

    def complete_step(self, coefficient: float) -> None:
        """The gradients kept are those of a whole step: they are due, multiplied by that."""
        if self._step is not None:
            raise error(
                "step-without-gradients",
                "a step was completed before the updates of the one before were applied",
                help="call backward between two optimizer steps",
            )
        self._step = self._updater.this_step(coefficient)

    @property
    def kept_names(self) -> set[str]:
        """Parameters whose gradients wait for their step to be completed."""
        held = self._names.values() if self._step is None else ()
        return {name for names in held for name in names}

    def keeps(self, record: str, name: str) -> bool:
        """Whether the gradient of a parameter waits for its step to be completed."""
        return self._step is None and name in self._names.get(record, ())

    def discard(self, names: Collection[str] | None = None) -> None:
        """Forget the gradients kept since the last step, of all parameters or of some."""
        if self._step is None:
            gone = self.kept_names if names is None else names
            kept = {
                record: [name for name in held if name not in gone]
                for record, held in self._names.items()
            }
            self._names = {record: held for record, held in kept.items() if held}

    @property
    def changed_parts(self) -> Collection[Part]:
        """What updates write to."""
        writing = map(self._updater.writes_gradients, self._updater.optimizers)
        return tuple(Part) if any(writing) else KEPT_PARTS

    def apply_due(self, record: str, loan: Loan) -> None:
        """Update a record that is due; the loan has all its parts."""
        assert self._step is not None
        gradients = self.gradients(record, loan)
        del self._names[record]
        self._apply(record, loan, gradients, self._step)
        if not self._names:
            self._step = None

    def apply_now(
        self,
        record: str,
        loan: Loan,
        gradients: Mapping[str, torch.Tensor],
        coefficient: float = 1.0,
    ) -> None:
        """Update a record from gradients in host memory, by the rules of this moment."""
        self._apply(record, loan, gradients, self._updater.this_step(coefficient))

    def _apply(
        self, record: str, loan: Loan, gradients: Mapping[str, torch.Tensor], step: StepRules
    ) -> None:
        with self._recorder.host("update", record, 0), torch.no_grad():
            self._updater.apply(loan, gradients, step)
        self._on_update(record)
