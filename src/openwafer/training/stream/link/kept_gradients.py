"""Which gradients the store keeps, and whether they are due: to be applied before the next use."""

from collections.abc import Collection

import torch

from openwafer.diagnostics import error
from openwafer.training.store.layout import Part
from openwafer.training.store.parameter_store import Loan
from openwafer.training.stream.link.updates import StepRules, Updater


class KeptGradients:
    """Names of the parameters whose gradients are kept, by record; their bytes are the store's.

    They wait for their step to be completed. Then they are due, until :meth:`take_due`.

    Args:
        updater: knows the hyper-parameters of a step.
    """

    def __init__(self, updater: Updater) -> None:
        self._updater = updater
        self._names: dict[str, list[str]] = {}
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

    def has_any(self, record: str) -> bool:
        """Whether a gradient of the record is kept, due or not."""
        return record in self._names

    def add(self, record: str, name: str) -> None:
        """The gradient of a parameter is in the store; one that was applied may be so again."""
        if not self.has(record, name):
            self._names.setdefault(record, []).append(name)

    def discard(self, names: Collection[str] | None = None) -> None:
        """Forget those kept since the last step, of all parameters or of some."""
        if self._step is None:
            gone = self.names if names is None else names
            left = {
                record: [name for name in kept if name not in gone]
                for record, kept in self._names.items()
            }
            self._names = {record: kept for record, kept in left.items() if kept}

    def complete_step(self, coefficient: float = 1.0) -> None:
        """They are those of a whole step: each record is to be updated before its next use.

        Args:
            coefficient: what gradients are multiplied by before they are applied.
        """
        if self._step is not None:
            raise error(
                "step-without-gradients",
                "a step was completed before the updates of the one before were applied",
                help="call backward between two optimizer steps",
            )
        self._step = self._updater.this_step(coefficient)

    @property
    def due_records(self) -> tuple[str, ...]:
        """Records that are to be updated."""
        return tuple(self._names) if self._step is not None else ()

    def is_due(self, record: str) -> bool:
        """Whether a record is to be updated before its next use."""
        return self._step is not None and record in self._names

    def take_due(self, record: str, loan: Loan) -> tuple[dict[str, torch.Tensor], StepRules]:
        """The gradients of a record that is due, as they lie in the store, and how to apply them.

        Args:
            loan: has them. They are kept no more.
        """
        step = self._step
        assert step is not None
        names = self._names.pop(record)
        if not self._names:
            self._step = None
        return {name: loan.tensor(name, Part.GRADIENTS) for name in names}, step
