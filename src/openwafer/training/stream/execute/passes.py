"""A pass of a model: where it is, its micro-batches' order, what has happened, what it refuses."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import cached_property
from typing import Final, TypeAlias

import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.execute.reach import draws_beside_torch
from openwafer.training.stream.execute.snapshot import (
    LayerState,
    Snapshot,
    norms_with_statistics,
    reached_from,
)
from openwafer.training.stream.layers import PINNED, Partition
from openwafer.training.stream.schedule import Action, Kind, Schedule, UpdateTiming
from openwafer.training.torch_private import NormBase

COMPUTE: Final = (Kind.FORWARD, Kind.BACKWARD)
# Torch's words where a transform meets hooks for saved tensors.
_MEETS_HOOKS: Final = "don't yet support saved tensor hooks"


class Phase(Enum):
    """Where the executor is in a pass."""

    IDLE = "no pass is open"
    FORWARD = "in a pass, between layers"
    LAYER = "in a layer's forward"
    BACKWARD = "in a backward, whose end ends the pass"
    RECOMPUTE = "in a layer that runs again in the backward"


class PassObserver:
    """Is told of the passes of an executor; what it raises fails the pass."""

    def begin_pass(self) -> None:
        """A pass is about to begin."""

    def leave_layer(self) -> None:
        """All micro-batches have gone forward through a layer."""

    def begin_backward(self) -> None:
        """A backward has begun."""

    def end_pass(self, schedule: Schedule, log: "PassLog") -> None:
        """A pass ends, its own backward or not, that has met no layer beside its schedule."""


@dataclass
class PassLog:
    """What happened in the pass under way, or in the last one.

    Attributes:
        visits: layer calls in forward order, by layer name.
        first_visits: index of the first visit that had a record, by record.
        calls: indices of the visits that each micro-batch's forward has made, by micro-batch.
        backward: indices of the visits that the backward pass reached.
        unplanned: layers that no schedule foresaw, or of an earlier pass: served on demand.
        num_departures: how often another layer came than the one that was next.
        executed: kind and target of everything done, in the order in which the compute lane did it.
    """

    visits: list[str] = field(default_factory=list)
    first_visits: dict[str, int] = field(default_factory=dict)
    calls: dict[int, list[int]] = field(default_factory=dict)
    backward: list[int] = field(default_factory=list)
    unplanned: list[str] = field(default_factory=list)
    num_departures: int = 0
    executed: list[tuple[Kind, str]] = field(default_factory=list)

    def visit(self, layer: str, records: Iterable[str]) -> int:
        """Note a layer call that needs records; returns its index."""
        index = len(self.visits)
        self.visits.append(layer)
        for record in records:
            self.first_visits.setdefault(record, index)
        return index


class Walk:
    """A cursor over the actions of a schedule: which are due before the next compute.

    Attributes:
        actions: of the pass under way; none where nothing is scheduled.
        position: index of the next one.
    """

    def __init__(self) -> None:
        self.actions: tuple[Action, ...] = ()
        self.position = 0

    def begin(self, schedule: Schedule | None) -> None:
        """Go to the beginning of a schedule; ``None`` serves every layer on demand."""
        self.actions = schedule.actions if schedule else ()
        self.position = 0

    def to_compute(self) -> Iterator[Action]:
        """Pass the actions before the next forward or backward."""
        while self.position < len(self.actions):
            action = self.actions[self.position]
            if action.kind in COMPUTE:
                return
            yield action
            self.position += 1

    def to(self, kind: Kind, layer: str) -> Sequence[Action] | None:
        """Pass a layer's forward or backward and return the actions before it, if it is to come."""
        found = self._find(kind, layer)
        if found is None:
            return None
        passed = self.actions[self.position : found]
        self.position = found + 1
        return passed

    def rest(self) -> Sequence[Action]:
        """Pass all actions that are left."""
        left = self.actions[self.position :]
        self.end()
        return left

    def end(self) -> None:
        """Go behind the last action."""
        self.position = len(self.actions)

    @property
    def next_call(self) -> tuple[Kind, str] | None:
        """Kind and layer of the next forward or backward, if one is left."""
        return next(((one.kind, one.target) for one in self._left() if one.kind in COMPUTE), None)

    def next_forward_of(self, layers: Collection[str]) -> str | None:
        """The one of these layers whose forward is left and comes first."""
        forwards = (action.target for action in self._left() if action.kind is Kind.FORWARD)
        return next((layer for layer in forwards if layer in layers), None)

    def is_to_come(self, kind: Kind, layer: str) -> bool:
        """Whether a layer's forward or backward is among what is left."""
        return self._find(kind, layer) is not None

    def _left(self) -> Iterator[Action]:
        """Those that are left, which each call of a layer asks for, uncopied."""
        return (self.actions[number] for number in range(self.position, len(self.actions)))

    def _find(self, kind: Kind, layer: str) -> int | None:
        for position in range(self.position, len(self.actions)):
            action = self.actions[position]
            if action.kind is kind and action.target == layer:
                return position
            if kind is Kind.FORWARD and action.kind is Kind.BACKWARD:
                return None
        return None


