"""What forwards see and change beside their arguments, and the order that micro-batches need."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cached_property
from typing import Final
from weakref import ReferenceType, ref

import torch
from torch import nn

from openwafer.training.stream.device.device import Device
from openwafer.training.stream.execute.snapshot import Snapshot, draws_beside_torch, reached_from
from openwafer.training.torch_private import NormBase

# What torch keeps in a module beside what the module's own code puts there.
_OF_TORCH: Final = frozenset(vars(nn.Module())) - {"_buffers"}


def norms_with_statistics(module: nn.Module) -> list[NormBase]:
    """The modules within one that keep running statistics of what goes through them."""
    return [
        inner
        for inner in module.modules()
        if isinstance(inner, NormBase) and inner.track_running_stats
    ]


class LayerState:
    """Attributes and buffers of a layer's modules: plain values, containers, arrays, tensors.

    Args:
        module: the layer.
        passed_over: what is in its modules and none of its state.

    Attributes:
        is_rehearsed: whether the layer has run a second time as it ran the first.
        refusal: why it could not run again, once that was tried.
    """

    def __init__(self, module: nn.Module, passed_over: frozenset[str] = _OF_TORCH) -> None:
        self._module = module
        self._passed_over = passed_over
        self._latest: Snapshot | None = None
        self._latest_with_tensors: ReferenceType[Snapshot] | None = None
        self.is_rehearsed = False
        # Their kernels write without counting versions up, and fake tensors have nothing else.
        self._keeps_statistics = bool(norms_with_statistics(module))
        self.refusal: str | None = None

    def now(self) -> Snapshot:
        """The present state: the last one while nothing has changed since."""
        held = self._latest_with_tensors
        latest = self._latest if held is None else held()
        if latest is None or self._keeps_statistics or not latest.is_current():
            latest = Snapshot(_held_by(self._module), passed_over=self._passed_over)
            # Copies of tensors take device memory, so that they live only as long as a call's.
            has_tensors = latest.holds_tensors
            self._latest = None if has_tensors else latest
            self._latest_with_tensors = ref(latest) if has_tensors else None
        return latest

    @cached_property
    def draws_beside_torch(self) -> bool:
        """Whether the layer's code can draw from the generators of Python or NumPy."""
        return draws_beside_torch(self._module)

    @contextmanager
    def as_it_was(self, before: Snapshot) -> Iterator[frozenset[int]]:
        """Context in which the layer sees an earlier state; afterwards, the present one again.

        Yields:
            Storages of tensors that are written to for that, as the numbers torch has for them.
        """
        present, beside = self.now(), None
        if present is not before:
            beside = before.again(present)
            before.put_back()
        try:
            yield frozenset() if beside is None else before.storages() | present.storages()
        finally:
            if beside is not None:
                beside.put_back()
            present.put_back()


def _held_by(module: nn.Module) -> Iterator[tuple[str, object]]:
    for name, inner in module.named_modules():
        # The dictionaries themselves: what is put back is what they hold.
        yield name, vars(inner)


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
