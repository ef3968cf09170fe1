"""Applies the rules of an ordinary torch optimizer to the records of a store."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from openwafer.diagnostics import error
from openwafer.training.store.layout import (
    KEPT_PARTS,
    ArraySpec,
    Part,
    RecordLayout,
    laid_out_like,
    slice_of,
    state_name,
    whole_name,
)
from openwafer.training.store.parameter_store import Loan
from openwafer.training.store.record_access import Arrays, Records
from openwafer.training.store.update_rules import ParamUpdate, UpdateRule, update_parameter
from openwafer.training.store.update_rules.rules import Cutting, StateSpec
from openwafer.training.store.update_rules.translation import Translator
from openwafer.training.store.update_rules.update_pass import (
    LOW_BITS,
    TIES_PER_WORD,
    Averaging,
    state_specs,
)
from openwafer.training.stream.device.device import Recorder

HostGradients: TypeAlias = Mapping[str, torch.Tensor | None]
"""Gradients by parameter name, in host memory; ``None`` is zeros that are nowhere."""


@dataclass
class UpdateCounts:
    """What was applied so far; for the run to save and restore.

    Attributes:
        steps_applied: steps whose updates were begun.
        num_updates: updates by parameter.
        num_averaged: moves by parameter of the average of its weights. Where they are fewer than
            the steps applied, the others are still to be made.

    A slice of a parameter has counts of its own while a step is applied slice by slice; what is
    saved has the parameter's.
    """

    steps_applied: int = 0
    num_updates: dict[str, int] = field(default_factory=dict)
    num_averaged: dict[str, int] = field(default_factory=dict)

    def copy(self) -> "UpdateCounts":
        """The counts of this moment."""
        return UpdateCounts(self.steps_applied, dict(self.num_updates), dict(self.num_averaged))

    def of_wholes(self) -> "UpdateCounts":
        """The counts of this moment between two steps, when all slices of a parameter are alike."""
        return UpdateCounts(
            self.steps_applied, _of_wholes(self.num_updates), _of_wholes(self.num_averaged)
        )

    def joined(self, others: Iterable["UpdateCounts"]) -> "UpdateCounts":
        """The counts of this moment between two steps, with those of other ranks' parameters."""
        joined = self.copy()
        for one in others:
            joined.num_updates |= one.num_updates
            joined.num_averaged |= one.num_averaged
        return joined.of_wholes()

    def only(self, names: Collection[str]) -> "UpdateCounts":
        """The counts of some parameters."""
        updates, averaged = (
            {name: count for name, count in counts.items() if name in names}
            for counts in (self.num_updates, self.num_averaged)
        )
        return UpdateCounts(self.steps_applied, updates, averaged)

    def updates_of(self, name: str) -> int:
        """How often a parameter, or a slice of one, has been updated."""
        return _count_of(self.num_updates, name)

    def averaging(self, name: str, decay: float, steps_applied: int) -> Averaging:
        """How the average of a parameter comes to where it is after so many steps, and moves on."""
        num_averaged = _count_of(self.num_averaged, name)
        return Averaging(decay, num_averaged, steps_applied - num_averaged)


def _count_of(counts: Mapping[str, int], name: str) -> int:
    count = counts.get(name)
    return counts.get(whole_name(name), 0) if count is None else count


def _of_wholes(counts: Mapping[str, int]) -> dict[str, int]:
    wholes = {whole_name(name): count for name, count in counts.items()}
    # A slice's count is newer than that of the whole, which was restored.
    return wholes | {whole_name(name): counts[name] for name in counts if slice_of(name)}


@dataclass(frozen=True)
class StepRules:
    """What the updates of one step are made by.

    Attributes:
        groups: rules of the parameter groups, with the hyper-parameters of that step.
        coefficient: multiplies the gradients first.
        steps_before: steps applied before it.
    """

    groups: Sequence[UpdateRule]
    coefficient: float
    steps_before: int


