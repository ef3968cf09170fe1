"""Weights on the device: slots that records come and go in, and the parameters bound to them."""

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from threading import get_ident
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.layout import Part, RecordLayout, slice_of, whole_name
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.device.saved_weights import Cast, Geometry, cast_of_leaf
from openwafer.training.stream.forms.weight_form import WeightForm
from openwafer.training.stream.layers import PINNED
from openwafer.training.torch_private import (
    counted_writes,
    graph_task_id,
    next_sequence_nr,
    storage_use_count,
)

# Attributes of an ordinary parameter, which a released one hides.
OWN_DATA: Final[Any] = torch.Tensor.data
OWN_GRAD: Final[Any] = torch.Tensor.grad


class WeightHandle(NamedTuple):
    """A weight that autograd saved, by place instead of by value.

    Attributes:
        record: record it lies in.
        cast: set when the saved tensor is a view of a cast weight, else of the record's slot.
        seen: the saved tensor in that copy, or in the slot.
    """

    record: str
    cast: Cast | None
    seen: Geometry


@dataclass(slots=True)
class HeldRecord:
    """A record on the device, its parameters bound to it or still to be.

    Attributes:
        slot: its memory, uint8 [bytes].
        is_lent: whether the host lends that.
        is_bound: whether its parameters lie in it; the others say nothing before.
        num_users: tensors over the slot, those of the parameters left out.
        thread, next_node: that bound it, and the number of the autograd node it would make next.
        versions: autograd's counters of writes to the parameters, by name.
    """

    slot: torch.Tensor
    is_lent: bool = False
    is_bound: bool = False
    num_users: int = 0
    thread: int = 0
    next_node: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)


class WeightUses:
    """What the model's code does with weights on the device, and may not."""

    def written(self, name: str) -> None:
        """A forward has written to the parameter of that name."""
        raise error(
            "weights-written",
            f"the model's forward writes to the weight {name!r}, and weights that are streamed are "
            "only written by the optimizer and between passes",
            help="write to it in the loop, between two steps, or let the model be resident",
        )

    def kept(self, names: Sequence[str]) -> None:
        """One of these parameters is held beyond its layer."""
        raise error(
            "weights-kept",
            f"a view of one of the weights {', '.join(names)} is held by an attribute, a hook or a "
            "backward of somebody's own, and their memory is about to be that of others",
            help="hold a copy, with .clone(); in an autograd.Function, give weights to "
            "ctx.save_for_backward; or let the model be resident",
        )

    def saved(self, layer: str, tensor: torch.Tensor) -> None:
        """A layer has saved a tensor and does not keep it."""


