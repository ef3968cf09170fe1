"""Executes training steps, with weights that stream or that stay: two ways, one interface.

Either way the weights, the optimizer state and the update counts belong to the parameter store,
so a run may be checkpointed in one way and resumed in the other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

from openwafer.diagnostics import error
from openwafer.training.store.layout import KEPT_PARTS, Part, RecordLayout
from openwafer.training.store.parameter_store import ParameterStore
from openwafer.training.store.record_access import Arrays, LentParts, Records
from openwafer.training.stream.device.device import Device, Recorder
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.execute.arriving_gradients import MicroBatchWatcher
from openwafer.training.stream.execute.executor import Executor
from openwafer.training.stream.execute.micro_batches import Forward, run_forward, run_in_rotation
from openwafer.training.stream.execute.passes import ScheduleCheck, is_checking
from openwafer.training.stream.execute.thread_state import autocast
from openwafer.training.stream.forms.weight_form import forms_of
from openwafer.training.stream.link.store_link import LinkTraffic, StoreLink
from openwafer.training.stream.link.updates import StepRules, Updater
from openwafer.training.stream.replicas.replica_link import (
    ReplicaLink,
    Replicas,
    expert_link,
    records_of,
    replica_link,
)
from openwafer.training.stream.schedule import UpdateTiming
from openwafer.training.stream.step_plan import StepPlan


@dataclass(frozen=True)
class StepEnd:
    """The end of a step.

    Attributes:
        steps_applied: how many steps have been, this one included.
        records: what the store keeps, by record.
        lent: context in which a record's weights and states may be read and written.
    """

    steps_applied: int
    records: Mapping[str, RecordLayout]
    lent: Callable[[str], AbstractContextManager[Arrays]]


StepHook: TypeAlias = Callable[[StepEnd], None]
IsDue: TypeAlias = Callable[[int], bool]
"""Whether a hook is to be called after so many steps."""


def each(every: int) -> IsDue:
    """After each ``every``-th step.

    Raises:
        OpenwaferError: ``hook-never``, where that is less than one.
    """
    if every < 1:
        raise error(
            "hook-never",
            f"a hook between steps is to be called every {every} steps",
            help="give a whole number from 1",
        )
    return lambda steps_applied: steps_applied % every == 0


Gradients = Mapping[str, torch.Tensor]
Watcher = Callable[[Gradients], None]
Seed = Callable[[int], None]
Root = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class StepContext:
    """What steps run under.

    Attributes:
        updater: the update rules and the update counts.
        device: where the model runs.
        autocast_dtype: of the autocast that forwards, and nothing else, run under, or ``None``.
        replicas: the ranks of the run, where there are several.
    """

    updater: Updater
    device: Device
    autocast_dtype: torch.dtype | None = None
    replicas: Replicas | None = None

    def autocast(self) -> AbstractContextManager[object]:
        """The context of forwards."""
        return autocast(self.device.torch_device, self.autocast_dtype)


class Execution(ABC):
    """Runs the steps of one model.

    A step is :meth:`run`, then :meth:`complete_step` or :meth:`discard_gradients`.

    Args:
        store: home of weights and states, on this rank.
        context: what steps run under.

    Attributes:
        updater, device: see :class:`StepContext`.
        records: those of all ranks of the run; may be asked for between two steps.
        recorder: times and device memory.
        on_updates_applied: called when the store holds every update of the last completed step,
            which may be while the next step runs.
    """

    def __init__(self, store: ParameterStore, context: StepContext) -> None:
        self.store = store
        self.records: Records = store
        self.updater = context.updater
        self.device = device = context.device
        self.on_updates_applied: Callable[[], None] = lambda: None
        self.recorder = Recorder(device)
        self._autocast = context.autocast
        self._step_hooks: list[tuple[StepHook, IsDue]] = []

    @property
    @abstractmethod
    def traffic(self) -> LinkTraffic:
        """Bytes over the link so far."""

    @property
    def experts_used(self) -> frozenset[str] | None:
        """Records of the experts that the last pass used; ``None`` where none stream one by one."""
        return None

    @property
    def layer_calls(self) -> int | None:
        """Of layers in the forwards of the last pass; ``None`` where nobody counts them."""
        return None

    @abstractmethod
    def watch_gradients(self, watcher: Watcher) -> None:
        """Call ``watcher`` with the gradients on their way to the update, by parameter name.

        A parameter comes once a pass, with the gradient of the whole step; the watcher may change
        it in place. Watchers see them in the order in which they were given. A step that is undone
        and run again has two passes.
        """

    @abstractmethod
    def watch_micro_batches(self, watcher: MicroBatchWatcher) -> None:
        """Call ``watcher`` with every gradient of each micro-batch by itself, once a step.

        Steps are not updated on trial while somebody watches, so that none is run twice. An expert
        that streams by itself comes under a name of its own, as ``weight..3``, in the
        micro-batches that use it.
        """

    def between_steps(self, hook: StepHook, is_due: IsDue) -> None:
        """Call ``hook`` after the steps that are due, when all their updates are made.

        The store is brought up to date for it, which a step otherwise leaves to the next. What the
        hook writes is a part of the step: it is committed with it.
        """
        self._step_hooks.append((hook, is_due))

    def is_hook_due(self, steps_applied: int) -> bool:
        """Whether some hook is called after so many steps."""
        return any(is_due(steps_applied) for _, is_due in self._step_hooks)

    def _call_hooks(self, records: Mapping[str, RecordLayout]) -> None:
        with self.device.host_section(), torch.no_grad():
            steps_applied = self.updater.counts.steps_applied
            end = StepEnd(steps_applied, records, self._lent)
            for hook, is_due in self._step_hooks:
                if is_due(steps_applied):
                    hook(end)

    def _lent(self, record: str) -> AbstractContextManager[Arrays]:
        """Context in which a hook may read and write a record's weights and states."""
        return self.records.lent(record, KEPT_PARTS)

    @abstractmethod
    def run(self, forwards: Sequence[Forward], root: Root, seed: Seed | None) -> list[float]:
        """Run forward and backward of all micro-batches; their gradients are summed.

        Args:
            forwards: one function a micro-batch, returning its loss.
            root: turns losses into what backward starts from: weighs them, scales them, refuses
                them. Called with those of all micro-batches, or of one after the other, in rising
                order. What it raises leaves the store as it was before the step.
            seed: sets the random generators for the micro-batch of an index.

        Returns:
            The losses.
        """

    def complete_step(self, coefficient: float) -> None:
        """The gradients are those of a whole step: multiply them and apply them."""
        self.complete_by(self.updater.this_step(coefficient))

    @abstractmethod
    def complete_by(self, rules: StepRules) -> None:
        """The same, by rules that were read at that step, perhaps by another rank."""

    @abstractmethod
    def discard_gradients(self) -> None:
        """Forget the gradients of a step that is not to be applied."""

    @abstractmethod
    def flush(self) -> None:
        """Bring the store up to date with every step completed."""

    @abstractmethod
    def evaluate(
        self, forwards: Sequence[Forward], *, may_repeat: bool = True
    ) -> list[torch.Tensor]:
        """Run forwards without gradients, in evaluation mode set by the caller.

        All of them pass a layer before the next layer comes. The caller gives no more than the
        micro-batches of a training step hold, which need more memory.

        Args:
            forwards: functions of the model.
            may_repeat: whether they may be run a second time, as the forwards of a model that they
                change are.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the model its own forwards back and end threads; the store stays open."""


