"""Runs a step on tensors without memory to learn what it needs before anything is allocated.

The same executor walks the same schedule over a copy of the model made of fake tensors, so the
peak it meters is the peak the real step will have, activations and temporaries included.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError
from openwafer.training.plan_record import Activations
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.stream.device.device import CpuDevice, Submitted, Transfer
from openwafer.training.stream.device.layer_backend import LayerBackend, LayerCall, LayerKernel
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.execute.executor import Executor
from openwafer.training.stream.execute.micro_batches import Forward, run_forward
from openwafer.training.stream.execute.pass_watch import CallKind, TensorForm
from openwafer.training.stream.execute.passes import Order, PassObserver
from openwafer.training.stream.execute.snapshot import Snapshot
from openwafer.training.stream.execute.thread_state import autocast
from openwafer.training.stream.forms.weight_form import forms_of
from openwafer.training.stream.layers import PINNED, Partition, leaves_out
from openwafer.training.stream.link.host_link import DryLink
from openwafer.training.stream.plan.code_watch import (
    UNCOUNTED,
    Derived,
    ForwardWatch,
    NotedUses,
    SavedWeights,
    WatchingMeter,
    harmless_names,
    let_hooks_raise,
    walked_backward,
)
from openwafer.training.stream.plan.fake_tensors import RememberingFakeMode, faked
from openwafer.training.stream.plan.operators import (
    CountingMeter,
    StepCalls,
)
from openwafer.training.stream.plan.workload import Workload, hollow_copy, placed
from openwafer.training.stream.schedule import Kind, Schedule, UpdateTiming, Visit
from openwafer.training.torch_private import (
    disable_current_modes,
    execution_engine,
    pytree,
)

# What code raises that misses what a skipped layer would have done.
FAILURES: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OpenwaferError,
    RuntimeError,
    TypeError,
    ValueError,
)


class CallForm(NamedTuple):
    """A layer's call that can be skipped.

    Attributes:
        operators: a hash of their kinds, in their order.
        passed: form of its only tensor result, which is that of its first tensor argument, too.
        leaf: number of that result among the leaves of what it returns.
        tree: of those leaves.
    """

    operators: int
    passed: TensorForm
    leaf: int
    tree: pytree.TreeSpec


@dataclass(frozen=True)
class DryRun:
    """What a step needs.

    Attributes:
        peak_bytes: most device bytes held at once.
        visits: layer calls in forward order.
        received: parameters that get a gradient.
        misused: parameters used outside the layers that hold them.
        activation_bytes: device bytes that each visit's forward leaves behind.
        forwards: indices of the visits that each micro-batch made.
        calls: of operators.
        kinds: of the model's calls.
        left_bytes: device bytes that the forward leaves behind, all in all, with those of a loss of
            its output: a loop that goes forward again may hold one.
        host_bytes: most bytes held at once in host memory beside the store: what is put aside
            there, and what the device holds where it is host memory, but for weights that are lent.
        depends_on_values: whether the step was computed with random weights, so that with others
            it may need more.
        leaves_out: whether another step may leave out some of what this one computed.
        written: parameters that the forward writes to.
        offset: parameters that it reads from a place in their storage that it names.
        forms: of the calls of layers that another run may skip; those of one run can be compared.
        is_whole: whether no layer was skipped.
        reasons: why layers cannot be recomputed, by name, where a run was asked to find out. The
            other figures are those of a forward then, if one of these layers was to be recomputed.
        uncounted: of these, the layers whose activations are right only where they are kept; see
            :class:`UncountedWrites`.
        experts_used: of weights whose experts stream one by one, the slices that were used.
        nested: the layer calls of both passes, and behind each what it fetched, pushed and updated
            of the records nested in it; an update without a push is one of zeros.
        expert_rows: rows that grouped products multiply, by weight; see :class:`ExpertPass`.
        changed: names of what forwards change, where a run was asked to find it.
        order: in which the model's micro-batches have to go forward, where a run was asked to find
            reasons: that of a first step, at least.
    """

    peak_bytes: int
    visits: tuple[Visit, ...]
    received: tuple[str, ...]
    misused: tuple[str, ...]
    activation_bytes: tuple[int, ...]
    calls: StepCalls
    kinds: tuple[CallKind, ...] = ()
    forwards: tuple[tuple[int, ...], ...] = ()
    left_bytes: int = 0
    host_bytes: int = 0
    depends_on_values: bool = False
    leaves_out: bool = False
    written: tuple[str, ...] = ()
    offset: tuple[str, ...] = ()
    forms: Mapping[str, CallForm] = field(default_factory=dict, compare=False)
    is_whole: bool = True
    reasons: Mapping[str, str] = field(default_factory=dict)
    uncounted: frozenset[str] = frozenset()
    experts_used: frozenset[str] = frozenset()
    nested: tuple[tuple[Kind, str], ...] = ()
    expert_rows: Mapping[str, int] = field(default_factory=dict)
    order: Order = Order.FALLING
    changed: tuple[str, ...] = ()

    def left_by_layer(self) -> Counter[str]:
        """Device bytes that the forward of each layer leaves behind."""
        left: Counter[str] = Counter()
        for visit, num_bytes in zip(self.visits, self.activation_bytes, strict=False):
            left[visit.layer] += num_bytes
        return left


class DryDevice(CpuDevice):
    """A metered device for fake tensors of any kind of device.

    Where copies overlap compute, a download keeps its source until another transfer shows that it
    has ended: the slowest link there may be.
    """

    def __init__(self, torch_device: torch.device, *, overlaps: bool) -> None:
        super().__init__()
        self.torch_device = torch_device
        self.is_asynchronous = overlaps
        self._leaving: torch.Tensor | None = None

    def upload(self, destination: torch.Tensor, source: torch.Tensor, after: Submitted) -> Transfer:
        """See :class:`~openwafer.training.stream.device.device.Device`."""
        self._leaving = None
        return super().upload(destination, source, after)

    def download(
        self, source: torch.Tensor, destination: torch.Tensor, after: Submitted
    ) -> Transfer:
        """See :class:`~openwafer.training.stream.device.device.Device`."""
        self._leaving = source if self.is_asynchronous else None
        return super().download(source, destination, after)


@dataclass(frozen=True)
class DryRunSettings:
    """How a step is run.

    Attributes:
        policies: activation policy by layer; a layer not named recomputes.
        schedule: what to walk; ``None`` serves every layer on demand.
        nested_capacity_bytes: device bytes for layers nested in others.
        overlaps: whether copies run beside compute, and hold device memory meanwhile.
        overhead_bytes: device bytes taken beside the step's tensors.
        finds_reasons: whether to find the layers that cannot be recomputed, and the weights whose
            experts cannot stream one by one, of which the first raises ``UsedWholeError``.
        skipped: layers whose operators are not called, each with an earlier one that it is like.
        order: in which the micro-batches go forward.
        is_changed: whether the model may be one that its forwards change.
        goes_back: whether the backward follows; without it, nothing is known to get a gradient.
    """

    policies: Mapping[str, Activations] = field(default_factory=dict)
    schedule: Schedule | None = None
    nested_capacity_bytes: int = 0
    overlaps: bool = False
    overhead_bytes: int = 0
    finds_reasons: bool = False
    skipped: Mapping[str, str] = field(default_factory=dict)
    order: Order = Order.FALLING
    is_changed: bool = False
    goes_back: bool = True


@dataclass(frozen=True)
class DryStep:
    """A step that runs without its weights.

    Tensors are fake, so nothing is computed and nothing allocated, unless the model's control flow
    depends on values (a router of experts): then the step is computed with random weights, one
    layer in memory at a time.

    Attributes:
        workload: what it computes.
        split: the model's layers; the model's forwards must be its own.
        layouts: records of the split.
        torch_device: where the step will run.
        settings: how to run it.
    """

    workload: Workload
    split: Partition
    layouts: Mapping[str, RecordLayout]
    torch_device: torch.device
    settings: DryRunSettings

    def run(self) -> DryRun:
        """Run the step and say what it needs."""
        return faked(partial(_walk, self))

    def run_by(self, backend: LayerBackend) -> None:
        """Run the step with random weights, each layer by the kernel of a backend."""
        with _staged(self, None) as stage:
            stage.by = backend
            stage.run()

    def harmless_changes(self) -> tuple[str, ...]:
        """Names of what forwards change that systems may each have for themselves."""

        def walk(mode: RememberingFakeMode | None) -> tuple[str, ...]:
            with _staged(self, mode) as stage:
                return stage.harmless()

        return faked(walk)

    def run_shortened(self) -> DryRun | None:
        """As :meth:`run`, on fake tensors, with layers skipped.

        Returns:
            ``None`` where the model's code does not do without these layers. The peak is that of a
            whole run if they are like those before them; calls, gradients and host bytes lack
            theirs.
        """
        split, layouts = with_one_array(self.split, self.layouts, self.settings.skipped)
        try:
            with RememberingFakeMode(allow_non_fake_inputs=True) as mode:
                return _walk(replace(self, split=split, layouts=layouts), mode)
        except FAILURES:
            return None


def _walk(step: DryStep, mode: RememberingFakeMode | None) -> DryRun:
    with _staged(step, mode) as stage:
        return stage.run()


@contextmanager
def _staged(step: DryStep, mode: RememberingFakeMode | None) -> "Iterator[_Stage]":
    stage = _Stage(step, mode)
    stage.configure(step.settings)
    try:
        yield stage
    finally:
        # Hooks on parameters hold what they belong to in cycles that are never collected.
        stage.executor.detach()


class _Stage(PassObserver):
    """A hollow copy of the model with an executor of its own."""

    def __init__(self, step: DryStep, mode: RememberingFakeMode | None) -> None:
        workload, split, torch_device = step.workload, step.split, step.torch_device
        self.workload = workload
        self.device = device = DryDevice(torch_device, overlaps=step.settings.overlaps)
        self.by: LayerBackend = self
        self.watch: ForwardWatch | None = None
        self.order = Order.FALLING
        self.changed: tuple[str, ...] = ()
        self.state_bytes = 0
        self.is_fake = mode is not None
        self.model = hollow_copy(workload.model, torch_device)
        let_hooks_raise(self.model, is_fake=self.is_fake)
        self.batches = [placed(batch, mode, torch_device) for batch in workload.batches]
        self.depends_on_values = mode is None
        self.device.meter = self.meter = WatchingMeter()
        self.meter.walks(mode)
        # A run that skips layers knows few of their weights.
        forms = {
            name: form
            for name, form in forms_of(self.model, split.sliced).items()
            if not split.record_of.keys().isdisjoint(form.stored)
        }
        uses = NotedUses(self.meter, split.records.get(PINNED, ()))
        self.weights = DeviceWeights(forms, step.layouts, self.device, uses=uses)
        self.meter.weights = self.weights
        for record in split.records:
            self.weights.unbind(record)
        self.link = DryLink(
            self.weights, fills_weights=mode is None, overlaps=device.is_asynchronous
        )
        self.executor = Executor(self.model, split, self.weights, self.link, backend=self)
        self.executor.observe(self)

    def configure(self, settings: DryRunSettings) -> None:
        """Set the executor up."""
        self.goes_back = settings.goes_back
        self.executor.schedule = self.executor.forward_schedule = settings.schedule
        skipped = dict.fromkeys(settings.skipped, Activations.KEEP)
        self.executor.policies = {**settings.policies, **skipped}
        self.calls = LayerCalls(self.meter, settings.skipped)
        self.executor.default_policy = Activations.RECOMPUTE
        self.executor.order.keep(settings.order, is_changed=settings.is_changed)
        # Which micro-batches use an expert depends on values: its gradient may wait for them all.
        self.executor.gradients.slices_wait = True
        for state in self.executor.states.values():
            # A rehearsal needs values, and less memory than the backward pass.
            state.is_rehearsed = True
        self.executor.nested.capacity_bytes = settings.nested_capacity_bytes
        self.meter.used_bytes = settings.overhead_bytes
        self.left = [self.meter.used_bytes]
        if settings.finds_reasons:
            self.executor.experts.refuse_whole()
            modules = {name: self.model.get_submodule(name) for name in self.executor.states}
            self.watch = ForwardWatch(modules, self.executor.states, self.device.host_section)
            self.meter.on_foreign_write = self.watch.note_write if self.is_fake else None
        if settings.schedule is not None:
            self.weights.capacity_bytes = settings.schedule.capacity_bytes
            self.link.holds_back = settings.schedule.timing is UpdateTiming.ON_PUSH

    def kernel(self, layer: str, module: nn.Module) -> LayerKernel:
        """See :class:`LayerBackend`. Shapes and bytes are torch's, whoever computes the step."""
        return self if self.by is self else self.by.kernel(layer, module)

    def expect(self, layers: Sequence[str]) -> None:
        """See :class:`LayerBackend`."""

    def try_step(self, walk: Callable[[LayerBackend], object]) -> None:
        """See :class:`LayerBackend`."""

    def report(self) -> None:
        """See :class:`LayerBackend`."""

    def forward(self, call: LayerCall) -> Any:
        """See :class:`LayerKernel`."""
        if not torch.is_grad_enabled():
            return call.by_torch()
        watch = self.watch
        with nullcontext() if watch is None else watch.around(call.layer, call.args, call.kwargs):
            return self.calls(call)

    def recompute(self, call: LayerCall) -> Any:
        """See :class:`LayerKernel`."""
        return call.by_torch()

    def leave_layer(self) -> None:
        """See :class:`PassObserver`."""
        beside = self.weights.held_bytes + self.state_bytes
        self.left.append(self.meter.used_bytes - beside)
        self.calls.end_visit(self.left[-1] - self.left[-2])

    def run(self) -> DryRun:
        """Run the step and say what it needed."""
        autocasting = autocast(self.device.torch_device, self.workload.autocast_dtype)
        with self.device.active(), torch.set_grad_enabled(self.workload.is_graded):
            with autocasting:
                losses = self._run_forwards()
            forward = self.meter.take_calls()
            left_bytes = self.meter.used_bytes - self.weights.held_bytes - self.left[0]
            if losses and not self._cannot_go_back() and self.goes_back:
                self._backward(losses)
        made = self.executor.log.calls
        return DryRun(
            peak_bytes=self.meter.peak_bytes,
            visits=self.executor.visits(),
            received=tuple(self.link.received),
            misused=tuple(self.meter.misused),
            written=tuple(self.meter.written),
            offset=tuple(self.meter.offset),
            activation_bytes=tuple(after - before for before, after in pairwise(self.left)),
            calls=StepCalls(forward, self.meter.take_calls()),
            kinds=tuple(self.executor.watch.met),
            forwards=tuple((*made.get(index, ()),) for index in range(len(self.batches))),
            left_bytes=left_bytes,
            host_bytes=self.meter.host_peak_bytes,
            depends_on_values=self.depends_on_values,
            leaves_out=leaves_out(self.model),
            forms=self.calls.forms(self.executor.log.visits),
            is_whole=not self.calls.skipped,
            reasons=self._reasons(),
            uncounted=frozenset(self.meter.uncounted.layers),
            experts_used=self.executor.experts.used,
            nested=self._nested(),
            expert_rows=self.executor.experts.num_rows,
            order=self.order,
            changed=self.changed,
        )

    def _nested(self) -> tuple[tuple[Kind, str], ...]:
        nested = self.executor.nested.names
        return tuple(
            (kind, name)
            for kind, name in self.executor.log.executed
            if kind in (Kind.FORWARD, Kind.BACKWARD)
            or (kind is not Kind.RELEASE and name in nested)
        )

    def _run_forwards(self) -> list[torch.Tensor]:
        """Losses, or none where nothing is graded and each forward is a pass by itself."""
        forwards = [partial(self.workload.loss_of, self.model, batch) for batch in self.batches]
        meets_others = self.workload.meets_others and self.watch is not None
        if self.workload.is_graded and (len(forwards) > 1 or meets_others):
            return self._run_beside_others(forwards)
        if self.workload.is_graded:
            return run_forward(self.executor, forwards)
        for forward in forwards:
            forward()
        return []

    def _run_beside_others(self, forwards: Sequence[Forward]) -> list[torch.Tensor]:
        """Losses; a pass holds the state from before it meanwhile, to find what has changed."""
        order = self.executor.order
        if self.watch is None:
            used_bytes = self.meter.used_bytes
            held = order.own_state()
            self.state_bytes = self.meter.used_bytes - used_bytes
            losses = run_forward(self.executor, forwards)
            del held
            return losses
        # What lies outside the model has values.
        with disable_current_modes():
            before = order.state()
        losses = run_forward(self.executor, forwards)
        with disable_current_modes():
            self.order = order.needed(before, len(forwards), is_fake=self.is_fake)
            self.changed = tuple(before.changed(waits=not self.is_fake))
        return losses

    def harmless(self) -> tuple[str, ...]:
        """Names of what forwards change that each system may have for itself."""
        call = self.meter.call
        derived = self.meter.call = Derived(call, self.batches)
        forwards = [partial(self.workload.loss_of, self.model, batch) for batch in self.batches]

        def state_before_pass() -> Snapshot:
            with disable_current_modes():
                before = self.executor.order.state()
            with autocast(self.device.torch_device, self.workload.autocast_dtype):
                run_forward(self.executor, forwards)
            self.executor.end_pass()
            return before

        with self.device.active(), torch.enable_grad():
            first = state_before_pass()
            with disable_current_modes():
                changes = list(first.changed_values())
            later = state_before_pass()

        def comes_from_data(value: object) -> bool:
            # Numbers of a model whose tensors have values may be taken from these.
            is_number = isinstance(value, int | float | complex) and not isinstance(value, bool)
            return derived.has(value) or (is_number and not self.is_fake)

        with disable_current_modes():
            return tuple(harmless_names(changes, later, self.model, comes_from_data))

    def _cannot_go_back(self) -> bool:
        """Whether a layer that is to be recomputed was found not to repeat itself."""
        if self.watch is None:
            return False
        self.watch.end_forward()
        policies, default = self.executor.policies, self.executor.default_policy
        return any(
            policies.get(name, default) is Activations.RECOMPUTE for name in self.watch.reasons
        )

    def _backward(self, losses: Sequence[torch.Tensor]) -> None:
        try:
            # A run weighs its losses and scales them, which takes scalars of its own.
            scaled = [loss / 2 * 2 for loss in losses]
            ones = [torch.ones_like(loss) for loss in scaled]
            saved = SavedWeights(self.weights, self.executor.visits())
            with walked_backward(is_fake=self.is_fake), saved:
                # As torch.autograd.backward does, which leaves such modes outside.
                execution_engine.run_backward(
                    *(tuple(scaled), tuple(ones), False, False, ()),
                    allow_unreachable=True,
                    accumulate_grad=True,
                )
        except OpenwaferError:
            if self.watch is None or not self._reasons():
                raise

    def _reasons(self) -> dict[str, str]:
        refused = {name: state.refusal for name, state in self.executor.states.items()}
        found = self.watch.reasons if self.watch is not None else {}
        uncounted = dict.fromkeys(self.meter.uncounted.layers, UNCOUNTED)
        return {name: reason for name, reason in refused.items() if reason} | found | uncounted


