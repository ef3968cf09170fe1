"""The records that a system of a loop owns which does not lead, and what rank 0 asks of it.

Rank 0 knows which gradients there are and when a step is taken, as if it had all records. Their
bytes are here, and so are the updates. What rank 0 asks comes while this system waits for what all
systems do next; see :class:`~openwafer.training.systems.control.Control`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from openwafer.training.collectives.group import FIRST_RANK, Group
from openwafer.training.store.layout import Part, flat
from openwafer.training.store.update_rules import tensor_norms
from openwafer.training.stream.execute.execution import StreamedExecution
from openwafer.training.stream.link.updates import StepRules
from openwafer.training.stream.replicas.run_store import (
    TAG,
    LendParts,
    TakeParts,
    pass_parts,
    serve,
)


@dataclass(frozen=True)
class LendArray:
    """Rank 0 asks for an array of a record."""

    record: str
    part: Part
    name: str

    def __str__(self) -> str:
        return f"{self.name!r} among the {self.part} of {self.record!r}"


@dataclass(frozen=True)
class TakeArray:
    """Rank 0 gives an array of a record other values.

    Attributes:
        record, part, name: which array.
        values: of its shape, strides and dtype.
    """

    record: str
    part: Part
    name: str
    values: torch.Tensor


@dataclass(frozen=True)
class KeepGradients:
    """Gradients of a record count whose bytes are in the store, new ones or applied before."""

    record: str
    names: Sequence[str]


@dataclass(frozen=True)
class DiscardGradients:
    """Gradients of the step under way count no more."""

    names: Collection[str]


@dataclass(frozen=True)
class CompleteStep:
    """The gradients that are kept are those of a whole step.

    Attributes:
        rules: what they are applied by.
    """

    rules: StepRules


@dataclass(frozen=True)
class Flush:
    """All updates are to be in the store."""


@dataclass(frozen=True)
class CountUpdates:
    """Parameters have other states.

    Attributes:
        num_updates: those that they have had, by name.
    """

    num_updates: Mapping[str, int]


@dataclass(frozen=True)
class TellNorms:
    """Rank 0 wants norms of gradients.

    Attributes:
        factors: by record and name, what a gradient is multiplied by first.
        norm_type, dtype: of the norm.
    """

    factors: Mapping[str, Mapping[str, float]]
    norm_type: float
    dtype: torch.dtype | None


class OwnedShare:
    """See the module.

    Args:
        execution: over the records of this system.
        group: as its records pass.
    """

    def __init__(self, execution: StreamedExecution, group: Group) -> None:
        self._execution = execution
        self._group = group

    @property
    def kept(self) -> tuple[tuple[str, str], ...]:
        """Record and name of the gradients that are kept here, which wait for their step."""
        kept = self._execution.link.kept
        places = (
            (record, place.spec.name)
            for record, layout in self._execution.store.layouts.items()
            for place in layout.parts[Part.GRADIENTS]
        )
        return tuple(one for one in places if kept.is_waiting(*one))

    def answer(self, asked: object) -> object:
        """Do what rank 0 asks; returns what it is told, ``None`` where that is nothing.

        Raises:
            OpenwaferError: ``rank-lost``, or as the store does.
        """
        with self._execution.device.host_section():
            match asked:
                case LendParts() | TakeParts():
                    self._pass_parts(asked)
                case LendArray():
                    self._lend(asked)
                case TakeArray():
                    self._take(asked)
                case TellNorms():
                    return self._norms(asked)
                case _:
                    self._note(asked)
        return None

    def _note(self, asked: object) -> None:
        execution, kept = self._execution, self._execution.link.kept
        match asked:
            case KeepGradients(record, names):
                for name in names:
                    kept.add(record, name)
            case DiscardGradients(names):
                kept.discard(names)
            case CompleteStep(rules):
                execution.complete_by(rules)
            case Flush():
                execution.flush()
            case CountUpdates(num_updates):
                execution.updater.counts.num_updates.update(num_updates)
            case _:
                raise AssertionError(asked)

    def _pass_parts(self, asked: LendParts | TakeParts) -> None:
        if isinstance(asked, TakeParts):
            self._execution.settle()
            serve(self._execution.store, self._group, asked, FIRST_RANK)
            return
        self._execution.flush()
        with self._execution.link.lent(asked.record, *asked.parts) as loan:
            pass_parts(loan, self._group, asked, FIRST_RANK)

    def _lend(self, asked: LendArray) -> None:
        self._execution.flush()
        with self._execution.link.lent(asked.record, asked.part) as loan:
            array = flat(loan.tensor(asked.name, asked.part))
            self._group.send(array, FIRST_RANK, TAG, str(asked)).wait()

    def _take(self, asked: TakeArray) -> None:
        if asked.part is Part.GRADIENTS:
            self._execution.flush()
        else:
            self._execution.settle()
        lent = self._execution.link.lent(asked.record, asked.part, changes=True)
        with lent as loan, torch.no_grad():
            loan.tensor(asked.name, asked.part).copy_(asked.values)

    def _norms(self, asked: TellNorms) -> dict[str, torch.Tensor]:
        norms = {}
        for record, factors in asked.factors.items():
            with self._execution.link.lent(record, Part.GRADIENTS) as loan, torch.no_grad():
                for name, factor in factors.items():
                    gradient = loan.tensor(name, Part.GRADIENTS).clone().mul_(factor)
                    (norms[name],) = tensor_norms([gradient], asked.norm_type, dtype=asked.dtype)
        return norms

    def close(self) -> None:
        """End what runs the model, and the store."""
        self._execution.close()
        self._execution.store.close()
