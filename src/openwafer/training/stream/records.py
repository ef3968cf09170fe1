"""Lays out a model's records: which arrays the store keeps for each layer."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import torch

from openwafer.diagnostics import error
from openwafer.training.store.layout import (
    KEPT_PARTS,
    ArraySpec,
    Part,
    RecordLayout,
    array_named,
    lay_out,
    slice_of,
    state_name,
    strides_of,
    wholes,
)
from openwafer.training.store.pages import page_out
from openwafer.training.store.record_access import Arrays, LentRecords, Records
from openwafer.training.store.update_rules.update_pass import (
    LOW_BITS,
    TIE_BITS,
    SplitMaster,
    join_master,
    split_master,
)
from openwafer.training.stream.layers import Partition

StateArrays: TypeAlias = Callable[[ArraySpec], tuple[ArraySpec, ...]]
"""The arrays that a parameter needs among its record's states."""


def lay_out_records(
    split: Partition,
    *,
    parameters: Mapping[str, torch.Tensor],
    state_arrays: StateArrays,
    keeps_gradients: bool,
) -> dict[str, RecordLayout]:
    """The records of a split.

    A record's weights are those of its layer and its states what the update rules need. Where
    gradients are kept, it has those of its trained weights, in the weights' dtypes and strides.

    Raises:
        OpenwaferError: ``weight-not-dense``.
    """
    return {
        record: _lay_out_one(
            record,
            {name: array_named(parameters, name) for name in names},
            state_arrays,
            keeps_gradients,
        )
        for record, names in split.records.items()
    }


def _lay_out_one(
    record: str,
    parameters: Mapping[str, torch.Tensor],
    state_arrays: StateArrays,
    keeps_gradients: bool,
) -> RecordLayout:
    weights = [array_of(name, parameter) for name, parameter in parameters.items()]
    states = [array for weight in weights for array in state_arrays(weight)]
    gradients = [
        weight for weight in weights if keeps_gradients and parameters[weight.name].requires_grad
    ]
    return lay_out(record, weights, states, gradients)


def array_of(name: str, parameter: torch.Tensor) -> ArraySpec:
    """The array of a parameter, as it lies in memory. Raises ``weight-not-dense``."""
    strides = strides_of(parameter)
    if strides is not None and not torch.ops.aten.is_non_overlapping_and_dense(parameter):
        raise error(
            "weight-not-dense",
            f"the weight {name!r} of shape {tuple(parameter.shape)} has the strides "
            f"{parameter.stride()}: its elements have gaps between them, or share memory",
            help=f"give it memory of its own before the first step: {name}.data = "
            f"{name}.data.contiguous()",
        )
    return ArraySpec(name, parameter.dtype, tuple(parameter.shape), strides)


def write_weights(store: Records, parameters: Mapping[str, torch.Tensor]) -> None:
    """Write initial weights into a new store, record by record.

    Weights that lie in a file leave the memory again once they are written.

    Args:
        store: its records name the parameters, or slices of them.
        parameters: tensors by name, in host memory or file-backed. One in fp32 of which the store
            keeps a master is the master; of one in bf16 the master has the same value. A mapping
            that reads a tensor when it is asked for is asked once for all slices of it.
    """
    parameters = _LastRead(parameters)
    for record, layout in store.layouts.items():
        if not layout.part_bytes(Part.WEIGHTS):
            continue
        names = [place.spec.name for place in layout.parts[Part.WEIGHTS]]
        masters = {name for name in names if has_master(layout, name)}
        changed = KEPT_PARTS if masters else (Part.WEIGHTS,)
        with store.lent(record, changed, fresh=changed) as loan, torch.no_grad():
            if masters:
                loan.part_bytes_view(Part.STATES).zero_()
            for name in names:
                source = array_named(parameters, name)
                write_weight(loan, name, source, keeps_master=name in masters)
                page_out(source)


def has_master(layout: RecordLayout, name: str) -> bool:
    """Whether the record keeps a master of the parameter."""
    low_bits = state_name(LOW_BITS, name)
    return any(place.spec.name == low_bits for place in layout.parts[Part.STATES])


def write_weight(loan: Arrays, name: str, value: torch.Tensor, *, keeps_master: bool) -> None:
    """Give a parameter of a lent record another value, and its master, if it keeps one, too.

    An fp32 value is the master. A master that is rounded to a value of another dtype stays.
    """
    weight = loan.tensor(name, Part.WEIGHTS)
    if keeps_master and value.dtype is torch.float32:
        split_master(value.contiguous().view(-1), master_parts(loan, name))
    elif keeps_master:
        rounded = value.to(weight.dtype)
        if not torch.equal(rounded, weight):
            weight.copy_(rounded)
            parts = master_parts(loan, name)
            parts.low.zero_()
            parts.ties.zero_()
    else:
        weight.copy_(value)


def master_parts(loan: Arrays, name: str) -> SplitMaster:
    """A parameter's master in a lent record that keeps it."""
    return SplitMaster(
        loan.tensor(name, Part.WEIGHTS).view(-1),
        loan.tensor(state_name(LOW_BITS, name), Part.STATES).view(-1),
        loan.tensor(state_name(TIE_BITS, name), Part.STATES),
    )


def borrowed_parts(
    store: LentRecords, part: Part, *others: Part
) -> Iterator[tuple[RecordLayout, Arrays]]:
    """Every record that has the part, lent read-only for the time of one iteration."""
    for record, layout in store.layouts.items():
        if layout.part_bytes(part):
            with store.lent(record, (part, *others), read_only=True) as loan:
                yield layout, loan


def masters_of(store: LentRecords) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and copies of the fp32 masters, of the parameters that have one."""
    return wholes(_masters_of(store), num_slices(store))


def _masters_of(store: LentRecords) -> Iterator[tuple[str, torch.Tensor]]:
    for layout, loan in borrowed_parts(store, Part.STATES, Part.WEIGHTS):
        for place in layout.parts[Part.WEIGHTS]:
            if has_master(layout, place.spec.name):
                yield place.spec.name, master_of(loan, place.spec.name)


def master_of(loan: Arrays, name: str) -> torch.Tensor:
    """A copy of a parameter's master in a lent record that keeps it."""
    parts = master_parts(loan, name)
    shape = loan.tensor(name, Part.WEIGHTS).shape
    return join_master(parts, torch.empty(shape.numel())).view(shape)


def weights_of(store: LentRecords) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and weights of all parameters; each tensor is valid until the next is asked for."""
    return wholes(_weights_of(store), num_slices(store))


def _weights_of(store: LentRecords) -> Iterator[tuple[str, torch.Tensor]]:
    for layout, loan in borrowed_parts(store, Part.WEIGHTS):
        for place in layout.parts[Part.WEIGHTS]:
            yield place.spec.name, loan.tensor(place.spec.name, Part.WEIGHTS)


def num_slices(store: LentRecords) -> Counter[str]:
    """How many slices of each weight a store has, of those of which it has slices."""
    names = (
        place.spec.name for layout in store.layouts.values() for place in layout.parts[Part.WEIGHTS]
    )
    return Counter(found.whole for name in names if (found := slice_of(name)))


class _LastRead(Mapping[str, torch.Tensor]):
    """Tensors by name, of which the last is kept: those that are read may come slice by slice."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._last: tuple[str, torch.Tensor] | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        if self._last is None or self._last[0] != name:
            self._last = None
            self._last = name, self._tensors[name]
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
