"""Walks a schedule while the model's own forward and autograd's own backward run.

The executor takes the place of each layer's ``forward``. When a layer is called it brings its
weights to the device, runs the layer under the saved-tensor hooks of its activation policy, and
goes on with the schedule. In the backward pass, hooks on the layers' outputs say which layer is
next, and hooks on the parameters say when a gradient is complete. The schedule only decides when
things happen: a layer that it does not expect is served on demand.

One state machine: :class:`~openwafer.training.stream.execute.passes.Phase` names its states.

.. code-block:: text

    IDLE -> FORWARD <-> LAYER            begin_pass; a layer's call and its end
            FORWARD -> BACKWARD -> IDLE  the first hook of a backward; its end
    IDLE -> BACKWARD                     a backward whose pass has ended: its graph was kept
                       BACKWARD <-> RECOMPUTE (or LAYER, where user code calls layers in backward)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import nn

from openwafer.training.plan_record import Activations
from openwafer.training.stream.device.device import Recorder
from openwafer.training.stream.device.layer_backend import TORCH, LayerBackend, LayerCall
from openwafer.training.stream.device.weights import DeviceWeights
from openwafer.training.stream.execute.activations import Call, Frame, frame_for
from openwafer.training.stream.execute.arriving_gradients import (
    ArrivingGradients,
    before_accumulation,
    renew_accumulators,
)
from openwafer.training.stream.execute.attachment import Function, attach_calls, attach_hooks
from openwafer.training.stream.execute.expert_pass import ExpertPass
from openwafer.training.stream.execute.pass_watch import ROOT, PassWatch
from openwafer.training.stream.execute.passes import (
    MicroBatchOrder,
    Order,
    PassLog,
    PassObserver,
    Phase,
    TransformsRefused,
    Walk,
    graph_of_backward,
)
from openwafer.training.stream.execute.routes import Routes
from openwafer.training.stream.execute.snapshot import LayerState
from openwafer.training.stream.execute.thread_state import SharedCasts
from openwafer.training.stream.layers import PINNED, Layer, Partition
from openwafer.training.stream.link.host_link import HostLink
from openwafer.training.stream.schedule import Action, Kind, Schedule, UpdateTiming, Visit
from openwafer.training.stream.step_plan import StepPlan, too_many_calls
from openwafer.training.torch_private import execution_engine, pytree


class NestedRecords:
    """Which nested records are on the device; the least recently used make room for others.

    Args:
        split: the model's layers.
        weights: slots on the device.
        fetch: begins to bring a record to the device.
        release: takes a record off the device.

    Attributes:
        names: of the nested records.
        capacity_bytes: device bytes for all of them.
    """

    def __init__(
        self,
        split: Partition,
        weights: DeviceWeights,
        fetch: Callable[[str], None],
        release: Callable[[str], None],
    ) -> None:
        self.capacity_bytes = 0
        self._weights = weights
        self._fetch = fetch
        self._release = release
        # Bytes by record, that of the last use last.
        self._held: dict[str, int] = {}
        self._held_bytes = 0
        self.names = _records_of(split, is_nested=True) - _records_of(split, is_nested=False)

    def use(self, record: str, ahead: Sequence[str] = ()) -> None:
        """Begin the fetch of a record that is not there.

        Args:
            record: used now.
            ahead: those that may be used next, in that order. Their fetches begin as well, as far
                as there is room without them and the record that is used.
        """
        if record in self._held:
            self._held[record] = self._held.pop(record)
        elif not self._weights.holds(record):
            self._release_oldest(self._surplus(record), self._held)
            self._begin(record)
        for one in ahead:
            if one in self.names and not self._weights.holds(one):
                left = [held for held in self._held if held != record and held not in ahead]
                surplus = self._surplus(one)
                if surplus > sum(map(self._held.__getitem__, left)):
                    break
                self._release_oldest(surplus, left)
                self._begin(one)

    def _begin(self, record: str) -> None:
        self._held[record] = self._weights.num_bytes(record)
        self._held_bytes += self._held[record]
        self._fetch(record)

    def _surplus(self, record: str) -> int:
        """Bytes over the capacity if a record came."""
        return self._held_bytes + self._weights.num_bytes(record) - self.capacity_bytes

    def _release_oldest(self, num_bytes: int, records: Iterable[str]) -> None:
        """Release the first of these records until so many bytes are free, or none is left."""
        for record in tuple(records):
            if num_bytes <= 0:
                break
            num_bytes -= self._held[record]
            self._drop(record)

    def _drop(self, record: str) -> None:
        self._held_bytes -= self._held.pop(record)
        self._release(record)

    def release_all(self) -> None:
        """Take every nested record off the device."""
        for record in tuple(self._held):
            self._drop(record)

    def forget(self) -> None:
        """Know of none; who held them has taken them off."""
        self._held.clear()
        self._held_bytes = 0


def _records_of(split: Partition, *, is_nested: bool) -> set[str]:
    layers = [layer for layer in split.layers if (layer.parent is not None) is is_nested]
    return {record for layer in layers for record in layer.records}


class Executor:
    """Runs one model's layers with streamed weights.

    Args:
        model: its parameters are bound to device slots while their layers run; the buffers must be
            on the device.
        split: the model's layers.
        weights: slots on the device.
        link: the host side.
        recorder: receives times and device memory.
        backend: says who computes each layer.

    Attributes:
        schedule, forward_schedule: what passes with and without gradients walk; ``None`` serves
            every layer on demand.
        policies, default_policy: what becomes of the layers' activations.
        log: of the pass under way, or the last one.
        gradients: those that have arrived and are not pushed.
        nested: records of layers inside others.
        experts: weights whose experts stream one by one.
        micro_batch: the one that goes on.
        states: what the layers see beside their arguments.
        watch: which passes are metered, and what there is room for.
        casts: which weights autocast would cast once for several calls.
        order: of micro-batches.
    """

    def __init__(
        self,
        model: nn.Module,
        split: Partition,
        weights: DeviceWeights,
        link: HostLink,
        recorder: Recorder | None = None,
        backend: LayerBackend = TORCH,
    ) -> None:
        self.split = split
        self.weights = weights
        self.link = link
        self.device = device = weights.device
        self.schedule: Schedule | None = None
        self.forward_schedule: Schedule | None = None
        self.policies: Mapping[str, Activations] = {}
        self.default_policy = Activations.KEEP
        self.recorder = recorder or Recorder(device)
        self.log = PassLog()
        self.gradients = ArrivingGradients(split, weights.parameters, device)
        self.gradients.keeps_parts = link.adds_in_turn
        self.nested = NestedRecords(split, weights, self._fetch_nested, self.release)
        self._streamed = [
            one for one in split.records if one != PINNED and one not in self.nested.names
        ]
        self.experts = ExpertPass(
            weights.forms, self.use_nested, lambda: self._phase, lambda: self.micro_batch
        )
        self.watch = PassWatch(model, device, weights)
        self._observers: list[PassObserver] = []
        self._pause: Callable[[Layer], int] | None = None
        self._phase = Phase.IDLE
        # What autograd calls behind the backward under way; one that fails drops it instead.
        self._end: ReferenceType[Callable[[], None]] | None = None
        self._walk = Walk()
        trained = [name for name, one in weights.parameters.items() if one.requires_grad]
        self.routes = Routes(split, trained)
        self._most_calls: int | None = None
        self._layers = {layer.name: layer for layer in split.layers}
        modules = dict(model.named_modules(remove_duplicate=False))
        self._modules = {layer.name: modules[layer.name] for layer in split.modules}
        # Also of a layer inside another one, which a script may call by itself.
        self._kernel_of = cache(lambda name: backend.kernel(name, modules[name]))
        self.micro_batch = 0
        self._marked: list[object] = []
        self._backward_visit: tuple[PassLog, int] | None = None
        self._fetching: set[str] = set()
        self._unplanned_records: set[str] = set()
        self.order = MicroBatchOrder(model, device)
        self.states = {name: LayerState(module) for name, module in self._modules.items()}
        link.on_update = self._note_update
        self.casts = SharedCasts(model, split, device, is_checking=weights.are_watched)
        # Before the layers are attached, whose own function sees the experts.
        self._undo = self.experts.attach(model, split)
        calls = attach_calls(model, split, self.run_layer, self.run_root, self.run_part)
        self._undo.push(calls)
        hooks = attach_hooks(weights.parameters, self.end_failed_backward, self.take_gradient)
        self._undo.push(hooks)

    def observe(self, observer: PassObserver) -> None:
        """Tell an observer of the passes that come, behind those that are told already."""
        self._observers.append(observer)

    @contextmanager
    def pausing(self, pause: Callable[[Layer], int]) -> Iterator[None]:
        """Context in which forwards stop where a layer begins.

        Args:
            pause: is given the layer, and returns its visit when the forward is to go on.
        """
        self._pause = pause
        try:
            yield
        finally:
            self._pause = None

    def follow(self, plan: StepPlan) -> None:
        """Walk a plan from the next pass on."""
        assert plan.schedule is not None
        self.schedule = plan.schedule
        self.forward_schedule = plan.forward_schedule
        self.policies = plan.policies
        self.nested.capacity_bytes = plan.nested_capacity_bytes
        self.weights.capacity_bytes = plan.schedule.capacity_bytes
        self.gradients.expect(plan.received)
        self.gradients.planned_micro_batches = plan.micro_batches
        self.order.harmless = plan.harmless
        self.routes.follow(plan)
        self._most_calls = plan.most_layer_calls

    def detach(self) -> None:
        """Give the model its own forward methods back."""
        self._undo.close()
        self.weights.unwatch()
        self.gradients.watchers.close()

    # One pass.

    @property
    def is_in_pass(self) -> bool:
        """Whether a pass has begun whose backward has not ended."""
        return self._phase is not Phase.IDLE

    def begin_pass(self, num_micro_batches: int = 1) -> None:
        """Start a pass of the model: forward, and backward where gradients are wanted.

        Args:
            num_micro_batches: that take turns in it, each announced by :meth:`begin_micro_batch`.
        """
        self.watch.begin_pass(self.order.now)
        self._begin_pass(num_micro_batches, is_whole=True)

    def _begin_pass(self, num_micro_batches: int, *, is_whole: bool) -> None:
        if self.is_in_pass:
            self.end_pass()
        for observer in self._observers:
            observer.begin_pass()
        self.log = PassLog()
        self.micro_batch = 0
        self.gradients.begin(num_micro_batches, is_rising=self.order.is_rising)
        self.experts.begin_pass()
        are_several = self.gradients.are_of_several or self.link.is_of_several
        self.weights.has_earlier_gradients = are_several and torch.is_grad_enabled()
        schedule = self.schedule
        if not torch.is_grad_enabled():
            # A part that is called by itself gets its weights on demand.
            schedule = self.forward_schedule if is_whole else None
        # Ranks fetch together, whatever each of them calls; passes in turn take the room of one.
        is_routed = is_whole and not self.link.is_of_several and self.order.now < Order.IN_TURN
        begun = self.routes.begin(schedule if is_routed else None)
        self._open(Phase.FORWARD, begun if is_routed else schedule)

    def _open(self, phase: Phase, schedule: Schedule | None) -> None:
        self._phase = phase
        self._walk.begin(schedule)
        self._backward_visit = None
        if PINNED in self.split.records:
            self.ensure(PINNED)
        self.link.begin_pass(self._walk.actions)
        self._run_to_compute()

    def _join_backward(self, what: str, name: str) -> None:
        """See that a pass is open until the backward under way ends.

        A graph may outlive its pass: backward is called a second time, or another forward has
        come between the two. The weights then come on demand. A backward inside a layer's forward
        ends nothing.
        """
        self.end_failed_backward()
        phase = self._phase
        if phase is Phase.RECOMPUTE or phase is Phase.LAYER:
            return
        if torch.is_grad_enabled():
            raise graph_of_backward(f"{what} {name!r}")
        if phase is Phase.BACKWARD:
            return
        if phase is Phase.IDLE:
            self._open(Phase.BACKWARD, None)
        else:
            self._phase = Phase.BACKWARD
            self.weights.show()
        # Whoever is told of the backward may want to be called behind its end.
        end, weights = partial(self.end_pass), self.weights
        self._end = ref(end, lambda _: weights.hide())
        execution_engine.queue_callback(end)
        for observer in self._observers:
            observer.begin_backward()

    def end_failed_backward(self, *_gradient: torch.Tensor) -> None:
        """What a backward that failed has left comes before a gradient that another one brings."""
        if self._end is not None and self._end() is None:
            self.end_pass()

    @property
    def _updates_on_push(self) -> bool:
        return self.schedule is not None and self.schedule.timing is UpdateTiming.ON_PUSH

    def end_pass(self) -> None:
        """Finish a pass: push what is left, release everything, the pinned record at last.

        Raises:
            OpenwaferError: ``weights-written``, ``weights-kept``, after all that.
        """
        # What is foreseen is no promise.
        is_planned = not self.routes.is_forecast
        self.routes.end(self.log)
        for record in self.gradients.begun:
            self.push(record)
        self._push_zeros(lambda record: True)
        planned = [one.target for one in self._walk.rest() if one.kind is Kind.RELEASE]
        held = [record for record in (*planned, *self.split.records) if record != PINNED]
        with ExitStack() as rest:
            rest.callback(self._release_all, [PINNED])
            rest.callback(self.weights.check_let_go)
            rest.callback(self.link.end_pass)
            rest.callback(self._leave_pass)
            self._release_all(held)
        if is_planned:
            self._check_schedule()

    def _release_all(self, records: Iterable[str]) -> None:
        """Release those that are on the device, whatever the release of another one raises."""
        held = dict.fromkeys(filter(self.weights.holds, records))
        with ExitStack() as rest:
            for record in reversed(held):
                rest.callback(self.release, record)

    def _check_schedule(self) -> None:
        if (
            self.schedule is None
            or not self._walk.actions
            or self.log.unplanned
            or self.log.num_departures
            or self.nested.names
        ):
            return
        for observer in self._observers:
            observer.end_pass(self.schedule, self.log)

    def _leave_pass(self) -> None:
        self._phase, self._end = Phase.IDLE, None
        self.routes.end(None)
        self.weights.has_earlier_gradients = False
        self.nested.forget()
        self.experts.end_pass()
        self._unplanned_records.clear()
        self._marked.clear()
        self.recorder.end_backward()

    def abandon_pass(self) -> None:
        """Leave a pass that failed: weights off the device, loans back, gradients forgotten.

        Raises:
            OpenwaferError: ``weights-written`` for a weight that was written to, after all that.
        """
        self._leave_pass()
        self._walk.end()
        self._fetching.clear()
        with ExitStack() as rest:
            rest.callback(self.gradients.forget)
            for record in filter(self.weights.holds, self.split.records):
                rest.callback(self.weights.drop, record, has_failed=True)
            self.link.abandon()

    def enter(self, layer: Layer) -> int:
        """Bring a layer's weights to the device; return the index of its visit."""
        records = self._records_in(layer)
        self.gradients.keep_apart(self.log.first_visits.keys() & records)
        visit = self.log.visit(layer.name, records)
        self._reach(Kind.FORWARD, layer)
        return visit

    def _records_in(self, layer: Layer) -> set[str]:
        """The records of a layer and of those nested in it."""
        layers = (layer, *self.split.inner.get(layer.name, ()))
        return {record for one in layers for record in one.records}

    def begin_micro_batch(self, index: int, layer: Layer | None) -> None:
        """The micro-batch of that index goes on: through a layer, and to the next one.

        Each has its own gradients of what it uses on its way.
        """
        self.micro_batch = index
        if not self.gradients.are_of_several:
            return
        used = self._records_in(layer) if layer else set()
        self._renew(used - {PINNED})
        self._marked = [
            before_accumulation(parameter, partial(self._mark, index))
            for parameter in self._renew({PINNED} & self.split.records.keys())
        ]

    def _renew(self, records: set[str]) -> list[nn.Parameter]:
        names = (name for record in records for name in self.split.records[record])
        parameters = [self.weights.parameters[name] for name in names]
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        renew_accumulators(trained)
        return trained

    def _mark(self, micro_batch: int) -> None:
        self.gradients.watchers.micro_batch = micro_batch

    def leave(self) -> None:
        """Go on with the schedule after a layer's forward."""
        for observer in self._observers:
            observer.leave_layer()
        self._release_on_demand()
        self._run_to_compute()

    def begin_backward(self, log: PassLog, visit: int, micro_batch: int) -> None:
        """The backward pass has come to a visit of a pass, mostly of the one that is open."""
        self._join_backward("layer", log.visits[visit])
        self._mark(micro_batch)
        last = self._backward_visit
        if last is not None:
            if last[0] is log and last[1] == visit:
                return
            self._release_on_demand()
        self._backward_visit = log, visit
        layer = self._layers[log.visits[visit]]
        if log is self.log:
            self._push_passed(visit)
            log.backward.append(visit)
            self._run_to_compute()
            self._reach(Kind.BACKWARD, layer)
        else:
            self.log.unplanned.append(layer.name)
            self._bring(layer)
        self.recorder.begin_backward(layer.name)

    def _push_passed(self, visit: int) -> None:
        """Push what the backward pass has left behind, though some micro-batch did not use it."""
        for record in self.gradients.begun:
            if self._is_passed(visit, record):
                self.push(record)
        self._push_zeros(partial(self._is_passed, visit))

    def _is_passed(self, visit: int, record: str) -> bool:
        return self.log.first_visits.get(record, 0) > visit

    # The schedule.

    def _reach(self, kind: Kind, layer: Layer) -> None:
        """Go past a compute action of the schedule and see that its weights are there."""
        # Nothing may be foreseen of a pass, which its first call then plans.
        is_planned = self._walk.actions or self.routes.is_forecast
        if is_planned and self._walk.next_call != (kind, layer.name):
            self._depart(kind, layer)
        for action in self._walk.to(kind, layer.name) or ():
            self._do(action)
        self._bring(layer)
        self.log.executed.append((kind, layer.name))

    def _depart(self, kind: Kind, layer: Layer) -> None:
        """Another layer has come than the one that is next: plan the rest of the pass from it."""
        self.log.num_departures += 1
        if not self._walk.is_to_come(kind, layer.name):
            self.log.unplanned.append(layer.name)
        held = {
            record: self.weights.num_bytes(record)
            for record in self._streamed
            if self.weights.holds(record)
        }
        rest = self.routes.rest(kind, self.log, held)
        if rest is not None:
            self._walk.begin(rest)
            self.link.go_on(rest.actions)

    def _bring(self, layer: Layer) -> None:
        missing = [record for record in layer.records if not self.weights.holds(record)]
        if missing:
            self._release_all(self.weights.in_the_way(self._streamed, layer.records))
            self._unplanned_records.update(missing)
        for record in layer.records:
            self.ensure(record)

    def next_of(self, layers: Sequence[Layer]) -> Layer:
        """The layer that the schedule wants next, or the first that it has to come."""
        wanted = self._walk.next_forward_of([layer.name for layer in layers])
        return next((layer for layer in layers if layer.name == wanted), layers[0])

    def _run_to_compute(self) -> None:
        # Memory that is lent is there at once, so nothing is lent before it is known to be used.
        if not (self.routes.is_forecast and self.link.lends_memory):
            for action in self._walk.to_compute():
                self._do(action)
        self.link.advance(self._walk.position)

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
        """Begin a fetch; what nothing bounds comes into slots and is never lent."""
        slot = None
        if lends:
            self.weights.expect(record)
        else:
            slot = self.weights.take_slot(record)
        self._fetching.add(record)
        self.log.executed.append((Kind.FETCH, record))
        with self.device.host_section():
            self.link.fetch(record, slot, keeps_loan=keeps_loan)

    def release(self, record: str) -> None:
        """Take a record's weights off the device."""
        if record in self._fetching:
            self.link.complete(record)
            self._fetching.discard(record)
        try:
            self.weights.drop(record)
        finally:
            self.log.executed.append((Kind.RELEASE, record))
            with self.device.host_section():
                self.link.release(record)

    def use_nested(self, records: Sequence[str]) -> None:
        """Bring a record of a layer inside the running one, in the place of older ones.

        Args:
            records: that one, and behind it those that may be wanted next.
        """
        self.nested.use(records[0], records[1:])
        self.ensure(records[0])

    def _fetch_nested(self, record: str) -> None:
        is_updated = self._backward_visit is not None and self._updates_on_push
        # Were it lent, its update would wait for its release, and its gradient for that.
        self._fetch(record, keeps_loan=False, lends=self.link.lends_memory and not is_updated)

    def _use_saved(self, records: Sequence[str]) -> None:
        """Bring back a record whose weights the backward pass wants; see :meth:`use_nested`."""
        record = records[0]
        self._join_backward("record", record)
        if record in self.nested.names:
            self.use_nested(records)
            pushed = filter(
                self.gradients.are_expected, filter(self.nested.names.__contains__, records)
            )
            with self.device.host_section():
                self.link.expect_pushes(tuple(pushed))
            return
        if not self.weights.holds(record):
            # A part of a layer's graph that its output does not lead to, such as a loss of its own.
            self.log.unplanned.append(record)
        self.ensure(record)

    def _release_on_demand(self) -> None:
        """Release what came beside the schedule for the layer that is left."""
        self.nested.release_all()
        for record in self._unplanned_records:
            if self.weights.holds(record):
                self.release(record)
        self._unplanned_records.clear()

    # Gradients.

    def take_gradient(self, name: str, _parameter: torch.Tensor) -> None:
        """A gradient has been added to a parameter: push its record if that was the last."""
        self._join_backward("weight", name)
        record = self.gradients.note(name)
        if record is not None:
            self.push(record)

    def _note_update(self, record: str) -> None:
        self.log.executed.append((Kind.UPDATE, record))

    def push(self, record: str) -> None:
        """Take a record's gradients to the host side."""
        if self.link.is_of_several:
            # A sum takes them when it is their turn, which may be much later where the network is
            # slow; a plan has room for gradients until their record is complete.
            self._send(record, self.gradients.take_parts(record))
        elif gradients := self.gradients.take(record):
            self.experts.push(gradients)
            self._send(record, [gradients])

    def _send(self, record: str, parts: Sequence[Mapping[str, torch.Tensor]]) -> None:
        self.log.executed.append((Kind.PUSH, record))
        with self.device.host_section():
            self.link.push(record, parts)

    def _push_zeros(self, is_passed: Callable[[str], bool]) -> None:
        """Push the zeros that experts have which no micro-batch used, where others were used."""
        with self.device.host_section():
            self.link.push_zeros(self.experts.take_unpushed(is_passed))

    # Layers.

    def run_layer(self, layer: Layer, function: Function, args: Any, kwargs: Any) -> Any:
        """Run one call of a layer; the layer's ``forward`` is replaced by this."""
        match self._phase:
            case Phase.IDLE:
                run = partial(self.run_layer, layer, function)
                return self._run_pass(run, (args, kwargs), {}, layer.name)
            case Phase.LAYER | Phase.RECOMPUTE:
                for record in layer.records:
                    self.use_nested((record,))
                return function(*args, **kwargs)
            case Phase.FORWARD | Phase.BACKWARD:
                return self._run_visit(layer, function, args, kwargs)

    def _run_visit(self, layer: Layer, function: Function, args: Any, kwargs: Any) -> Any:
        pause = self._pause
        calls = self._calls_before(layer)
        visit = self.enter(layer) if pause is None else pause(layer)
        calls.append(visit)
        module, outside = self._modules[layer.name], self._phase
        with self.casts.leaving_none(module), self.recorder.compute("forward", layer.name):
            self._phase = Phase.LAYER
            try:
                out = self._run_framed(layer, visit, function, (args, kwargs))
                for record in layer.records:
                    self.weights.check_unwritten(record)
            finally:
                self._leave_phase(Phase.LAYER, outside)
        if torch.is_grad_enabled():
            self._watch(out, visit)
        if pause is None:
            self.leave()
        return out

    def _calls_before(self, layer: Layer) -> list[int]:
        """The calls of the forward that comes to a layer; none count that a backward makes."""
        if self._phase is not Phase.FORWARD:
            return []
        calls, most = self.log.calls.setdefault(self.micro_batch, []), self._most_calls
        if most is not None and len(calls) >= most:
            raise too_many_calls(layer.name, len(calls) + 1, most)
        return calls

    def _run_framed(self, layer: Layer, visit: int, function: Function, arguments: Any) -> Any:
        args, kwargs = arguments
        kernel = self._kernel_of(layer.name)
        layer_call = LayerCall(layer.name, self._modules[layer.name], function, args, kwargs)
        if not torch.is_grad_enabled():
            return kernel.forward(layer_call)
        policy = self.policies.get(layer.name, self.default_policy)
        rerun = partial(self._rerun, layer, function)
        call = Call(layer.name, rerun, args, kwargs, self.states[layer.name], layer.records)
        frame = frame_for(policy, self.weights, self._use_saved, call, self.order.copied)
        self.watch.begin_layer(frame)
        with frame.hooks(), TransformsRefused(layer.name):
            out = kernel.forward(layer_call)
        self.watch.end_layer(frame, visit)
        frame.end_forward()
        return out

    def _rerun(self, layer: Layer, function: Function, *args: Any, **kwargs: Any) -> Any:
        outside = self._phase
        with self.casts.leaving_none(None), self.recorder.compute("recompute", layer.name):
            self._phase = Phase.RECOMPUTE
            try:
                name = layer.name
                again = LayerCall(name, self._modules[name], function, args, kwargs)
                return self._kernel_of(name).recompute(again)
            finally:
                self._leave_phase(Phase.RECOMPUTE, outside)

    def _leave_phase(self, phase: Phase, outside: Phase) -> None:
        # A failed pass is left from within.
        if self._phase is phase:
            self._phase = outside

    def _watch(self, out: object, visit: int) -> None:
        reached = partial(self._reached, self.log, visit, self.micro_batch)
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(reached)

    def _reached(self, log: PassLog, visit: int, micro_batch: int, _: torch.Tensor) -> None:
        self.begin_backward(log, visit, micro_batch)

    def run_root(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Run the model's own forward: a pass, unless micro-batches rotate in one."""
        if self._pause is not None:
            self.watch.meet_beside_others(args, kwargs)
            return function(*args, **kwargs)
        return self._run_pass(function, args, kwargs, ROOT)

    def run_part(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Run the forward of a module beside or around the layers: a pass if called by itself."""
        if self.is_in_pass:
            return function(*args, **kwargs)
        return self._run_pass(function, args, kwargs, getattr(function, "__qualname__", ""))

    def _run_pass(self, function: Function, args: Any, kwargs: Any, name: str) -> Any:
        # The dry run of a call leaves no cast, either.
        with self.casts.leaving_none(None):
            kind = self.watch.admit_call(name, args, kwargs)
        with self.routes.naming_room(), self.watch.naming_outputs(), self.device.forward_only():
            self.watch.meet(kind)
            self._begin_pass(num_micro_batches=1, is_whole=name == ROOT)
            if torch.is_grad_enabled():
                # For what runs beside layers: pinned weights, which may move before backward.
                frame = Frame(self.weights, self._use_saved)
                self.watch.begin_layer(frame)
                try:
                    with frame.hooks(), TransformsRefused(name):
                        out = function(*args, **kwargs)
                    self.watch.end_layer(frame, len(self.log.visits))
                finally:
                    # Also of one that failed, whose caller may go on.
                    self.weights.hide()
            else:
                out = function(*args, **kwargs)
                self.end_pass()
            self.watch.end_forward(out)
            return out

    def visits(self) -> tuple[Visit, ...]:
        """The layer calls of the last pass, for a schedule."""
        reached = set(self.log.backward)
        return tuple(
            Visit(name, self._layers[name].records, index in reached)
            for index, name in enumerate(self.log.visits)
        )
