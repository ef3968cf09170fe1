"""Runs a step on tensors without memory to learn what it needs before anything is allocated.

The same executor walks the same schedule over a copy of the model made of fake tensors, so the
peak it meters is the peak the real step will have, activations and temporaries included.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, pairwise
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.plan_record import Activations
from openwafer.training.store.layout import RecordLayout
from openwafer.training.stream.device.device import CpuDevice, MemoryMeter, Submitted, Transfer
from openwafer.training.stream.device.weights import DeviceWeights, WeightUses
from openwafer.training.stream.execute.attachment import Function
from openwafer.training.stream.execute.executor import Executor
from openwafer.training.stream.execute.layer_state import Order
from openwafer.training.stream.execute.micro_batches import Forward, run_forward
from openwafer.training.stream.execute.pass_watch import CallKind
from openwafer.training.stream.execute.passes import PassObserver
from openwafer.training.stream.execute.snapshot import Snapshot
from openwafer.training.stream.forms.weight_form import forms_of
from openwafer.training.stream.layers import PINNED, Partition
from openwafer.training.stream.link.host_link import DryLink
from openwafer.training.stream.plan.backward_failures import let_hooks_raise, walked_backward
from openwafer.training.stream.plan.changed_state import Derived, harmless_names
from openwafer.training.stream.plan.fake_tensors import RememberingFakeMode
from openwafer.training.stream.plan.held_gradients import HeldGradients
from openwafer.training.stream.plan.hollow_copy import hollow_copy
from openwafer.training.stream.plan.like_layers import CallForm, LayerCalls, with_one_array
from openwafer.training.stream.plan.operators import (
    ASK_DEVICE,
    Allocation,
    CountingMeter,
    StepCalls,
)
from openwafer.training.stream.plan.uncounted_writes import UNCOUNTED, UncountedWrites
from openwafer.training.stream.plan.unrepeatable import ForwardWatch
from openwafer.training.stream.schedule import Kind, Schedule, UpdateTiming, Visit
from openwafer.training.torch_private import (
    DisableTorchFunction,
    FakeTensorMode,
    disable_current_modes,
    execution_engine,
    pytree,
)

Batch = object
Result = TypeVar("Result")
LossOf = Callable[[nn.Module, Batch], torch.Tensor]

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


@dataclass(frozen=True)
class Workload:
    """What a step computes.

    Attributes:
        model: the model, its parameters on any device, the meta device too.
        batches: one example a micro-batch, trees of tensors of the sizes of the real ones.
        loss_of: runs the model on a batch and returns its scalar loss.
        autocast_dtype: dtype of the autocast that the step runs under, or ``None``.
        allocation: makes the context in which it allocates.
        is_graded: whether backward follows, or the batches are only evaluated.
        held_gradients: what some steps hold beside what this one shows.
        meets_others: whether micro-batches that are not shown come between two of these.
    """

    model: nn.Module
    batches: Sequence[Batch]
    loss_of: LossOf
    autocast_dtype: torch.dtype | None = None
    allocation: Allocation = nullcontext
    is_graded: bool = True
    held_gradients: HeldGradients = HeldGradients()  # noqa: RUF009 - frozen
    meets_others: bool = False


@dataclass(frozen=True)
class DryRun:
    """What a step needs.

    Attributes:
        peak_bytes: most device bytes held at once.
        visits: layer calls in forward order.
        received: parameters that get a gradient.
        misused: parameters used outside the layers that hold them.
        activation_bytes: device bytes that each visit's forward leaves behind.
        calls: of operators.
        kinds: of the model's calls.
        left_bytes: device bytes that the forward leaves behind, all in all.
        host_bytes: most bytes held at once in host memory beside the store: what is put aside
            there, and what the device holds where it is host memory, but for weights that are lent.
        depends_on_values: whether the step was computed with random weights, so that with others
            it may need more.
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
    left_bytes: int = 0
    host_bytes: int = 0
    depends_on_values: bool = False
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


@cache
def _computes(operator: Any) -> bool:
    return operator.namespace != "prim" and not operator.is_view


@cache
def _writes(operator: Any) -> bool:
    return bool(operator._schema.is_mutable)  # noqa: SLF001 - torch has no other way to it


