"""The gradients of a pass, which autograd completes one by one and micro-batch by micro-batch.

Gradients are added as the plain loop adds them: those of one micro-batch where autograd adds them,
then micro-batch by micro-batch in rising order. A parameter that one layer call uses gets its
gradients in that order, since the backward pass takes the micro-batches of a layer in turn. Where
several calls use it (a tied weight, a pinned one, a layer that is called again), or where forwards
ran in rising order, the micro-batches' parts wait in host memory until all have come.

A parameter has one accumulator, the node of autograd that adds to its gradient, for all graphs that
are alive, so a backward from several losses sums their gradients before anybody sees them. torch
drops a parameter's accumulator when its data changes type, and makes another at the next use. So
each micro-batch gets one of its own, without a copy of the weights.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

import torch
from torch import nn
from torch.autograd.graph import Node, get_gradient_edge

from openwafer.training.store.layout import slice_of
from openwafer.training.stream.device.device import Device, brought
from openwafer.training.stream.device.weights import OWN_DATA, OWN_GRAD
from openwafer.training.stream.layers import PINNED, Partition

MicroBatchWatcher: TypeAlias = Callable[[int, str, torch.Tensor], None]
"""Called with a micro-batch's index, a parameter's name, and its gradient of that micro-batch.

The gradient is that of the weighed and scaled loss, before it is added to those of other
micro-batches. It may lie in host memory, and is not to be changed.
"""


class GradientWatchers:
    """Shows gradients to watchers before autograd adds them to a parameter's.

    Args:
        parameters: by name.

    Attributes:
        micro_batch: index of the micro-batch whose backward is under way.
        passes_over: whether a parameter's gradients come in parts, which its owner shows when all
            are added.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.micro_batch = 0
        self.passes_over: Callable[[str], bool] = lambda name: False
        self._parameters = parameters
        self._watchers: list[MicroBatchWatcher] = []
        self._undo = ExitStack()

    def add(self, watcher: MicroBatchWatcher) -> None:
        """Show every gradient of every micro-batch to a watcher from now on."""
        if not self._watchers:
            for name, parameter in self._parameters.items():
                if parameter.requires_grad:
                    arrived = partial(weakly(self._arrived), name)
                    self._undo.callback(parameter.register_hook(arrived).remove)
        self._watchers.append(watcher)

    @property
    def has_any(self) -> bool:
        """Whether anybody looks."""
        return bool(self._watchers)

    def _arrived(self, name: str, gradient: torch.Tensor) -> None:
        if not self.passes_over(name):
            self.show(self.micro_batch, name, gradient)

    def show(self, micro_batch: int, name: str, gradient: torch.Tensor) -> None:
        """Show a micro-batch's gradient."""
        for watcher in self._watchers:
            watcher(micro_batch, name, gradient)

    def close(self) -> None:
        """Take the hooks off the parameters."""
        self._undo.close()


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """What calls a method unless its object is gone.

    What hooks hold is held weakly: a garbage collector does not see it.
    """
    owner, function = ref(method.__self__), method.__func__  # type: ignore[attr-defined]

    def call(*args: Any) -> None:
        alive = owner()
        if alive is not None:
            function(alive, *args)

    return call