def like_earlier_ones(
    names: Sequence[str], forms: Mapping[str, CallForm], policies: Mapping[str, Activations]
) -> dict[str, str]:
    """The layers that need not be walked, each with the first of those that it is like.

    Args:
        names: of the layers in the order of their calls.
        forms: of those that can be skipped.
        policies: what becomes of their activations.
    """
    kinds = [(forms.get(name, name), policies.get(name)) for name in names]
    places = list(zip([None, *kinds], kinds, [*kinds[1:], None], strict=False))
    first = {place: index for index, place in reversed(list(enumerate(places)))}
    last = {place: index for index, place in enumerate(places)}
    return {
        names[index]: names[first[place]]
        for index, place in enumerate(places)
        if first[place] < index < last[place] and names[index] in forms
    }


def with_one_array(
    split: Partition, layouts: Mapping[str, RecordLayout], skipped: Collection[str]
) -> tuple[Partition, Mapping[str, RecordLayout]]:
    """Records as large as before, of which those of skipped layers hold their last array alone.

    Where no operator is called, views of the others would be made for nothing.
    """
    few = {
        name: replace(layout, parts={part: places[-1:] for part, places in layout.parts.items()})
        for name, layout in layouts.items()
        if name in skipped
    }
    last = {name: (layout.parts[Part.WEIGHTS][0].spec.name,) for name, layout in few.items()}
    return Partition(split.layers, {**split.records, **last}), {**layouts, **few}


