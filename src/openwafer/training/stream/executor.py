"""Walks a schedule while the model's own forward and autograd's own backward run.

The executor takes the place of each layer's ``forward``. When a layer is called it brings its
weights to the device, runs the layer under the saved-tensor hooks of its activation policy, and
goes on with the schedule. In the backward pass, hooks on the layers' outputs say which layer is
next, and hooks on the parameters say when a gradient is complete. The schedule only decides when
things happen: a layer that it does not expect is served on demand.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from openwafer.training.stream.activations import Activations, Call, changed_buffers, frame_for
from openwafer.training.stream.arriving_gradients import ArrivingGradients
from openwafer.training.stream.compiled_layers import FORWARD, call_of
from openwafer.training.stream.device import Device
from openwafer.training.stream.device_weights import DeviceWeights
from openwafer.training.stream.layers import PINNED, Layer, Partition
from openwafer.training.stream.link import HostLink
from openwafer.training.stream.recorder import Recorder
from openwafer.training.stream.schedule import Action, Kind, Schedule, Visit
from openwafer.training.stream.stand_ins import Function, stand_in

COMPUTE = (Kind.FORWARD, Kind.BACKWARD)


@dataclass
class PassLog:
    """What happened in the pass under way, or in the last one.

    Attributes:
        visits: layer calls in forward order, by layer name.
        backward: indices of the visits that the backward pass reached.
        unplanned: layers served on demand although a schedule was there.
    """

    visits: list[str] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    unplanned: list[str] = field(default_factory=list)


class Executor:
    """Runs one model's layers with streamed weights.

    Args:
        model: its parameters are bound to device slots while their layers run; the buffers must be
            on the device.
        split: the model's layers.
        weights: slots on the device.
        link: the host side.
        device: where the model runs.
        recorder: receives times and device memory.
    """

    def __init__(
        self,
        model: nn.Module,
        split: Partition,
        weights: DeviceWeights,
        link: HostLink,
        device: Device,
        recorder: Recorder | None = None,
    ) -> None:
        self.split = split
        self.weights = weights
        self.link = link
        self.device = device
        self.schedule: Schedule | None = None
        self.policies: Mapping[str, Activations] = {}
        self.default_policy = Activations.KEEP
        self.recorder = recorder or Recorder(device)
        self.log = PassLog()
        self.nested_capacity_bytes = 0
        self.on_leave: Callable[[], None] = lambda: None
        # Indices of the buffers that a recomputed layer's forward changes, once it has run.
        self.changing_buffers: dict[str, tuple[int, ...]] = {}
        self.compares_buffers = True
        # What happens where a layer begins; the rotation of micro-batches replaces it.
        self.pause: Callable[[Layer], int] | None = None
        self._layers = {layer.name: layer for layer in split.layers}
        self._actions: tuple[Action, ...] = ()
        self._cursor = 0
        self._is_inside_layer = False
        self._is_in_pass = False
        self._backward_visit: int | None = None
        self._fetching: set[str] = set()
        self._nested: dict[str, None] = {}
        self._nested_records = _records_of(split, is_nested=True)
        self._nested_records -= _records_of(split, is_nested=False)
        self._unplanned_records: set[str] = set()
        self._gradients = ArrivingGradients(split.records, weights.parameters)
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._undo = ExitStack()
        self._attach(model)

    def expect_gradients(self, names: Sequence[str]) -> None:
        """Say which parameters get a gradient, so that a record is pushed without the others."""
        self._gradients.expect(names)

    # Hooks on the model.

    def _attach(self, model: nn.Module) -> None:
        for layer in self.split.layers:
            module = self._modules[layer.name]
            name, function = call_of(module)
            run = partial(self.run_layer, layer)
            self._undo.callback(stand_in(module, name, function, run))
        self._undo.callback(stand_in(model, FORWARD, model.forward, self._run_model))
        for name, parameter in self.weights.parameters.items():
            if parameter.requires_grad:
                handle = parameter.register_post_accumulate_grad_hook(
                    partial(self._take_gradient, name)
                )
                self._undo.callback(handle.remove)

    def detach(self) -> None:
        """Give the model its own forward methods back."""
        self._undo.close()

    # One pass.

    @property
    def is_in_pass(self) -> bool:
        """Whether a pass has begun whose backward has not ended."""
        return self._is_in_pass

    def begin_pass(self) -> None:
        """Start a pass: forward, and backward where gradients are wanted."""
        if self._is_in_pass:
            self.end_pass()
        self._is_in_pass = True
        self.log = PassLog()
        is_training = torch.is_grad_enabled()
        self._actions = self.schedule.actions if self.schedule and is_training else ()
        self._cursor = 0
        self._backward_visit = None
        if PINNED in self.split.records:
            self.ensure(PINNED)
        self.link.begin_pass(self._actions)
        self._run_to_compute()

    def end_pass(self) -> None:
        """Finish a pass: push what is left, release everything but the pinned record."""
        self._run_rest()
        for record in self._gradients.begun:
            self._push(record)
        for record in self.split.records:
            if record != PINNED and self.weights.holds(record):
                self.release(record)
        self._nested.clear()
        self._unplanned_records.clear()
        self._is_in_pass = False
        self.recorder.end_backward()
        self.link.end_pass()
        if PINNED in self.split.records and self.weights.holds(PINNED):
            self.release(PINNED)

    def abandon_pass(self) -> None:
        """Leave a pass that failed: weights off the device, loans back, gradients forgotten."""
        self._is_in_pass = False
        self._is_inside_layer = False
        self._cursor = len(self._actions)
        self._fetching.clear()
        self._nested.clear()
        self._unplanned_records.clear()
        self.recorder.end_backward()
        self.link.abandon()
        for record in self.split.records:
            if self.weights.holds(record):
                self.weights.drop(record)
        self._gradients.forget()

    def enter(self, layer: Layer) -> int:
        """Bring a layer's weights to the device; return the index of its visit."""
        self.log.visits.append(layer.name)
        self._reach(Kind.FORWARD, layer)
        return len(self.log.visits) - 1

    def leave(self) -> None:
        """Go on with the schedule after a layer's forward."""
        self.on_leave()
        self._release_nested()
        self._release_unplanned()
        self._run_to_compute()

    def begin_backward(self, visit: int) -> None:
        """The backward pass has come to a visit."""
        if visit == self._backward_visit:
            return
        if self._backward_visit is None:
            torch.autograd.Variable._execution_engine.queue_callback(self.end_pass)
        else:
            self._release_nested()
            self._release_unplanned()
        self._backward_visit = visit
        self.log.backward.append(visit)
        self._run_to_compute()
        layer = self._layers[self.log.visits[visit]]
        self._reach(Kind.BACKWARD, layer)
        self.recorder.begin_backward(layer.name)

    def _reach(self, kind: Kind, layer: Layer) -> None:
        """Move the cursor past a compute action and see that its weights are there."""
        found = self._find(kind, layer.name)
        if found is None:
            if self.schedule is not None and self._actions:
                self.log.unplanned.append(layer.name)
        else:
            while self._cursor < found:
                self._do(self._actions[self._cursor])
                self._cursor += 1
            self._cursor += 1
        for record in layer.records:
            if not self.weights.holds(record):
                self._unplanned_records.add(record)
            self.ensure(record)

    def planned_layer(self) -> str | None:
        """The layer that the schedule wants next, if it wants one."""
        if self._cursor >= len(self._actions):
            return None
        action = self._actions[self._cursor]
        return action.target if action.kind is Kind.FORWARD else None

    def _find(self, kind: Kind, target: str) -> int | None:
        for position in range(self._cursor, len(self._actions)):
            action = self._actions[position]
            if action.kind is kind and action.target == target:
                return position
            if kind is Kind.FORWARD and action.kind is Kind.BACKWARD:
                return None
        return None

    def _run_to_compute(self) -> None:
        while self._cursor < len(self._actions):
            action = self._actions[self._cursor]
            if action.kind in COMPUTE:
                break
            self._do(action)
            self._cursor += 1
        self.link.advance(self._cursor)

    def _run_rest(self) -> None:
        for action in self._actions[self._cursor :]:
            if action.kind is Kind.RELEASE:
                self._do(action)
        self._cursor = len(self._actions)

    def _do(self, action: Action) -> None:
        if action.kind is Kind.FETCH and not self.weights.holds(action.target):
            self._fetch(action.target, keeps_loan=action.keeps_loan, lends=self.link.lends_memory)
        elif action.kind is Kind.RELEASE and self.weights.holds(action.target):
            self.release(action.target)

    # Weights.

    def ensure(self, record: str) -> None:
        """Return once a record's weights are bound, fetching them now if nothing else has."""
        if not self.weights.holds(record):
            self._fetch(record, keeps_loan=False)
        if record in self._fetching:
            with self.recorder.waiting():
                lent = self.link.complete(record)
            self._fetching.discard(record)
            self.weights.bind(record, lent)

    def _fetch(self, record: str, *, keeps_loan: bool, lends: bool = False) -> None:
        """Begin a fetch; what the schedule does not bound comes into slots and is never lent."""
        slot = None
        if lends:
            self.weights.expect(record)
        else:
            slot = self.weights.take_slot(record)
        self._fetching.add(record)
        with self.device.host_section():
            self.link.fetch(record, slot, keeps_loan=keeps_loan)

    def release(self, record: str) -> None:
        """Take a record's weights off the device."""
        if record in self._fetching:
            self.link.complete(record)
            self._fetching.discard(record)
        self.weights.drop(record)
        with self.device.host_section():
            self.link.release(record)

    def use_nested(self, record: str) -> None:
        """Bring a record of a layer inside the running one, in the place of older ones."""
        if not self.weights.holds(record):
            self._make_room(self.weights.num_bytes(record))
            self._nested[record] = None
        elif record in self._nested:
            self._nested[record] = self._nested.pop(record)
        self.ensure(record)

    def _use_saved(self, record: str) -> None:
        """Bring back a record whose weights the backward pass wants."""
        if record in self._nested_records:
            self.use_nested(record)
        else:
            self.ensure(record)

    def _make_room(self, num_bytes: int) -> None:
        held = [record for record in self._nested if self.weights.holds(record)]
        total = sum(self.weights.num_bytes(record) for record in held)
        for record in held:
            if total + num_bytes <= self.nested_capacity_bytes:
                break
            total -= self.weights.num_bytes(record)
            del self._nested[record]
            self.release(record)

    def _release_nested(self) -> None:
        for record in self._nested:
            if self.weights.holds(record):
                self.release(record)
        self._nested.clear()

    def _release_unplanned(self) -> None:
        for record in self._unplanned_records:
            if self.weights.holds(record):
                self.release(record)
        self._unplanned_records.clear()

    # Gradients.

    def _take_gradient(self, name: str, parameter: torch.Tensor) -> None:
        if not self._is_in_pass:
            return
        record = self._gradients.note(name)
        if record is not None:
            self._push(record)

    def _push(self, record: str) -> None:
        gradients = self._gradients.take(record)
        if gradients:
            with self.device.host_section():
                self.link.push(record, gradients)

    # Layers.

    def _run_model(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Run a call of the model: it begins a pass unless one is open."""
        if self.pause is not None:
            return function(*args, **kwargs)
        self.begin_pass()
        out = function(*args, **kwargs)
        if not torch.is_grad_enabled():
            self.end_pass()
        return out

    def run_layer(self, layer: Layer, function: Function, args: Any, kwargs: Any) -> Any:
        """Run one call of a layer; the layer's ``forward`` is replaced by this."""
        if not self._is_in_pass:
            return function(*args, **kwargs)
        if self._is_inside_layer:
            for record in layer.records:
                self.use_nested(record)
            return function(*args, **kwargs)
        pause = self.pause
        visit = self.enter(layer) if pause is None else pause(layer)
        self._is_inside_layer = True
        try:
            with self.recorder.forward(layer.name):
                out = self._run_framed(layer, function, args, kwargs)
        finally:
            self._is_inside_layer = False
            torch.clear_autocast_cache()
        if torch.is_grad_enabled():
            self._watch(out, visit)
        if pause is None:
            self.leave()
        return out

    def _run_framed(self, layer: Layer, function: Function, args: Any, kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        policy = self.policies.get(layer.name, self.default_policy)
        buffers = tuple(self._modules[layer.name].buffers())
        is_known = policy is not Activations.RECOMPUTE or layer.name in self.changing_buffers
        before = () if is_known else tuple(buffer.clone() for buffer in buffers)
        changing = self.changing_buffers.get(layer.name, range(len(buffers)))
        rerun = partial(self._rerun, layer, function)
        call = Call(layer.name, rerun, args, kwargs, tuple(buffers[index] for index in changing))
        with frame_for(policy, self.weights, self._use_saved, call).hooks():
            out = function(*args, **kwargs)
        if not is_known and self.compares_buffers:
            self.changing_buffers[layer.name] = changed_buffers(buffers, before)
        return out

    def _rerun(self, layer: Layer, function: Function, *args: Any, **kwargs: Any) -> Any:
        self._is_inside_layer = True
        try:
            with self.recorder.recompute(layer.name):
                return function(*args, **kwargs)
        finally:
            self._is_inside_layer = False
            torch.clear_autocast_cache()

    def _watch(self, out: object, visit: int) -> None:
        hook = partial(_begin_backward, self, visit)
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(hook)

    def visits(self) -> tuple[Visit, ...]:
        """The layer calls of the last pass, for a schedule."""
        reached = set(self.log.backward)
        return tuple(
            Visit(name, self._layers[name].records, index in reached)
            for index, name in enumerate(self.log.visits)
        )


def _records_of(split: Partition, *, is_nested: bool) -> set[str]:
    layers = [layer for layer in split.layers if (layer.parent is not None) is is_nested]
    return {record for layer in layers for record in layer.records}


def _begin_backward(executor: Executor, visit: int, _: torch.Tensor) -> None:
    executor.begin_backward(visit)
