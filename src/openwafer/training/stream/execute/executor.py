"""Walks a schedule while the model's own forward and autograd's own backward run.

The executor takes the place of each layer's ``forward``. When a layer is called it brings its
weights to the device, runs the layer under the saved-tensor hooks of its activation policy, and
goes on with the schedule. In the backward pass, hooks on the layers' outputs say which layer is
next, and hooks on the parameters say when a gradient is complete. The schedule only decides when
things happen: a layer that it does not expect is served on demand.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from weakref import WeakMethod

import torch
from torch import nn
from torch.utils import _pytree as pytree

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.metrics.plan_record import Activations
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.device.recorder import Recorder
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.execute.activations import (
    Call,
    Frame,
    changed_buffers,
    frame_for,
)
from openwafer.training.stream.execute.arriving_gradients import ArrivingGradients
from openwafer.training.stream.execute.compiled_layers import FORWARD, call_of
from openwafer.training.stream.execute.pass_log import PassLog
from openwafer.training.stream.execute.stand_ins import Function, stand_in
from openwafer.training.stream.layers import PINNED, Layer, Partition
from openwafer.training.stream.link.host_link import HostLink
from openwafer.training.stream.schedule import Action, Kind, Schedule, Visit

COMPUTE = (Kind.FORWARD, Kind.BACKWARD)


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
        self.on_backward: Callable[[], None] = lambda: None
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
        self._is_end_due = False
        self._backward_visit: tuple[PassLog, int] | None = None
        self._fetching: set[str] = set()
        self._nested: dict[str, None] = {}
        self._nested_records = _records_of(split, is_nested=True)
        self._nested_records -= _records_of(split, is_nested=False)
        self._unplanned_records: set[str] = set()
        self._gradients = ArrivingGradients(split, weights.parameters)
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
        for part in self._parts_beside_layers(model):
            run_it = self.run_root if part is model else self.run_part
            self._undo.callback(stand_in(part, FORWARD, part.forward, run_it))
        for name, parameter in self.weights.parameters.items():
            if parameter.requires_grad:
                # Held weakly: a garbage collector does not see what these hooks hold.
                take = partial(_call, WeakMethod(self._take_gradient), name)
                handle = parameter.register_post_accumulate_grad_hook(take)
                self._undo.callback(handle.remove)

    def _parts_beside_layers(self, model: nn.Module) -> list[nn.Module]:
        """The model, and of its modules those with weights that are no layer and in none."""
        streamed = {
            inner for layer in self.split.layers for inner in self._modules[layer.name].modules()
        }
        return [
            module
            for module in model.modules()
            if module is model
            or (module not in streamed and next(module.parameters(), None) is not None)
        ]

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
        self.log = PassLog()
        is_training = torch.is_grad_enabled()
        self._open(self.schedule.actions if self.schedule and is_training else ())

    def _open(self, actions: tuple[Action, ...]) -> None:
        self._is_in_pass = True
        self._is_end_due = False
        self._actions = actions
        self._cursor = 0
        self._backward_visit = None
        if PINNED in self.split.records:
            self.ensure(PINNED)
        self.link.begin_pass(actions)
        self._run_to_compute()

    def _join_backward(self) -> None:
        """See that a pass is open until the backward under way ends.

        A graph may outlive its pass: backward is called a second time, or another forward has
        come between the two. The weights then come on demand.
        """
        if not self._is_in_pass:
            self._open(())
        if not self._is_end_due:
            self._is_end_due = True
            self.on_backward()
            torch.autograd.Variable._execution_engine.queue_callback(self.end_pass)

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

    def begin_backward(self, log: PassLog, visit: int) -> None:
        """The backward pass has come to a visit of a pass, mostly of the one that is open."""
        if torch.is_grad_enabled():
            raise _graph_of_backward(log.visits[visit])
        self._join_backward()
        last = self._backward_visit
        if last is not None:
            if last[0] is log and last[1] == visit:
                return
            self._release_nested()
            self._release_unplanned()
        self._backward_visit = log, visit
        layer = self._layers[log.visits[visit]]
        if log is self.log:
            log.backward.append(visit)
            self._run_to_compute()
            self._reach(Kind.BACKWARD, layer)
        else:
            self._bring(layer)
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
        self._bring(layer)

    def _bring(self, layer: Layer) -> None:
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
        self._join_backward()
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
        self._join_backward()
        record = self._gradients.note(name)
        if record is not None:
            self._push(record)

    def _push(self, record: str) -> None:
        gradients = self._gradients.take(record)
        if gradients:
            with self.device.host_section():
                self.link.push(record, gradients)

    # Layers.

    def run_layer(self, layer: Layer, function: Function, args: Any, kwargs: Any) -> Any:
        """Run one call of a layer; the layer's ``forward`` is replaced by this."""
        if not self._is_in_pass:
            return self._run_pass(partial(self.run_layer, layer, function), (args, kwargs), {})
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
        log = self.log
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(lambda _: self.begin_backward(log, visit))

    def run_root(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Run the model's own forward: a pass, unless micro-batches rotate in one."""
        if self.pause is not None:
            return function(*args, **kwargs)
        return self._run_pass(function, args, kwargs)

    def run_part(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Run the forward of a module beside or around the layers: a pass if called by itself."""
        if self._is_in_pass:
            return function(*args, **kwargs)
        return self._run_pass(function, args, kwargs)

    def _run_pass(self, function: Function, args: Any, kwargs: Any) -> Any:
        self.begin_pass()
        if torch.is_grad_enabled():
            # For what runs beside layers: pinned weights, which may move before backward.
            with Frame(self.weights, self._use_saved).hooks():
                return function(*args, **kwargs)
        out = function(*args, **kwargs)
        self.end_pass()
        return out

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


def _call(method: "WeakMethod[Callable[..., None]]", *args: Any) -> None:
    alive = method()
    if alive is not None:
        alive(*args)


def _graph_of_backward(layer: str) -> OpenwaferError:
    return error(
        "backward-of-backward",
        f"backward(create_graph=True) came to the streamed layer {layer!r}: its graph would keep "
        "weights that leave the device",
        help="leave create_graph out, or give a device memory in which the whole model is resident",
    )