def _writes_foreign(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator writes to a tensor that is not fake; inputs alone are taken as fake."""
    if not _writes(operator):
        return False
    schema = operator._schema  # noqa: SLF001 - torch has no other way to it
    written = {
        argument.name: index
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    values = [
        args[index] if index < len(args) else kwargs.get(name) for name, index in written.items()
    ]
    return any(type(leaf) is torch.Tensor for leaf in pytree.tree_leaves(values))


class _WatchingMeter(CountingMeter):
    """A meter that also notes uses of weights that are not on the device, and writes to others.

    Attributes:
        host_peak_bytes: see :attr:`DryRun.host_bytes`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.host_peak_bytes = 0
        self._aside = MemoryMeter()
        self.weights: DeviceWeights | None = None
        self.misused: dict[str, None] = {}
        self.written: dict[str, None] = {}
        self.offset: dict[str, None] = {}
        self.uncounted = UncountedWrites()
        # Called where an operator on fake tensors writes to one that is not.
        self.on_foreign_write: Callable[[], None] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ASK_DEVICE:
            return args[0].fake_device
        # Modes that watch functions have seen this one's; to them each shape read here is another.
        with DisableTorchFunction():
            return self._watched(func, types, args, kwargs)

    def _watched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if self.weights is not None and not self.is_paused and _computes(func):
            for leaf in pytree.arg_tree_leaves(*args, **(kwargs or {})):
                if isinstance(leaf, torch.Tensor):
                    name = self.weights.released_parameter(leaf)
                    if name is not None:
                        self.misused[name] = None
            if _writes(func):
                self._note_writes(self.weights, func, args, kwargs or {})
        if self.weights is not None and func is torch.ops.aten.as_strided.default:
            self._note_offset(self.weights, *args, **(kwargs or {}))
        if self.on_foreign_write is not None and _writes_foreign(func, args, kwargs or {}):
            self.on_foreign_write()
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self._note_host_bytes(out if self.is_paused and _computes(func) else None)
        return out

    def _note_host_bytes(self, put_aside: object) -> None:
        for leaf in () if put_aside is None else pytree.tree_leaves(put_aside):
            if isinstance(leaf, torch.Tensor) and not self.counts(leaf):
                self._aside.count(leaf)
        if self.used_bytes + self._aside.used_bytes <= self.host_peak_bytes:
            return
        held = self._aside.used_bytes
        if self.weights is not None and self.weights.device.torch_device.type == "cpu":
            held += self.used_bytes - self.weights.lent_bytes
        self.host_peak_bytes = max(self.host_peak_bytes, held)

    def _note_offset(
        self,
        weights: DeviceWeights,
        tensor: torch.Tensor,
        _size: object,
        _stride: object,
        storage_offset: int | None = None,
    ) -> None:
        """A weight that shares its storage is not where it would be in one of its own."""
        # What is as large as its storage is a slot, whose views this program takes.
        is_whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        name = None if storage_offset is None or is_whole else weights.bound_parameter(tensor)
        if name is not None and weights.offset_bytes(name):
            self.offset[name] = None

    def _note_writes(self, weights: DeviceWeights, func: Any, args: Any, kwargs: Any) -> None:
        for argument, value in zip(func._schema.arguments, args, strict=False):  # noqa: SLF001
            if argument.is_write:
                if isinstance(value, torch.Tensor):
                    self.uncounted.note_write(value)
                for leaf in pytree.tree_leaves((value, kwargs)):
                    name = weights.bound_parameter(leaf) if torch.is_tensor(leaf) else None
                    if name is not None:
                        self.written[name] = None


_GRADIENT: Final[Any] = torch.Tensor.grad
_OF_GRADIENT: Final = (_GRADIENT.__get__, _GRADIENT.__set__)


class _SavedWeights(TorchFunctionMode):
    """Refuses a backward that reads or writes ``.grad`` of a weight that it had saved.

    In a plain loop that tensor is the parameter. Here it is another tensor of the same values, as
    it is under any saved-tensor hooks, and a gradient that is written to it is lost.
    """

    def __init__(self, weights: DeviceWeights, visits: Sequence[Visit]) -> None:
        super().__init__()
        self._weights = weights
        records = chain.from_iterable(visit.records for visit in visits)
        self._num_calls = Counter(chain.from_iterable(map(weights.names, records)))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _OF_GRADIENT:
            name = self._weights.bound_parameter(args[0])
            is_parameter = isinstance(args[0], nn.Parameter)
            is_given = func == _GRADIENT.__set__ and args[1] is not None
            if name is not None and is_parameter and is_given and self._num_calls[name] > 1:
                raise error(
                    "gradient-of-calls",
                    f"a backward gives {name!r} its .grad, and its layer is called more than once "
                    "in a forward: the gradient of each call leaves for the store by itself",
                    help="return the gradient from backward, or keep the layer's weights in a "
                    "tensor of your own, such as weight.main_grad",
                )
            if name is not None and not is_parameter:
                raise error(
                    "saved-weight-gradient",
                    f"a backward uses .grad of the saved weight {name!r}, which is not the "
                    "parameter here: a gradient written to it would be lost",
                    help="return the gradient from backward; to add it up elsewhere, keep the "
                    "parameter, ctx.weight = weight, and use a tensor of your own, such as "
                    "weight.main_grad",
                )
        return func(*args, **(kwargs or {}))


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


def dry_run(
    workload: Workload,
    split: Partition,
    layouts: Mapping[str, RecordLayout],
    torch_device: torch.device,
    settings: DryRunSettings,
) -> DryRun:
    """Run one step without its weights.

    Args:
        workload: the step.
        split: the model's layers; the model's forwards must be its own.
        layouts: records of the split.
        torch_device: where the step will run.
        settings: how to run it.

    Tensors are fake, so nothing is computed and nothing allocated, unless the model's control flow
    depends on values (a router of experts): then the step is computed with random weights, one
    layer in memory at a time.
    """

    return faked(partial(_walk, workload, split, layouts, torch_device, settings))


def harmless_changes(
    workload: Workload,
    split: Partition,
    layouts: Mapping[str, RecordLayout],
    torch_device: torch.device,
    settings: DryRunSettings,
) -> tuple[str, ...]:
    """Names of what forwards change that systems may each have for themselves."""

    def walk(mode: RememberingFakeMode | None) -> tuple[str, ...]:
        with _staged(workload, split, layouts, torch_device, settings, mode) as stage:
            return stage.harmless()

    return faked(walk)


def shortened_run(
    workload: Workload,
    split: Partition,
    layouts: Mapping[str, RecordLayout],
    torch_device: torch.device,
    settings: DryRunSettings,
) -> DryRun | None:
    """As :func:`dry_run`, on fake tensors, with layers skipped.

    Returns:
        ``None`` where the model's code does not do without these layers. The peak is that of a
        whole run if they are like those before them; calls, gradients and host bytes lack theirs.
    """
    split, layouts = with_one_array(split, layouts, settings.skipped)
    try:
        with RememberingFakeMode(allow_non_fake_inputs=True) as mode:
            return _walk(workload, split, layouts, torch_device, settings, mode)
    except FAILURES:
        return None


def _walk(
    workload: Workload,
    split: Partition,
    layouts: Mapping[str, RecordLayout],
    torch_device: torch.device,
    settings: DryRunSettings,
    mode: RememberingFakeMode | None,
) -> DryRun:
    with _staged(workload, split, layouts, torch_device, settings, mode) as stage:
        return stage.run()


@contextmanager
def _staged(
    workload: Workload,
    split: Partition,
    layouts: Mapping[str, RecordLayout],
    torch_device: torch.device,
    settings: DryRunSettings,
    mode: RememberingFakeMode | None,
) -> "Iterator[_Stage]":
    device = DryDevice(torch_device, overlaps=settings.overlaps)
    stage = _Stage(workload, split, layouts, device, mode)
    stage.configure(settings)
    try:
        yield stage
    finally:
        # Hooks on parameters hold what they belong to in cycles that are never collected.
        stage.executor.detach()


class _NotedUses(WeightUses):
    """Notes what a step's code does with weights, which the step is then refused for."""

    def __init__(self, meter: _WatchingMeter, pinned: Sequence[str]) -> None:
        self._meter, self._pinned = meter, pinned

    def written(self, name: str) -> None:
        """See :class:`WeightUses`."""
        self._meter.written[name] = None

    def kept(self, names: Sequence[str]) -> None:
        """See :class:`WeightUses`."""
        self._meter.misused.update(dict.fromkeys(n for n in names if n not in self._pinned))

    def saved(self, layer: str, tensor: torch.Tensor) -> None:
        """See :class:`WeightUses`."""
        self._meter.uncounted.note_saved(layer, tensor)


class _Stage(PassObserver):
    """A hollow copy of the model with an executor of its own."""

    def __init__(
        self,
        workload: Workload,
        split: Partition,
        layouts: Mapping[str, RecordLayout],
        device: DryDevice,
        mode: RememberingFakeMode | None,
    ) -> None:
        self.workload = workload
        self.device = device
        self.watch: ForwardWatch | None = None
        self.order = Order.FALLING
        self.changed: tuple[str, ...] = ()
        self.state_bytes = 0
        self.is_fake = mode is not None
        torch_device = device.torch_device
        self.model = hollow_copy(workload.model, torch_device)
        let_hooks_raise(self.model, is_fake=self.is_fake)
        self.batches = [placed(batch, mode, torch_device) for batch in workload.batches]
        self.depends_on_values = mode is None
        self.device.meter = self.meter = _WatchingMeter()
        if mode is not None:
            self.meter.call = mode.call
        # A run that skips layers knows few of their weights.
        forms = {
            name: form
            for name, form in forms_of(self.model, split.sliced).items()
            if not split.record_of.keys().isdisjoint(form.stored)
        }
        uses = _NotedUses(self.meter, split.records.get(PINNED, ()))
        self.weights = DeviceWeights(forms, layouts, self.device, uses=uses)
        self.meter.weights = self.weights
        for record in split.records:
            self.weights.unbind(record)
        self.link = DryLink(
            self.weights, fills_weights=mode is None, overlaps=device.is_asynchronous
        )
        self.executor = Executor(self.model, split, self.weights, self.link, call=self._call)
        self.executor.observe(self)

    def configure(self, settings: DryRunSettings) -> None:
        """Set the executor up."""
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

    def _call(self, layer: str, function: Function, args: Any, kwargs: Any) -> Any:
        with nullcontext() if self.watch is None else self.watch.around(layer, args, kwargs):
            return self.calls(layer, function, args, kwargs)

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
            if losses and not self._cannot_go_back():
                self._backward(losses)
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
            left_bytes=left_bytes,
            host_bytes=self.meter.host_peak_bytes,
            depends_on_values=self.depends_on_values,
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
        nested = self.executor.nested
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
            saved = _SavedWeights(self.weights, self.executor.visits())
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


def faked(walk: Callable[[RememberingFakeMode | None], Result]) -> Result:
    """Run ``walk`` on fake tensors, or on real ones where an operator has no fake form."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    try:
        with RememberingFakeMode(allow_non_fake_inputs=True) as mode:
            return walk(mode)
    except RuntimeError:
        # Data-dependent control flow, or an operator without a fake form: a genuine fault of the
        # model comes up again below.
        return walk(None)
    finally:
        log.disabled = was_disabled


def autocast(
    torch_device: torch.device, dtype: torch.dtype | None
) -> AbstractContextManager[object]:
    """Autocast to ``dtype``; a context that does nothing for ``None``.

    A cast weight is not kept for a second use: it would stay on the device until the forward ends,
    and the gradients of its uses would be added in ``dtype``.
    """
    if dtype is None:
        return nullcontext()
    return torch.autocast(torch_device.type, dtype=dtype, cache_enabled=False)


def placed(batch: Batch, mode: FakeTensorMode | None, torch_device: torch.device) -> Batch:
    """A copy of a batch on a device, fake where a mode is given."""

    def place(tensor: torch.Tensor) -> torch.Tensor:
        # A leaf: a graph that leads to it is the caller's, and no fake mode can look at it.
        with disable_current_modes():
            alone = tensor.detach().requires_grad_(tensor.requires_grad)
        moved = alone if mode is None else mode.from_tensor(alone)
        return moved.to(torch_device)

    return pytree.tree_map_only(torch.Tensor, place, batch)