class DeviceWeights:
    """The streamed weights on one device.

    A released parameter keeps its shape and holds NaN without memory, so a use outside its layer
    cannot go unseen. Slots are pooled by size and never hold more than ``capacity_bytes``, except
    those in memory that the host lends, which go back.

    Args:
        forms: by parameter of the model; what they store is streamed.
        layouts: the records.
        device: where slots are.
        are_watched: whether writes to the data of bound parameters, and reads of gradients, are
            noticed.
        uses: is told of what the model's code does with weights.

    Attributes:
        held_bytes, lent_bytes: of the slots in use, and of those that are the host's memory.
        are_hidden: whether a forward is over and its backward is still to come, or has failed.
        has_earlier_gradients: whether a plain loop would have gone back through other micro-batches
            of the step before the forward under way.
    """

    are_hidden = has_earlier_gradients = False

    def __init__(
        self,
        forms: Mapping[str, WeightForm],
        layouts: Mapping[str, RecordLayout],
        device: Device,
        *,
        are_watched: bool = False,
        uses: WeightUses | None = None,
    ) -> None:
        self.device = device
        self.are_watched = are_watched
        self.uses = uses or WeightUses()
        self.forms = forms
        self.parameters = {
            name: parameter for form in forms.values() for name, parameter in form.stored.items()
        }
        self.capacity_bytes = 0
        self._layouts = layouts
        self._places = {name: layout.parts[Part.WEIGHTS] for name, layout in layouts.items()}
        self._names = {
            record: tuple(place.spec.name for place in places)
            for record, places in self._places.items()
        }
        self._held: dict[str, HeldRecord] = {}
        self.held_bytes = self.lent_bytes = 0
        # Records whose memory the host is going to lend.
        self._expected: set[str] = set()
        # What code has been given as the data of bound parameters, by a parameter's identity.
        self._given: dict[int, list[torch.Tensor]] = {}
        # How often weights that a forward may have used got other values.
        self.num_writes = 0
        # How often optimizers have stepped, and at which step they changed a record last.
        self.num_updates = 0
        self._updated_at: dict[str, int] = {}
        self._released_class: type[nn.Parameter] | None = None
        self._own_classes = {name: type(held) for name, held in self.parameters.items()}
        bound = {
            kind: self._watched(kind) if are_watched else kind
            for kind in {*self._own_classes.values()}
        }
        self._bound_classes = {name: bound[kind] for name, kind in self._own_classes.items()}
        self._by_storage: dict[int, str] = {}
        # Storages of slices that were dropped while the layer's code held views of them.
        self._viewed: dict[str, weakref.ref[torch.UntypedStorage]] = {}
        self._pool: dict[int, list[torch.Tensor]] = {}
        self._pooled_bytes = 0
        # One NaN a parameter, whose storage also tells which parameter was used while released.
        never_bound = {name: form.weight for name, form in forms.items() if name not in form.stored}
        self._nothing = {
            name: _no_value(parameter.dtype, device.torch_device).expand(parameter.shape)
            for name, parameter in (self.parameters | never_bound).items()
        }
        self._nothing_of = {
            nothing.untyped_storage()._cdata: name for name, nothing in self._nothing.items()
        }
        for name, parameter in never_bound.items():
            OWN_DATA.__set__(parameter, self._nothing[name])

    def memory(self) -> list[torch.Tensor]:
        """All memory that weights have on the device, slots without a record included."""
        slots = [held.slot for held in self._held.values()]
        return [*slots, *chain.from_iterable(self._pool.values())]

    def holds(self, record: str) -> bool:
        """Whether the record has a slot, filled or being filled."""
        return record in self._held or record in self._expected

    def num_bytes(self, record: str) -> int:
        """Bytes of the record's slot."""
        return self._layouts[record].part_bytes(Part.WEIGHTS)

    def names(self, record: str) -> tuple[str, ...]:
        """The record's weights."""
        return self._names[record]

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
        self._hold(HeldRecord(slot), record)
        return slot

    def _hold(self, held: HeldRecord, record: str) -> HeldRecord:
        self._held[record] = held
        self.held_bytes += held.slot.numel()
        return held

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
        pinned = self._held.get(PINNED)
        beside = 0 if pinned is None else pinned.slot.numel()
        allowed = self.capacity_bytes - (self.held_bytes - beside) - num_bytes
        for size in sorted(self._pool, reverse=True):
            while self._pool[size] and self._pooled_bytes > allowed:
                self._pool[size].pop()
                self._pooled_bytes -= size

    def in_the_way(self, records: Iterable[str], wanted: Collection[str]) -> Iterator[str]:
        """Records on the device whose release lets others, beside the schedule, fit its capacity.

        What the schedule has brought for later comes again when it is used.

        Args:
            records: those that share the capacity.
            wanted: records that a layer needs, on the device already or not.
        """
        held = [record for record in records if self.holds(record)]
        total = sum(map(self.num_bytes, {*held, *wanted}))
        for record in held:
            if total <= self.capacity_bytes:
                return
            if record not in wanted:
                total -= self.num_bytes(record)
                yield record

    def bind(self, record: str, lent: torch.Tensor | None = None) -> None:
        """Point the record's parameters at its slot, or at the memory lent for it."""
        self.are_hidden = False
        if lent is not None:
            self._expected.remove(record)
            self.lent_bytes += lent.numel()
            held = self._hold(HeldRecord(lent, is_lent=True), record)
        else:
            held = self._held[record]
        held.is_bound, held.num_users = True, _num_users(held.slot)
        self._by_storage[held.slot.untyped_storage()._cdata] = record
        held.thread, held.next_node = get_ident(), next_sequence_nr()
        for name, view in self.views_of(record, held.slot).items():
            parameter = self.parameters[name]
            if parameter.__class__ is not self._bound_classes[name]:
                parameter.__class__ = self._bound_classes[name]
            OWN_DATA.__set__(parameter, view)
        held.versions = self._versions_of(record)

    def _watched(self, kind: type[nn.Parameter]) -> type[nn.Parameter]:
        """A class like ``kind``: notes what its parameters give as data, and guards gradients."""

        def data(parameter: nn.Parameter) -> torch.Tensor:
            tensor: torch.Tensor = OWN_DATA.__get__(parameter)
            self._given.setdefault(id(parameter), []).append(tensor)
            return tensor

        found = _guarded(kind, self._refuse_gradient)
        found.data = property(data, OWN_DATA.__set__)  # type: ignore[assignment]
        return found

    def _refuse_gradient(self, parameter: nn.Parameter, given: torch.Tensor | None = None) -> None:
        """Refuse a forward that would find a gradient in a bound parameter, or leave one there."""
        # In a backward a parameter has what has come of its gradient.
        if graph_task_id() != -1:
            return
        released: Any = self._released_class
        if released is None:
            if self.has_earlier_gradients:
                raise gradients_not_come(self._name_of(parameter))
        elif given is not None or released.grad.__get__(parameter) is not None:
            raise error(
                "streamed-gradient-read",
                f"the forward of its layer uses the gradient of {self._name_of(parameter)!r}, "
                "which is in the parameter store while the weight is on the device",
                help="read and write gradients in the loop, between two forwards, and give the "
                "model what is computed of them",
            )

    def _name_of(self, parameter: nn.Parameter) -> str:
        return next(name for name, one in self.parameters.items() if one is parameter)

    def _versions_of(self, record: str) -> dict[str, int]:
        return {name: counted_writes.__get__(self.parameters[name]) for name in self._names[record]}

    def check_unwritten(self, record: str) -> None:
        """Tell of parameters of a record that were written to since they were bound.

        A backward inside a layer may have ended the pass, and sent the record away.
        """
        for name in self._written(record) if record in self._held else ():
            self.uses.written(name)

    def _written(self, record: str) -> list[str]:
        found, held = self._versions_of(record), self._held[record]
        bound, held.versions = held.versions, found
        if found == bound and not self._given:
            return []
        return [name for name in found if self._is_data_written(name) or found[name] != bound[name]]

    def _is_data_written(self, name: str) -> bool:
        """Whether it was written to as data: autograd counts that apart."""
        given = self._given.pop(id(self.parameters[name]), ())
        return any(data._version for data in given)

    def views_of(self, record: str, slot: torch.Tensor) -> dict[str, torch.Tensor]:
        """Any memory of the record's size as its weights, by parameter name."""
        with torch.no_grad():
            return {place.spec.name: place.view_in(slot) for place in self._places[record]}

    def own_classes(self) -> None:
        """Undo :meth:`release_as`."""
        self._released_class = None
        self.unwatch()

    def unwatch(self) -> None:
        """Watch parameters no more; those whose weights are away stay released."""
        for name, parameter in self.parameters.items():
            if parameter.__class__ is not self._released_class:
                parameter.__class__ = self._own_classes[name]

    def note_update(self, records: Iterable[str]) -> None:
        """An optimizer has stepped, and has changed these records."""
        self.num_writes += 1
        self.num_updates += 1
        self._updated_at.update(dict.fromkeys(records, self.num_updates))

    def check_not_updated(self, record: str, since: int) -> None:
        """Refuse weights that an optimizer has changed since a number of updates.

        Raises:
            OpenwaferError: ``weights-updated``.
        """
        if self._updated_at.get(record, 0) > since:
            raise error(
                "weights-updated",
                f"the backward wants the weights of {record!r} as they were in its forward, and an "
                "optimizer has stepped since; a plain loop refuses that, too",
                help="call backward for all losses before optimizer.step(), or run the forward "
                "again after it",
            )

    def hide(self) -> None:
        """Let bound parameters look released to others than the model's own code."""
        self.are_hidden = True
        self._set_classes_of_bound(self._released_class)

    def show(self) -> None:
        """Undo :meth:`hide`."""
        self.are_hidden = False
        self._set_classes_of_bound(None)

    def _set_classes_of_bound(self, kind: type[nn.Parameter] | None) -> None:
        if self._released_class is not None:
            for record in self._by_storage.values():
                for name in self._names[record]:
                    self.parameters[name].__class__ = kind or self._bound_classes[name]

    def release_as(self, kind: type[nn.Parameter]) -> None:
        """Parameters are of that class while their weights are away."""
        self._released_class = kind
        for record in self._layouts:
            if not self.holds(record):
                self.unbind(record)

    def drop(self, record: str, *, has_failed: bool = False) -> None:
        """Give the record's slot back and leave its parameters without memory.

        Args:
            record: on the device.
            has_failed: whether its pass did, so that an exception may hold what the layer held.
        """
        if record in self._expected:
            self._expected.remove(record)
            return
        held = self._held[record]
        slot = held.slot
        replaced = self._replaced(record, held) if held.is_bound else []
        written = self._written(record) if held.is_bound else []
        del self._held[record]
        self._by_storage.pop(slot.untyped_storage()._cdata, None)
        self.held_bytes -= slot.numel()
        self.unbind(record)
        is_watched = held.is_bound and slice_of(record) is None and not has_failed
        is_kept = is_watched and _num_users(slot) > held.num_users
        is_viewed = slice_of(record) is not None and is_shared(slot)
        if is_viewed and not has_failed:
            self._viewed[record] = weakref.ref(slot.untyped_storage())
        if held.is_lent:
            self.lent_bytes -= slot.numel()
        elif not is_viewed:
            self._pool.setdefault(slot.numel(), []).append(slot)
            self._pooled_bytes += slot.numel()
            self._trim_pool(0)
        for name in (*replaced, *written):
            self.uses.written(name)
        if is_kept:
            self.uses.kept(self._names[record])

    def check_let_go(self) -> None:
        """Tell of weights of whose slices there are views, at the end of a pass."""
        viewed, self._viewed = self._viewed, {}
        held = {whole_name(record): None for record, storage in viewed.items() if storage()}
        if held:
            self.uses.kept(tuple(held))

    def _replaced(self, record: str, held: HeldRecord) -> list[str]:
        """Parameters of a bound record that the forward has pointed at other memory."""
        bound, names = held.slot.untyped_storage()._cdata, self._names[record]
        for name in names:
            self.parameters[name].__class__ = self._own_classes[name]
        return [name for name in names if self.parameters[name].untyped_storage()._cdata != bound]

    def bound_parameter(self, tensor: torch.Tensor) -> str | None:
        """Name of the parameter that ``tensor`` is a view of, if its weights are here."""
        record = self._by_storage.get(torch.Tensor.untyped_storage(tensor)._cdata)
        if record is None:
            return None
        offset = int(tensor.storage_offset()) * tensor.element_size()
        places = self._places[record]
        return next(place.spec.name for place in reversed(places) if place.offset_bytes <= offset)

    def offset_bytes(self, name: str) -> int:
        """Where a parameter begins in the slot of its record."""
        places = chain.from_iterable(self._places.values())
        return next(place.offset_bytes for place in places if place.spec.name == name)

    def unbind(self, record: str) -> None:
        """Leave the record's parameters with their shapes and without memory."""
        for name in self._names[record]:
            parameter = self.parameters[name]
            OWN_DATA.__set__(parameter, self._nothing[name])
            kind = self._released_class or self._bound_classes[name]
            if parameter.__class__ is not kind:
                parameter.__class__ = kind

    def released_parameter(self, tensor: torch.Tensor) -> str | None:
        """Name of the parameter that ``tensor`` is a view of, if its weights are not here."""
        return self._nothing_of.get(tensor.untyped_storage()._cdata)

    def handle(self, tensor: torch.Tensor) -> WeightHandle | None:
        """The handle of a tensor that is a weight, a view of one, or a cast of one."""
        if tensor.layout is not torch.strided:
            return None
        # As every tensor has it: a weight that is read outside its layer hides its own.
        storage = torch.Tensor.untyped_storage(tensor)
        record = self._by_storage.get(storage._cdata)
        if record is not None:
            return WeightHandle(record, None, Geometry.of(tensor))
        made = cast_of_leaf(tensor)
        if made is None:
            return None
        record = self._by_storage.get(made.leaf.untyped_storage()._cdata)
        if record is None or self._was_bound_since(record, made.sequence_number):
            return None
        return WeightHandle(record, made.cast, Geometry.of(tensor))

    def _was_bound_since(self, record: str, sequence_number: int) -> bool:
        """Whether a node is older than the weights that are here, which may be other values."""
        held = self._held[record]
        # Each thread numbers its nodes. A backward pass in another one computes anew what the
        # forward computed.
        return held.thread == get_ident() and sequence_number < held.next_node

    def resolve(self, handle: WeightHandle) -> torch.Tensor:
        """The weight of a handle, from the slot its record is in now."""
        storage = self._held[handle.record].slot
        if handle.cast is not None:
            storage = handle.cast.repeated(storage)
        return handle.seen.view_of(storage)