# Of a model and all around it: enough for whatever a model's code holds, data sets included.
MAX_OBJECTS: Final = 1_000_000
# Modules and parameters are found by the walk over modules, and streamed. Hooks are looked at: a
# library may put its own on a model at the first call.
_SHOWN_ELSEWHERE: Final = frozenset({"_parameters", "_modules"})


class Order(IntEnum):
    """Each does what those before it do, and takes more time."""

    FALLING = 0
    """Layer by layer, so that autograd meets the micro-batches in rising order."""
    RISING = 1
    """Layer by layer, for statistics that each layer keeps for itself."""
    IN_TURN = 2
    """One micro-batch behind the other, for whatever a forward leaves for others."""


class MicroBatchOrder:
    """The order that the passes of a model need, as far as it is known.

    Args:
        model: may change in its forwards.
        device: where it runs.

    Attributes:
        now: the order of the pass under way.
        copied: storages of the model's own tensors that micro-batches of the pass write to one
            behind the other, so that what is saved of them for backward is a copy.
        harmless: see :class:`StepPlan`.
    """

    def __init__(self, model: nn.Module, device: Device) -> None:
        self.now = Order.FALLING
        self.copied: frozenset[int] = frozenset()
        self.harmless: tuple[str, ...] = ()
        self._is_kept = self._is_changed = False
        self._model = model
        self._device = device
        self._own = LayerState(model, _SHOWN_ELSEWHERE)
        self._outside: Snapshot | None = None
        # With gradients and without: the order to begin with, and whether it was once too low.
        self._known = {True: Order.FALLING, False: Order.RISING}
        self._was_too_low = {True: False, False: False}
        self._norms = norms_with_statistics(model)

    def own_state(self) -> Snapshot:
        """Attributes and buffers of the model."""
        return self._own.now()

    def state(self) -> Snapshot:
        """Attributes and buffers of the model, and all that its code reaches beside them."""
        own = self.own_state()
        if self._outside is None or not self._outside.is_current():
            # Copies of what is nobody's weight or activation, and in no plan.
            with self._device.host_section():
                reached = reached_from(self._model.named_modules(), max_objects=MAX_OBJECTS)
            self._outside = reached.without(own.targets())
        return own + self._outside

    @cached_property
    def draws_beside_torch(self) -> bool:
        """Whether the model's code can draw from the generators of Python or NumPy."""
        return draws_beside_torch(self._model)

    def keep(self, order: Order, *, is_changed: bool) -> None:
        """Let all passes go in one order, though their forwards may change the model."""
        self._known, self._is_kept = dict.fromkeys(self._known, order), True
        self._is_changed = is_changed

    def begin(self) -> None:
        """A step begins: its order is the known one."""
        self.now = self._known[torch.is_grad_enabled()]

    def begin_rotation(self, num_micro_batches: int) -> None:
        """As many micro-batches begin to take turns, in the order that is set."""
        is_changed = self._is_changed or self.now > Order.FALLING
        is_copied = is_changed and num_micro_batches > 1 and torch.is_grad_enabled()
        self.copied = frozenset(_storages_of(self._model)) if is_copied else frozenset()

    @property
    def is_settled(self) -> bool:
        """Whether no change that the pass makes asks for another order."""
        return self._is_kept or self.now is Order.IN_TURN

    @property
    def is_rising(self) -> bool:
        """Whether a micro-batch goes forward behind those of lower index."""
        return self.now in (Order.RISING, Order.IN_TURN)

    def learn(self) -> None:
        """The order of the pass under way was needed; what a first call alone changes is not."""
        is_graded = torch.is_grad_enabled()
        if self._was_too_low[is_graded]:
            self._known[is_graded] = self.now
        self._was_too_low[is_graded] = True

    def needed(self, before: Snapshot, num_micro_batches: int, *, is_fake: bool = False) -> Order:
        """The lowest order whose forwards see what they see in a plain loop.

        Args:
            before: the state before the forwards, one a micro-batch.
            is_fake: whether tensors have no values, but count how often they are written.
        """
        names = before.changed(waits=not is_fake) if self.harmless else None
        if names is not None and set(names) <= set(self.harmless):
            return Order.FALLING
        found = before.changed_targets(waits=not is_fake)
        changed = {id(target): content for target, content in found}
        if not changed:
            return Order.FALLING
        norms = [norm for norm in self._norms if changed.keys() & _ids(norm)]
        counted = {key for norm in norms for key in _ids(norm)}
        if changed.keys() <= counted and all(
            _num_calls(norm, changed, is_fake=is_fake) == num_micro_batches for norm in norms
        ):
            return Order.RISING
        return Order.IN_TURN