class ArrivingGradients:
    """Knows which records have all their gradients, and takes them off the parameters.

    Args:
        split: the model's records.
        parameters: by name; a gradient is expected of those that want one.
        device: where gradients arrive.

    Attributes:
        watchers: look at the gradients of each micro-batch.
        slices_wait: whether gradients of slices are complete only when their layer is passed, where
            there are several micro-batches.
        keeps_parts: whether the micro-batches' gradients are not to be added here.
        planned_micro_batches: of the step; a pass that has fewer of them has no more room.
    """

    def __init__(
        self, split: Partition, parameters: Mapping[str, nn.Parameter], device: Device
    ) -> None:
        self.watchers = GradientWatchers(parameters)
        self.slices_wait = False
        self.keeps_parts = False
        self.planned_micro_batches = 1
        self.watchers.passes_over = lambda name: split.record_of[name] in self._apart
        self._split = split
        self._parameters = parameters
        self._device = device
        self._num_micro_batches = 1
        # Of those that are expected, by record.
        self._num_arrived: dict[str, int] = {}
        self._expected = {
            record: frozenset(name for name in names if parameters[name].requires_grad)
            for record, names in split.records.items()
        }
        # Records that got others, too: nobody knows which is their last.
        self._unforeseen: set[str] = set()
        shared = {record for layer in split.layers for record in layer.shared}
        self._often_used = frozenset(shared | {PINNED})
        # Records whose gradients of a micro-batch come in parts, and those parts in host memory.
        self._apart: set[str] = set()
        self._parts: dict[str, dict[int, torch.Tensor]] = {}

    def expect(self, names: Sequence[str]) -> None:
        """Say which parameters get a gradient, so that a record does not wait for the others."""
        expected = frozenset(names)
        for record, held in self._split.records.items():
            self._expected[record] = expected.intersection(held) or self._expected[record]

    def are_expected(self, record: str) -> bool:
        """Whether a parameter of the record gets a gradient, as far as is known."""
        return bool(self._expected[record])

    def begin(self, num_micro_batches: int, *, is_rising: bool = False) -> None:
        """A pass of so many micro-batches begins; their forwards run in falling order or rising."""
        self._num_micro_batches = num_micro_batches
        self._unforeseen.clear()
        has_parts = self.keeps_parts and num_micro_batches > 1
        apart = self._split.records if is_rising or has_parts else self._often_used
        self._apart = set(apart) if self.are_of_several else set()

    @property
    def are_of_several(self) -> bool:
        """Whether the pass, or the step that it has the room of, has several micro-batches."""
        return max(self._num_micro_batches, self.planned_micro_batches) > 1

    def keep_apart(self, records: Iterable[str]) -> None:
        """Another layer call of the pass uses these records."""
        if self.are_of_several:
            self._apart.update(records)

    def note(self, name: str) -> str | None:
        """A parameter's gradient has arrived; returns its record if that is complete.

        The pinned record never is: its turn in the store comes when no other loan is out.
        """
        record = self._split.record_of[name]
        is_expected = name in self._expected[record]
        self._num_arrived[record] = self._num_arrived.get(record, 0) + is_expected
        if not is_expected:
            self._unforeseen.add(record)
        if record in self._apart:
            self._put_aside(name)
            return None
        if self.slices_wait and self._num_micro_batches > 1 and slice_of(record) is not None:
            return None
        if record in self._unforeseen:
            return None
        wanted = len(self._expected[record]) * self._num_micro_batches
        return record if self._num_arrived[record] >= wanted and record != PINNED else None

    def _put_aside(self, name: str) -> None:
        gradient = take_gradient(self._parameters[name])
        if gradient is None:
            return
        parts, micro_batch = self._parts.setdefault(name, {}), self.watchers.micro_batch
        with self._device.host_section(), torch.no_grad():
            on_host = torch.empty_like(gradient, device="cpu")
            self._device.download(gradient, on_host, self._device.submitted()).wait()
            if micro_batch in parts:
                parts[micro_batch].add_(on_host)
            else:
                parts[micro_batch] = on_host

    @property
    def begun(self) -> list[str]:
        """Records of which some gradients have arrived, the pinned one behind the others."""
        return sorted(self._num_arrived, key=PINNED.__eq__)

    def take(self, record: str) -> dict[str, torch.Tensor]:
        """The gradients of a record by parameter name; the parameters have none any more."""
        self._num_arrived.pop(record, None)
        gradients = {}
        for name in self._split.records[record]:
            gradient = self._sum_of_parts(name) if record in self._apart else None
            if gradient is None:
                gradient = take_gradient(self._parameters[name])
            if gradient is not None:
                gradients[name] = gradient
        return gradients

    def take_parts(self, record: str) -> list[dict[str, torch.Tensor]]:
        """As :meth:`take`, of each micro-batch by itself, in rising order and in host memory."""
        if record not in self._apart:
            gradients = self.take(record)
            give = self._device.give_to_host
            return [{name: give(one) for name, one in gradients.items()}] if gradients else []
        self._num_arrived.pop(record, None)
        by_index: dict[int, dict[str, torch.Tensor]] = {}
        for name in self._split.records[record]:
            for index, gradient in self._parts.pop(name, {}).items():
                self.watchers.show(index, name, gradient)
                by_index.setdefault(index, {})[name] = gradient
        return [by_index[index] for index in sorted(by_index)]

    def _sum_of_parts(self, name: str) -> torch.Tensor | None:
        parts = self._parts.pop(name, None)
        if parts is None:
            return None
        (first, total), *others = sorted(parts.items())
        with self._device.host_section(), torch.no_grad():
            self.watchers.show(first, name, total)
            for index, gradient in others:
                self.watchers.show(index, name, gradient)
                total.add_(gradient)
        return brought(self._device, total)

    def forget(self) -> None:
        """Start anew, and drop the gradients that have arrived."""
        self._num_arrived.clear()
        self._parts.clear()
        for parameter in self._parameters.values():
            take_gradient(parameter)


def take_gradient(parameter: nn.Parameter) -> torch.Tensor | None:
    """The gradient that a parameter itself has, released or not; it has none afterwards."""
    gradient: torch.Tensor | None = OWN_GRAD.__get__(parameter)
    OWN_GRAD.__set__(parameter, None)
    return gradient


def renew_accumulators(parameters: Iterable[nn.Parameter]) -> None:
    """Let what is computed from now on have its own gradients of these parameters."""
    for parameter in parameters:
        data = OWN_DATA.__get__(parameter)
        other = torch.float32 if data.dtype is torch.float64 else torch.float64
        OWN_DATA.__set__(parameter, torch.empty(0, dtype=other, device=data.device))
        OWN_DATA.__set__(parameter, data)


def before_accumulation(parameter: nn.Parameter, function: Callable[[], None]) -> Node:
    """Call ``function`` before the present accumulator of a parameter adds a gradient.

    Returns:
        The accumulator, which lives while somebody holds it or a graph uses it.
    """
    node = get_gradient_edge(parameter).node
    node.register_prehook(lambda _: function())
    return node