def gradients_not_come(name: str) -> OpenwaferError:
    """The error of a forward that looks for the gradient of micro-batches before it."""
    return error(
        "streamed-gradient-read",
        f"the model's forward uses the gradient of {name!r}, to which a plain loop has added those "
        "of the micro-batches before, and here all of them go forward before the first goes back",
        help="read gradients between two steps, give a step one micro-batch, or let the model be "
        "resident",
    )


class GradientGuard:
    """Refuses forwards that use gradients while those of earlier micro-batches are not there.

    Args:
        parameters: of the model, by name.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters
        kinds = {type(parameter) for parameter in parameters.values()}
        self._kinds = {kind: _guarded(kind, self._refuse) for kind in kinds}

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Context of a forward."""
        before = [(parameter, type(parameter)) for parameter in self._parameters.values()]
        for parameter, kind in before:
            parameter.__class__ = self._kinds.get(kind, kind)
        try:
            yield
        finally:
            for parameter, kind in before:
                parameter.__class__ = kind

    def _refuse(self, parameter: nn.Parameter, _: torch.Tensor | None = None) -> None:
        name = next(name for name, one in self._parameters.items() if one is parameter)
        raise gradients_not_come(name)


def _guarded(kind: type[nn.Parameter], check: Callable[..., None]) -> type[nn.Parameter]:
    """A class like ``kind`` that calls a check before it gives or takes a gradient."""

    def gradient(parameter: nn.Parameter) -> torch.Tensor | None:
        check(parameter)
        found: torch.Tensor | None = OWN_GRAD.__get__(parameter)
        return found

    def set_gradient(parameter: nn.Parameter, given: torch.Tensor | None) -> None:
        check(parameter, given)
        OWN_GRAD.__set__(parameter, given)

    attributes = {
        "grad": property(gradient, set_gradient),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    return type(kind.__name__, (kind,), attributes)


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether other tensors lie in the storage of one."""
    return _num_users(tensor) > _num_users(tensor.new_empty(0))


def _num_users(tensor: torch.Tensor) -> int:
    """Tensors over the storage of one, and the storage's own object."""
    users: int = storage_use_count(tensor.untyped_storage()._cdata)
    return users


def _no_value(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """NaN, or zero for whole numbers, which know none."""
    value = float("nan") if dtype.is_floating_point or dtype.is_complex else 0
    return torch.full((), value, dtype=dtype, device=device)