def _storages_of(model: nn.Module) -> Iterator[int]:
    """Of a model's buffers and of the tensors among its attributes."""
    for module in model.modules():
        for held in (*module._buffers.values(), *vars(module).values()):  # noqa: SLF001
            if isinstance(held, torch.Tensor) and held.layout is torch.strided:
                yield held.untyped_storage()._cdata


def _statistics(norm: NormBase) -> Iterator[torch.Tensor]:
    for statistic in (norm.running_mean, norm.running_var, norm.num_batches_tracked):
        if statistic is not None:
            yield statistic


def _ids(norm: NormBase) -> set[int]:
    return set(map(id, _statistics(norm)))


def _num_calls(norm: NormBase, changed: dict[int, object], *, is_fake: bool) -> int:
    """How often a module has moved its statistics; 0 where it does not count."""
    count = norm.num_batches_tracked
    match changed.get(id(count)):
        case (torch.Tensor(), int() as version) if count is not None and is_fake:
            return count._version - version
        case (torch.Tensor() as before, int()) if count is not None:
            return int(count) - int(before)
        case _:
            return 0


def graph_of_backward(where: str) -> OpenwaferError:
    """The error of a backward that makes a graph and has come to a layer or a weight."""
    return error(
        "backward-of-backward",
        f"backward(create_graph=True) came to the streamed {where}: its graph would keep weights "
        "that leave the device",
        help="leave create_graph out, or give a device memory in which the whole model is resident",
    )


class TransformsRefused:
    """Context of a forward, whose saved tensors are seen by hooks.

    Args:
        where: what runs.

    Raises:
        OpenwaferError: ``streamed-under-transform`` where it differentiates by torch.func.
    """

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        """Nothing is refused yet."""

    def __exit__(self, _kind: object, cause: BaseException | None, _traceback: object) -> None:
        """The forward has ended, or failed."""
        if not isinstance(cause, RuntimeError) or _MEETS_HOOKS not in str(cause):
            return
        raise error(
            "streamed-under-transform",
            f"the forward of {self._where!r} differentiates by torch.func, which cannot see "
            "weights come and go",
            help="differentiate with torch.autograd.grad or torch.autograd.functional",
        ) from cause


Entry: TypeAlias = tuple[Kind, str]

WEIGHTS: Final = (Kind.FETCH, Kind.RELEASE)


def is_checking() -> bool:
    """Whether passes are to be checked."""
    return os.environ.get("OPENWAFER_CHECK_SCHEDULE") == "1"


