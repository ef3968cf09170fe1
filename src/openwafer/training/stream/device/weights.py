"""Weights on the device: slots that records come and go in, and the parameters bound to them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.layers import PINNED

# Autograd nodes that change a tensor's geometry only, so that what they return is still a weight.
_VIEWS: Final = (
    "Alias",
    "AsStrided",
    "Detach",
    "Expand",
    "Permute",
    "ReshapeAlias",
    "Select",
    "Slice",
    "Split",
    "Squeeze",
    "T",
    "Transpose",
    "Unbind",
    "UnsafeView",
    "Unsqueeze",
    "View",
)
VIEW_NODES: Final = frozenset(f"{name}Backward0" for name in _VIEWS)
CAST_NODE: Final = "ToCopyBackward0"
MAX_CHAIN: Final = 6


@dataclass(frozen=True, slots=True)
class WeightHandle:
    """A weight that autograd saved, by place instead of by value.

    Attributes:
        record: record it lies in.
        parameter: set when the saved tensor is a copy of this parameter cast to ``dtype``;
            otherwise the tensor is a view of the record's slot.
        dtype, size, stride, offset: geometry, in elements of ``dtype``.
    """

    record: str
    parameter: str | None
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class DeviceWeights:
    """The streamed weights on one device.

    A released parameter keeps its shape and holds NaN without memory, so a use outside its layer
    cannot go unseen. Slots are pooled by size and never hold more than ``capacity_bytes``, except
    those in memory that the host lends, which go back.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        layouts: Mapping[str, RecordLayout],
        device: Device,
    ) -> None:
        self.device = device
        self.parameters = dict(parameters)
        self.capacity_bytes = 0
        self._layouts = layouts
        self._slots: dict[str, torch.Tensor] = {}
        # Records whose memory the host lends: announced, and with it in their slots.
        self._expected: set[str] = set()
        self._lent: set[str] = set()
        self._released_class: type[nn.Parameter] | None = None
        self._own_classes = {name: type(parameter) for name, parameter in parameters.items()}
        self._by_storage: dict[int, str] = {}
        self._pool: dict[int, list[torch.Tensor]] = {}
        self._pooled_bytes = 0
        self._record_of = {
            place.spec.name: record
            for record, layout in layouts.items()
            for place in layout.parts[Part.WEIGHTS]
        }
        self._name_of = {id(parameter): name for name, parameter in self.parameters.items()}
        # One NaN a parameter, whose storage also tells which parameter was used while released.
        self._nothing = {
            name: _no_value(parameter.dtype, device.torch_device).expand(parameter.shape)
            for name, parameter in self.parameters.items()
        }
        self._nothing_of = {
            nothing.untyped_storage()._cdata: name for name, nothing in self._nothing.items()
        }

    @property
    def held_bytes(self) -> int:
        """Bytes of the slots in use."""
        return sum(slot.numel() for slot in self._slots.values())

    def holds(self, record: str) -> bool:
        """Whether the record has a slot, filled or being filled."""
        return record in self._slots or record in self._expected

    def num_bytes(self, record: str) -> int:
        """Bytes of the record's slot."""
        return self._layouts[record].part_bytes(Part.WEIGHTS)

    def take_slot(self, record: str) -> torch.Tensor:
        """A slot for the record: uint8 [bytes], uninitialised."""
        num_bytes = self.num_bytes(record)
        pooled = self._pool.get(num_bytes)
        if pooled:
            slot = pooled.pop()
            self._pooled_bytes -= num_bytes
        else:
            self._trim_pool(num_bytes)
            slot = self.new_slot(record)
        self._slots[record] = slot
        return slot

    def new_slot(self, record: str) -> torch.Tensor:
        """Memory on the device for the record: uint8 [bytes], uninitialised."""
        size = self.num_bytes(record)
        return torch.empty(size, dtype=torch.uint8, device=self.device.torch_device)

    def expect(self, record: str) -> None:
        """The record gets no slot: the host lends its memory."""
        self._trim_pool(self.num_bytes(record))
        self._expected.add(record)

    def _trim_pool(self, num_bytes: int) -> None:
        # The capacity is that of streamed records; the pinned one lies beside it.
        pinned = self._slots.get(PINNED)
        beside = 0 if pinned is None else pinned.numel()
        allowed = self.capacity_bytes - (self.held_bytes - beside) - num_bytes
        for size in sorted(self._pool, reverse=True):
            while self._pool[size] and self._pooled_bytes > allowed:
                self._pool[size].pop()
                self._pooled_bytes -= size

    def bind(self, record: str, lent: torch.Tensor | None = None) -> None:
        """Point the record's parameters at its slot, or at the memory lent for it."""
        if lent is not None:
            self._expected.remove(record)
            self._lent.add(record)
            self._slots[record] = lent
        self._by_storage[self._slots[record].untyped_storage()._cdata] = record
        for name, view in self.views(record).items():
            if self._released_class is not None:
                self.parameters[name].__class__ = self._own_classes[name]
            self.parameters[name].data = view

    def views(self, record: str) -> dict[str, torch.Tensor]:
        """The record's slot as its weights, by parameter name."""
        return self.views_of(record, self._slots[record])

    def views_of(self, record: str, slot: torch.Tensor) -> dict[str, torch.Tensor]:
        """Any memory of the record's size as its weights, by parameter name."""
        with torch.no_grad():
            return {
                place.spec.name: place.view_in(slot)
                for place in self._layouts[record].parts[Part.WEIGHTS]
            }

    def own_classes(self) -> None:
        """Undo :meth:`release_as`."""
        self._released_class = None
        for name, parameter in self.parameters.items():
            parameter.__class__ = self._own_classes[name]

    def release_as(self, kind: type[nn.Parameter]) -> None:
        """Parameters are of that class while their weights are away."""
        self._released_class = kind
        for record in self._layouts:
            if not self.holds(record):
                self.unbind(record)

    def drop(self, record: str) -> None:
        """Give the record's slot back and leave its parameters without memory."""
        if record in self._expected:
            self._expected.remove(record)
            return
        slot = self._slots.pop(record)
        self._by_storage.pop(slot.untyped_storage()._cdata, None)
        self.unbind(record)
        if record in self._lent:
            self._lent.remove(record)
            return
        self._pool.setdefault(slot.numel(), []).append(slot)
        self._pooled_bytes += slot.numel()
        self._trim_pool(0)

    def unbind(self, record: str) -> None:
        """Leave the record's parameters with their shapes and without memory."""
        for place in self._layouts[record].parts[Part.WEIGHTS]:
            parameter = self.parameters[place.spec.name]
            parameter.data = self._nothing[place.spec.name]
            if self._released_class is not None:
                parameter.__class__ = self._released_class

    def released_parameter(self, tensor: torch.Tensor) -> str | None:
        """Name of the parameter that ``tensor`` is a view of, if its weights are not here."""
        return self._nothing_of.get(tensor.untyped_storage()._cdata)

    def handle(self, tensor: torch.Tensor) -> WeightHandle | None:
        """The handle of a tensor that is a weight, a view of one, or a cast of one."""
        record = self._by_storage.get(tensor.untyped_storage()._cdata)
        parameter = None
        if record is None:
            parameter = self._cast_parameter(tensor)
            if parameter is None:
                return None
            record = self._record_of[parameter]
        return WeightHandle(
            record,
            parameter,
            tensor.dtype,
            tuple(tensor.size()),
            tensor.stride(),
            int(tensor.storage_offset()),
        )

    def _cast_parameter(self, tensor: torch.Tensor) -> str | None:
        """Name of the parameter that ``tensor`` is a cast of, found by its autograd history."""
        node = tensor.grad_fn
        num_casts = 0
        for _ in range(MAX_CHAIN):
            if node is None:
                return None
            if hasattr(node, "variable"):
                name = self._name_of.get(id(node.variable))
                return name if num_casts == 1 else None
            if node.name() == CAST_NODE:
                num_casts += 1
            elif node.name() not in VIEW_NODES:
                return None
            node = node.next_functions[0][0]
        return None

    def resolve(self, handle: WeightHandle) -> torch.Tensor:
        """The weight of a handle, from the slot its record is in now."""
        if handle.parameter is None:
            slot = self._slots[handle.record].view(handle.dtype)
            return slot.as_strided(handle.size, handle.stride, handle.offset)
        cast = self.parameters[handle.parameter].detach().to(handle.dtype)
        return cast.as_strided(handle.size, handle.stride, handle.offset)


def _no_value(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """NaN, or zero for whole numbers, which know none."""
    value = float("nan") if dtype.is_floating_point or dtype.is_complex else 0
    return torch.full((), value, dtype=dtype, device=device)