class LayerCalls:
    """Sees the calls of layers in a dry run, and answers those of skipped layers.

    Args:
        meter: of the run.
        skipped: names of layers, each with that of an earlier one that it is like.
    """

    def __init__(self, meter: CountingMeter, skipped: Mapping[str, str]) -> None:
        self.skipped = skipped
        self._meter = meter
        self._forms: dict[str, set[CallForm | None]] = {}
        self._visit: list[str] = []
        # Of walked layers: what a call leaves, and the leaves of what the last one returned.
        self._left_bytes: dict[str, int] = {}
        self._returned: dict[str, list[Any]] = {}

    def __call__(self, call: LayerCall) -> Any:
        """Call a layer, or answer for it."""
        layer, arguments = call.layer, pytree.tree_leaves((call.args, call.kwargs))
        self._visit.append(layer)
        given = [one for one in arguments if isinstance(one, torch.Tensor)]
        if layer in self.skipped:
            return self._pass_on(self.skipped[layer], given[0])
        self._meter.operators_hash = 0
        out = call.by_torch()
        form = self._form_of(layer, given, out)
        self._forms.setdefault(layer, set()).add(form)
        return out

    def end_visit(self, left_bytes: int) -> None:
        """The calls of a layer by all micro-batches are over, and have left so many bytes."""
        if self._visit:
            self._left_bytes[self._visit[-1]] = left_bytes // len(self._visit)
            self._visit.clear()

    def forms(self, visits: Sequence[str]) -> dict[str, CallForm]:
        """The form of every layer that was visited once and can be skipped."""
        found = {name: _only(self._forms.get(name, ())) for name in visits}
        return {name: form for name, form in found.items() if form and visits.count(name) == 1}

    def _form_of(self, layer: str, given: Sequence[torch.Tensor], out: object) -> CallForm | None:
        leaves, tree = pytree.tree_flatten(out)
        found = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if len(found) != 1 or not given:
            return None
        passed = _form_of(leaves[found[0]])
        if not passed.requires_grad or passed != _form_of(given[0]):
            return None
        leaves[found[0]] = None
        self._returned[layer] = leaves
        return CallForm(self._meter.operators_hash, passed, found[0], tree)

    def _pass_on(self, like: str, given: torch.Tensor) -> Any:
        form = _only(self._forms[like])
        assert form is not None
        left = [torch.empty(self._left_bytes[like], dtype=torch.uint8, device=given.device)]
        out = given.view_as(given)
        # A backward that has come here has taken what the forward left.
        out.register_hook(lambda _: left.clear())
        leaves = list(self._returned[like])
        leaves[form.leaf] = out
        return pytree.tree_unflatten(leaves, form.tree)