class ScheduleCheck(PassObserver):
    """Compares every pass whose backward has come to its end with its schedule.

    Args:
        split: the model's layers.
        elsewhere: records that another rank updates.
    """

    def __init__(self, split: Partition, elsewhere: Collection[str]) -> None:
        self._records_of = {layer.name: layer.records for layer in split.layers}
        self._elsewhere = elsewhere

    def end_pass(self, schedule: Schedule, log: PassLog) -> None:
        num_backwards = sum(action.kind is Kind.BACKWARD for action in schedule.actions)
        if len(log.backward) == num_backwards:
            elsewhere = self._elsewhere
            check_followed(schedule, log.executed, self._records_of, elsewhere=elsewhere)


def check_followed(
    schedule: Schedule,
    executed: Sequence[Entry],
    records_of: Mapping[str, Sequence[str]],
    *,
    elsewhere: Collection[str] = (),
) -> None:
    """Compare what a pass did with its schedule.

    Layers run in the planned order; between two of them the planned weights come and go, in that
    order, and no gradient is pushed that was not planned there. With updates on push, what was
    pushed is updated before the pass ends; with updates on fetch, what is updated has not been used
    in the pass.

    Args:
        schedule: of a pass that met no layer beside it, and whose backward came to its end.
        executed: kind and target of everything done.
        records_of: records that a layer needs, by its name.
        elsewhere: records that another rank updates.

    Raises:
        OpenwaferError: ``schedule-not-followed``, with the layer at which the two part.
    """
    planned = [(action.kind, action.target) for action in schedule.actions]
    problems = [*_parting(planned, executed)]
    own = [one for one in executed if one[0] in COMPUTE or one[1] not in elsewhere]
    problems += _updates(schedule.timing, own, records_of)
    if problems:
        raise error(
            "schedule-not-followed",
            f"a pass left its schedule: {problems[0]}",
            notes=tuple(problems[1:4]),
            help="report this with the model; unset OPENWAFER_CHECK_SCHEDULE to go on without the "
            "check, since a schedule decides when things happen and not what is computed",
        )


@dataclass
class _Stretch:
    """What lies between two compute actions."""

    after: str
    weights: list[Entry] = field(default_factory=list)
    pushed: set[str] = field(default_factory=set)


def _stretches(entries: Iterable[Entry]) -> list[_Stretch]:
    found = [_Stretch("the beginning")]
    for kind, target in entries:
        if kind in COMPUTE:
            found.append(_Stretch(f"{kind} {target}"))
        elif kind in WEIGHTS and target != PINNED:
            found[-1].weights.append((kind, target))
        elif kind is Kind.PUSH and target != PINNED:
            found[-1].pushed.add(target)
    return found


def _parting(planned: Sequence[Entry], executed: Sequence[Entry]) -> Iterator[str]:
    for wanted, found in zip(_stretches(planned), _stretches(executed), strict=False):
        if wanted.after != found.after:
            yield f"{found.after} came where {wanted.after} was planned"
            return
        if wanted.weights != found.weights:
            yield (
                f"after {wanted.after}, {_words(found.weights)} where {_words(wanted.weights)} "
                "was planned"
            )
        for record in sorted(found.pushed - wanted.pushed):
            yield f"after {wanted.after}, {record} was pushed, which was planned elsewhere"


def _updates(
    timing: UpdateTiming, executed: Sequence[Entry], records_of: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    used: set[str] = set()
    updated: set[str] = set()
    pushed: set[str] = set()
    for kind, target in executed:
        if kind is Kind.FORWARD:
            used.update(records_of[target])
        elif kind is Kind.PUSH:
            pushed.add(target)
        elif kind is Kind.UPDATE:
            updated.add(target)
            if timing is UpdateTiming.ON_FETCH and target in used:
                yield f"{target} was updated after a forward had used it"
    if timing is UpdateTiming.ON_PUSH:
        for record in sorted(pushed - updated):
            yield f"{record} was pushed and not updated"


def _words(entries: Sequence[Entry]) -> str:
    return ", ".join(f"{kind} {target}" for kind, target in entries) or "nothing"