class Updater:
    """Updates parameters by the groups of optimizers, which hold no state themselves.

    Args:
        optimizers: their ``param_groups`` say which parameters are updated, by which rule, with
            which hyper-parameters; schedulers may change them between steps. Several optimizers
            share a model as Muon and AdamW do.
        model: names the parameters.
        average_decay: decay of an exponential moving average of the weights; ``None`` keeps none.
        keeps_masters: whether bf16 weights are updated as fp32 masters, whose 16 low bits the
            store keeps beside the weights that stream.

    Attributes:
        counts: what was applied so far.
    """

    def __init__(
        self,
        optimizers: Optimizer | Sequence[Optimizer],
        model: nn.Module,
        *,
        average_decay: float | None = None,
        keeps_masters: bool = False,
    ) -> None:
        self.counts = UpdateCounts()
        self.optimizers = (optimizers,) if isinstance(optimizers, Optimizer) else optimizers
        self.average_decay = average_decay
        self.keeps_masters = keeps_masters
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self._group_of = {
            _name_of(parameter, names): index
            for index, group in enumerate(groups)
            for parameter in group["params"]
        }
        self._translators = {
            optimizer: Translator(optimizer, keeps_masters=keeps_masters)
            for optimizer in self.optimizers
        }
        self._read: dict[Optimizer, tuple[UpdateRule, ...]] = {}
        self._first_rules = self._rules()
        self._specs: dict[tuple[str, tuple[int, ...], torch.dtype], tuple[StateSpec, ...]] = {}

    @property
    def norm_dtype(self) -> torch.dtype | None:
        """In which norms of gradients are taken; ``None`` is that of each gradient.

        Gradients of masters are fp32.
        """
        return torch.float32 if self.keeps_masters else None

    def this_step(self, coefficient: float = 1.0) -> StepRules:
        """The hyper-parameters of this moment, for a step that is not counted yet.

        Raises:
            OpenwaferError: ``optimizer-groups-changed`` when parameters were added since the start.
        """
        self._check_groups()
        return StepRules(self._rules(), coefficient, self.counts.steps_applied)

    def _check_groups(self) -> None:
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        found = sum(len(group["params"]) for group in groups)
        if found != len(self._group_of):
            raise error(
                "optimizer-groups-changed",
                f"the optimizer has {found} parameters now and had {len(self._group_of)} when "
                "the parameter store was laid out for it",
                help="give the optimizer all its parameters before the model is streamed",
            )

    def read(self, optimizer: Optimizer) -> None:
        """Take an optimizer's hyper-parameters of this moment for the step under way.

        Where several step one after the other, each is read at its own step; what is not read is
        read when the step is complete.
        """
        self._read[optimizer] = self._translators[optimizer].rules()

    def writes_gradients(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer's step leaves other gradients than it finds."""
        return self._translators[optimizer].writes_gradients

    def _rules(self) -> tuple[UpdateRule, ...]:
        read, self._read = self._read, {}
        return tuple(
            rule
            for optimizer, translator in self._translators.items()
            for rule in read.get(optimizer) or translator.rules()
        )

    def rule_of(self, name: str) -> UpdateRule:
        """The rule of a trained parameter, with the hyper-parameters of the beginning."""
        return self._first_rules[self._group_of[whole_name(name)]]

    def trains(self, name: str) -> bool:
        """Whether the optimizer has the parameter, or the one that this is a slice of."""
        return whole_name(name) in self._group_of

    def can_slice(self, name: str, slice_elements: int) -> bool:
        """Whether slices of a parameter can be updated one by one, to the bits of the whole."""
        if not self.trains(name):
            return True
        return (
            not slice_elements % TIES_PER_WORD and self.rule_of(name).cutting is not Cutting.NEVER
        )

    def state_arrays(self, weight: ArraySpec) -> tuple[ArraySpec, ...]:
        """Arrays that a parameter needs among its record's states; none for an untrained one.

        Those of its shape have its strides, too, as torch's optimizers make them.

        Raises:
            OpenwaferError: ``master-strided`` for a master of a weight that is not contiguous.
        """
        specs = self.specs(weight.name, weight.shape, weight.dtype)
        if (
            any(spec.name == LOW_BITS for spec in specs)
            and not weight.empty("meta").is_contiguous()
        ):
            raise error(
                "master-strided",
                f"the bf16 weight {weight.name!r} of shape {weight.shape} has the strides "
                f"{weight.strides}, and fp32 masters are kept of contiguous weights",
                help=f"before the first step: {weight.name}.data = {weight.name}.data.contiguous()",
            )
        return tuple(
            ArraySpec(
                state_name(spec.name, weight.name),
                spec.dtype,
                spec.shape,
                weight.strides if spec.shape == weight.shape else None,
            )
            for spec in specs
        )

    def specs(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[StateSpec, ...]:
        """What is kept beside a weight; nothing for an untrained one."""
        known = self._specs.get((name, shape, dtype))
        if known is not None:
            return known
        specs: tuple[StateSpec, ...] = ()
        if self.trains(name):
            specs = state_specs(
                self.rule_of(name),
                shape,
                dtype,
                keeps_master=self.keeps_masters and dtype is torch.bfloat16,
                keeps_average=self.average_decay is not None,
            )
        self._specs[name, shape, dtype] = specs
        return specs

    def initialise(self, store: Records) -> None:
        """Fill the states of a new store that do not start at zero."""
        for record, layout in store.layouts.items():
            fills = dict(self._fills(layout))
            if fills:
                with store.lent(record, (Part.STATES,)) as loan:
                    for name, fill in fills.items():
                        loan.tensor(name, Part.STATES).fill_(fill)

    def _fills(self, layout: RecordLayout) -> Iterator[tuple[str, float]]:
        for place in layout.parts[Part.WEIGHTS]:
            name = place.spec.name
            for spec in self.specs(name, place.spec.shape, place.spec.dtype):
                if spec.fill:
                    yield state_name(spec.name, name), spec.fill

    def apply(self, loan: Arrays, gradients: Mapping[str, torch.Tensor], step: StepRules) -> None:
        """Update the parameters of a lent record that have gradients and that the optimizer has.

        Args:
            loan: weights and states, waited for.
            gradients: by parameter name, in host memory; only read.
            step: as :meth:`this_step` gave it at the step.
        """
        for name in filter(self.trains, gradients):
            count = self.counts.updates_of(name)
            update_parameter(
                step.groups[self._group_of[whole_name(name)]],
                self._update(loan, name, gradients[name], count),
                gradient_scale=step.coefficient,
                averaging=self.averaging(name, step.steps_before),
            )
            self.count(name, step.steps_before)

    def count(self, name: str, steps_before: int) -> None:
        """Count an update of a parameter, in the step after so many."""
        self.counts.num_updates[name] = self.counts.updates_of(name) + 1
        if self.average_decay is not None:
            self.counts.num_averaged[name] = steps_before + 1

    def averaging(self, name: str, steps_before: int) -> Averaging | None:
        """How the average of a parameter moves in the step after so many, if averages are kept."""
        if self.average_decay is None:
            return None
        return self.counts.averaging(name, self.average_decay, steps_before)

    def _update(self, loan: Arrays, name: str, gradient: torch.Tensor, count: int) -> ParamUpdate:
        weight = loan.tensor(name, Part.WEIGHTS)
        states = {
            spec.name: loan.tensor(state_name(spec.name, name), Part.STATES)
            for spec in self.specs(name, tuple(weight.shape), weight.dtype)
        }
        return ParamUpdate(weight, laid_out_like(gradient, weight), states, count)


class RecordUpdates:
    """Makes the update of a lent record, in whichever thread has the loan, and tells of it.

    Args:
        updater: applies the update rules.
        recorder: receives the spans of updates.
        on_update: called when a record has been updated.

    Attributes:
        updater: see above.
    """

    def __init__(
        self, updater: Updater, recorder: Recorder, on_update: Callable[[str], None]
    ) -> None:
        self.updater = updater
        self._recorder = recorder
        self._on_update = on_update
        self._zeros = _Zeros()

    @property
    def changed_parts(self) -> Collection[Part]:
        """What updates from kept gradients write to."""
        writing = map(self.updater.writes_gradients, self.updater.optimizers)
        return tuple(Part) if any(writing) else KEPT_PARTS

    def apply(self, record: str, loan: Loan, gradients: HostGradients, step: StepRules) -> None:
        """Update a record.

        Args:
            loan: its weights and states, waited for.
            gradients: of its parameters.
            step: what the update is made by.
        """
        with self._recorder.host("update", record, 0), torch.no_grad():
            dense = {
                name: self._zeros.like(loan.tensor(name, Part.WEIGHTS)) if given is None else given
                for name, given in gradients.items()
            }
            self.updater.apply(loan, dense, step)
        self._on_update(record)


class _Zeros:
    """Zeros for all gradients that are zero: as many bytes as the largest of them.

    Whoever gets them only reads them: an optimizer that writes to gradients has no slices.
    """

    def __init__(self) -> None:
        self._bytes = torch.zeros(0, dtype=torch.uint8)

    def like(self, weight: torch.Tensor) -> torch.Tensor:
        """Zeros of a dense weight's shape, strides and dtype."""
        zeros = self._bytes
        if zeros.numel() < weight.nbytes:
            zeros = self._bytes = torch.zeros(weight.nbytes, dtype=torch.uint8)
        flat = zeros[: weight.nbytes].view(weight.dtype)
        return flat.as_strided(weight.shape, weight.stride())


def _name_of(parameter: torch.Tensor, names: Mapping[int, str]) -> str:
    name = names.get(id(parameter))
    if name is None:
        raise error(
            "optimizer-foreign-parameter",
            f"the optimizer has a parameter of shape {tuple(parameter.shape)} "
            "that is not in the model",
            help="build the optimizer over the parameters of the model that is streamed",
        )
    return name


class KeptGradients:
    """Names of the parameters whose gradients are kept, by record; their bytes are the store's.

    They wait for their step to be completed. Then they are due, until :meth:`take_due`. Those of a
    record that are all zero need no bytes.
    """

    def __init__(self) -> None:
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
    def waiting(self) -> Mapping[str, Sequence[str]]:
        """By record, the parameters whose gradients wait for their step to be completed."""
        return self._names if self._step is None else {}

    @property
    def names(self) -> set[str]:
        """All of these."""
        return {name for names in self.waiting.values() for name in names}

    def is_waiting(self, record: str, name: str) -> bool:
        """Whether the gradient of a parameter waits for its step to be completed."""
        return self._step is None and self.has(record, name)

    def has(self, record: str, name: str) -> bool:
        """Whether the gradient of a parameter is kept, due or not."""
        return name in self._names.get(record, ())

    def has_bytes(self, record: str) -> bool:
        """Whether the store has bytes of gradients of the record that are kept, due or not."""
        return record in self._names and record not in self._zeros

    def add(self, record: str, names: Iterable[str]) -> dict[str, bool]:
        """The gradients of parameters are in the store; those that were applied may be so again.

        Returns:
            By name, whether the gradient was not kept already.
        """
        kept = self._names.get(record, ())
        is_new = {name: name not in kept for name in names}
        if is_new:
            self._names[record] = [*kept, *(name for name in is_new if is_new[name])]
        return is_new

    def add_zeros(self, record: str, names: Iterable[str]) -> None:
        """The gradients of a record are zero, of which no bytes are kept."""
        assert not self.has_bytes(record)
        self._zeros.add(record)
        self.add(record, names)

    def take_zeros(self, record: str) -> Collection[str]:
        """The parameters whose zeros are from now on in the store, where the caller puts them."""
        is_zero = record in self._zeros
        self._zeros.discard(record)
        return self._names[record] if is_zero else ()

    def take(self, record: str) -> Collection[str]:
        """The parameters of a record whose gradients wait, which are kept no more."""
        if self._step is not None:
            return ()
        self._zeros.discard(record)
        return self._names.pop(record, ())

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

    def complete_by(self, rules: StepRules) -> None:
        """They are those of a whole step: each record is to be updated before its next use."""
        if self._step is not None:
            raise error(
                "step-without-gradients",
                "a step was completed before the updates of the one before were applied",
                help="call backward between two optimizer steps",
            )
        self._step = rules

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