def _form_of(tensor: torch.Tensor) -> TensorForm:
    return TensorForm(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)


def _only(forms: Collection[CallForm | None]) -> CallForm | None:
    return next(iter(forms)) if len(forms) == 1 else None


@dataclass(frozen=True)
class ResidentRun:
    """What a step of the plain loop needs.

    Attributes:
        peak_bytes: most device bytes of weights, gradients and activations; states come on top.
        weights_bytes: those of the weights.
        activation_bytes: device bytes that each layer call of a micro-batch leaves behind.
        calls: of operators.
    """

    peak_bytes: int
    weights_bytes: int
    activation_bytes: tuple[int, ...]
    calls: StepCalls


def resident_run(
    workload: Workload, layers: Sequence[str], torch_device: torch.device
) -> ResidentRun:
    """Run one step as the plain loop does, without its weights.

    Args:
        workload: the step.
        layers: names of the modules whose calls are told apart.
        torch_device: where the step will run.
    """

    def walk(mode: RememberingFakeMode | None) -> ResidentRun:
        model = hollow_copy(workload.model, torch_device)
        let_hooks_raise(model, is_fake=mode is not None)
        left: list[list[int]] = []
        with CountingMeter() as meter:
            meter.walks(mode)
            for parameter in model.parameters():
                meter.count(parameter)
            weights_bytes = meter.used_bytes
            for name in layers:
                module = model.get_submodule(name)
                module.register_forward_pre_hook(lambda *_: left[-1].append(meter.used_bytes))
            for batch in workload.batches:
                given = placed(batch, mode, torch_device)
                left.append([meter.used_bytes])
                with autocast(torch_device, workload.autocast_dtype):
                    loss = workload.loss_of(model, given)
                left[-1].append(meter.used_bytes)
                with walked_backward(is_fake=mode is not None):
                    loss.backward()
        # What runs before the first layer counts as its own, what runs behind each layer, too.
        marks = left[0][:1] + left[0][2:]
        activation_bytes = tuple(after - before for before, after in pairwise(marks))
        calls = StepCalls(meter.take_calls())
        return ResidentRun(meter.peak_bytes, weights_bytes, activation_bytes, calls)

    return faked(walk)