class StreamedExecution(Execution):
    """Weights stream from the store; see :class:`Execution`."""

    def __init__(
        self,
        model: nn.Module,
        plan: StepPlan,
        store: ParameterStore,
        context: StepContext,
    ) -> None:
        super().__init__(store, context)
        assert plan.schedule is not None
        replicas, device = context.replicas, self.device
        self.records = records_of(store, plan.layouts, replicas)
        self._owes_updates = False
        self._counts_before = self.updater.counts.copy()
        forms = forms_of(model, plan.split.sliced)
        weights = DeviceWeights(forms, plan.layouts, device, are_watched=True)
        for record in plan.split.records:
            weights.unbind(record)
        timing = plan.schedule.timing
        self.link = StoreLink(store, self.updater, device, timing, self.recorder)
        self._replica_link: ReplicaLink | None = None
        if replicas is not None:
            self._replica_link = replica_link(replicas, weights, plan.split, self.link)
        link = self._replica_link or self.link
        backend = device.backend
        self.executor = Executor(model, plan.split, weights, link, self.recorder, backend)
        if is_checking():
            elsewhere = plan.layouts.keys() - store.layouts.keys()
            self.executor.observe(ScheduleCheck(plan.split, elsewhere))
        if self._replica_link is not None and replicas is not None:
            self._join_experts(model, plan, self._replica_link, replicas)
        self.adopt(plan)

    def _join_experts(
        self, model: nn.Module, plan: StepPlan, link: ReplicaLink, replicas: Replicas
    ) -> None:
        """Have experts computed by their owners, where rows pass between ranks."""
        link.experts = expert_link(replicas, model, plan.split, self.link, self._autocast)
        self.executor.experts.elsewhere = link.experts

    def adopt(self, plan: StepPlan) -> None:
        """Run by a plan from the next pass on."""
        self._plan = plan
        self.executor.follow(plan.timed(self.link.timing))

    @property
    def plan(self) -> StepPlan:
        """What passes go by."""
        return self._plan

    def update_on(self, timing: UpdateTiming, coefficient: float = 1.0) -> None:
        """Say when the next step is updated, whose plan is of updates on push.

        Updates on push are made within its pass. Until :meth:`complete_step`, :meth:`roll_back`
        undoes them.

        Args:
            timing: when records are updated.
            coefficient: what gradients are multiplied by in updates on push.
        """
        if timing is UpdateTiming.ON_PUSH:
            self.flush()
        self._counts_before = self.updater.counts.copy()
        has_changed = timing is not self.link.timing
        self.link.update_on(timing, coefficient)
        if has_changed:
            self.adopt(self._plan)

    def roll_back(self) -> None:
        """Undo the updates on push of a step that is not completed."""
        self.store.roll_back()
        self.updater.counts = self._counts_before.copy()

    @property
    def traffic(self) -> LinkTraffic:
        return self.link.traffic

    @property
    def experts_used(self) -> frozenset[str] | None:
        come = self.executor.split.sliced and self.executor.experts.elsewhere is None
        return self.executor.experts.used if come else None

    @property
    def layer_calls(self) -> int | None:
        return len(self.executor.log.visits)

    def watch_gradients(self, watcher: Watcher) -> None:
        self.link.watchers.append(watcher)

    def watch_micro_batches(self, watcher: MicroBatchWatcher) -> None:
        self.executor.gradients.watchers.add(watcher)

    def run(self, forwards: Sequence[Forward], root: Root, seed: Seed | None) -> list[float]:
        try:
            is_watched = self.recorder.trace is not None
            with self.executor.routes.naming_room(), self.device.active(is_watched=is_watched):
                with self._autocast():
                    may_repeat = self._replica_link is None
                    losses = run_forward(self.executor, forwards, seed, may_repeat=may_repeat)
                # Gradients that arrive are of the next step: those of the last must be gone.
                self.flush()
                torch.autograd.backward(root(losses))
                if self.executor.is_in_pass:
                    self.executor.end_pass()
                return [loss.item() for loss in losses]
        except BaseException:
            self.executor.abandon_pass()
            raise

    def complete_by(self, rules: StepRules) -> None:
        if self.link.kept.has_waiting:
            self.link.kept.complete_by(rules)
            self._owes_updates = True
        self.updater.counts.steps_applied += 1
        if not self._owes_updates:
            self._end_step()
        elif self.is_hook_due(self.updater.counts.steps_applied):
            self.flush()

    def discard_gradients(self) -> None:
        self.link.kept.discard()

    def flush(self) -> None:
        if self._owes_updates:
            with self.device.host_section():
                self.link.flush()
            self._owes_updates = False
            self._end_step()

    def _end_step(self) -> None:
        self._call_hooks(self.records.layouts)
        self.on_updates_applied()

    def end_open_pass(self) -> None:
        """End the pass of a forward that no backward has followed, or whose backward failed."""
        if self.executor.is_in_pass:
            self.executor.end_pass()

    def lent(self, record: str, *parts: Part) -> AbstractContextManager[LentParts]:
        """Context in which parts of a record of this rank can be read."""
        return self.link.lent(record, *parts)

    def settle(self) -> None:
        """Bring the store up to date between two steps, with nothing lent to the device."""
        self.end_open_pass()
        self.flush()

    def evaluate(
        self, forwards: Sequence[Forward], *, may_repeat: bool = True
    ) -> list[torch.Tensor]:
        try:
            with self.device.active(), torch.no_grad(), self._autocast():
                results = run_in_rotation(self.executor, forwards, may_repeat=may_repeat)
            self.executor.end_pass()
        except BaseException:
            self.executor.abandon_pass()
            raise
        return results

    def close(self) -> None:
        self.executor.detach()
        if self._replica_link is not None:
            self._replica_link.close()
        self.link.close()
