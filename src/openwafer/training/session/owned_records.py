"""The records that a system owns which does not lead: it updates them, lends them and takes them.

All updates of a step are made by what the leader decides, which knows the norm of each gradient
from its owner. Between two steps the leader reads and writes any record; see
:class:`~openwafer.training.stream.replicas.run_store.RunStore`.
"""

import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field

import torch
from torch import nn

from openwafer.training.collectives.group import FIRST_RANK
from openwafer.training.session.building import make_optimizers, make_updater
from openwafer.training.session.gradient_norm import GradientNorm
from openwafer.training.session.learning_rates import LearningRates
from openwafer.training.session.loss_scale import LossScaler
from openwafer.training.session.precision import Precision
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.session.run_state import OWNER_VERSION, OwnerState
from openwafer.training.session.shared_stores import store_options
from openwafer.training.session.systems import BegunRun, BegunStep, Systems
from openwafer.training.store import ParameterStore, StoreOptions
from openwafer.training.store.layout import Part
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.execute.execution import StepContext, StreamedExecution
from openwafer.training.stream.link.updates import UpdateCounts
from openwafer.training.stream.replicas.run_store import LendParts, TakeParts, serve


@dataclass(frozen=True)
class GradientReport:
    """What a system knows of the gradients of its records, when a step's pass is over.

    Attributes:
        norms: by parameter; empty where nobody clips.
        has_overflowed: whether one is not finite, where losses are scaled.
    """

    norms: Mapping[str, torch.Tensor] = field(default_factory=dict)
    has_overflowed: bool = False


@dataclass(frozen=True)
class ApplyStep:
    """The leader has decided about a step.

    Attributes:
        coefficient: multiplies gradients as they are applied; ``None`` discards them.
        is_hooked: whether the leader calls somebody behind the updates, before the step is
            committed.
    """

    coefficient: float | None
    is_hooked: bool = False


@dataclass(frozen=True)
class CommitStep:
    """The leader wants a step committed, which it has changed behind its updates.

    Attributes:
        steps_done: training steps behind it.
    """

    steps_done: int


class Flush:
    """The leader wants all updates in the stores."""


class TellCounts:
    """The leader wants to know how often each parameter was updated."""


def gathered_reports(systems: Systems, own: GradientReport) -> list[GradientReport]:
    """Those of all systems; each of them calls this when a pass is over."""
    found = systems.gathered(own, "the norms of its gradients")
    return [report for report in found if isinstance(report, GradientReport)]


def gathered_counts(systems: Systems, own: UpdateCounts) -> UpdateCounts:
    """Counts of the parameters of all systems; the leader calls this between two steps."""
    systems.ask(TellCounts())
    merged = own.of_wholes()
    for found in systems.gathered(None, "how often it has updated its parameters"):
        if isinstance(found, UpdateCounts):
            merged.num_updates.update(found.num_updates)
            merged.num_averaged.update(found.num_averaged)
    return merged.of_wholes()


class OwnedRecords:
    """The store of a system that does not lead, and what updates it.

    Args:
        systems: those of the run.
        begun: the run.
        model: its parameters need no values.
        device: where it runs.
        casting: makes the context that forwards, and nothing else, run in.

    Attributes:
        execution: runs this system's micro-batches, and updates its records.
    """

    def __init__(
        self,
        systems: Systems,
        begun: BegunRun,
        model: nn.Module,
        device: Device,
        casting: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._systems, config = systems, begun.config
        optimizers = make_optimizers(model, config, begun.vocab_size)
        updater = make_updater(optimizers, model, config)
        updater.counts = begun.counts.copy()
        self._rates = LearningRates(optimizers, config)
        self._clips = config.clip_norm is not None
        is_scaled = config.precision is Precision.FP16
        self._scaler = LossScaler(config.loss_scale) if is_scaled else None
        self._norm = GradientNorm((), updater.norm_dtype)
        self._begun = begun
        self._step = self._steps_done = 0
        self._waits_for_hooks = False
        self._store = self._open_store()
        assert begun.plan.schedule is not None
        context = StepContext(
            begun.plan.schedule.timing, casting, systems.replicas_by(config.reduction, begun.owners)
        )
        self.execution = StreamedExecution(model, begun.plan, self._store, updater, device, context)
        self.execution.on_updates_applied = self._updates_applied
        self.execution.watch_gradients(self._watch)

    def _open_store(self) -> ParameterStore:
        begun, rank = self._begun, self._systems.rank
        folder = RunFolder(begun.folder)
        path, share = folder.store_of(rank), begun.shares[rank]
        options = store_options(StoreOptions(), begun.config, self._systems)
        if begun.store_step is not None:
            return share.open(path, options, begun.store_step)
        if begun.keeps_old:
            folder.put_aside(path)
        # What is still there is of steps that will be made again.
        shutil.rmtree(path, ignore_errors=True)
        return share.create(path, options)

    def _updates_applied(self) -> None:
        if not self._waits_for_hooks:
            self._commit()

    def _commit(self) -> None:
        stores = self._begun.stores
        if stores is not None:
            state = OwnerState(OWNER_VERSION, self._steps_done, stores, self._counts())
            self._store.commit_begin(self._steps_done, asdict(state))

    def begin_step(self, begun: BegunStep) -> None:
        """Set the learning rates and the loss scale of a step."""
        self._step = begun.step
        self._rates.set(begun.step)
        if self._scaler is not None:
            self._scaler.restore({"scale": begun.loss_scale, "num_good_steps": 0})

    def report(self) -> None:
        """Tell the leader of the gradients of the pass that is over."""
        has_overflowed = self._scaler is not None and self._scaler.has_overflowed
        gathered_reports(self._systems, GradientReport(self._norm.give(), has_overflowed))
        if self._scaler is not None:
            self._scaler.abandon_step()

    def abandon_step(self) -> None:
        """Forget a step that is not applied."""
        self.execution.discard_gradients()
        self._norm.give()
        if self._scaler is not None:
            self._scaler.abandon_step()

    def answer(self, asked: object) -> None:
        """Do what the leader asks between two steps.

        Raises:
            OpenwaferError: ``rank-lost``, or as the store does.
        """
        match asked:
            case ApplyStep():
                self._apply(asked)
            case CommitStep(steps_done):
                self._waits_for_hooks, self._steps_done = False, steps_done
                self._commit()
            case Flush():
                self.execution.flush()
            case TellCounts():
                self.execution.flush()
                self._systems.gathered(self._counts(), "how often it has updated its parameters")
            case LendParts(owner=owner) | TakeParts(owner=owner):
                if owner == self._systems.rank:
                    self.execution.flush()
                    serve(self._store, self._systems.records, asked, FIRST_RANK)
            case _:
                raise AssertionError(asked)

    def _apply(self, step: ApplyStep) -> None:
        self._steps_done = self._step + 1
        if step.coefficient is None:
            self.execution.discard_gradients()
            self._commit()
            return
        self._waits_for_hooks = step.is_hooked
        self.execution.complete_step(step.coefficient)
        if step.is_hooked:
            self.execution.flush()

    def _counts(self) -> UpdateCounts:
        """Of the parameters of this system's records."""
        counts = self.execution.updater.counts
        names = {
            place.spec.name
            for layout in self._store.layouts.values()
            for place in layout.parts[Part.WEIGHTS]
        }
        return UpdateCounts(
            counts.steps_applied,
            {name: count for name, count in counts.num_updates.items() if name in names},
            {name: count for name, count in counts.num_averaged.items() if name in names},
        )

    def _watch(self, gradients: Mapping[str, torch.Tensor]) -> None:
        if self._scaler is not None:
            self._scaler.unscale(gradients.values())
        if self._clips:
            self._norm.add(gradients)

    def close(self) -> None:
        """Give the model its own forwards back, end threads and close the store."""
        self.execution.close()
        self._store.close()
