"""What sparse weights take in the store, beside what they would take if they were dense."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import nn

from openwafer.training.plan_record import SparseUse, SparseWeight, StepBytes
from openwafer.training.sparsity.packed.room import PackedRoom
from openwafer.training.sparsity.packed_linear import PackedLinear
from openwafer.training.sparsity.rooms import is_pattern, packed_linears, rooms_of
from openwafer.training.store.layout import ArraySpec, Part, RecordLayout, lay_out
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.schedule import Action, Kind

Layouts = Mapping[str, RecordLayout]


def dense_plan(plan: StreamPlan, model: nn.Module) -> StreamPlan:
    """The same plan for the model with dense weights, to count what its steps would move."""
    rooms = rooms_of(model)
    layouts = dense_layouts(plan.layouts, model)
    if plan.schedule is None:
        return replace(plan, layouts=layouts)
    received = set(plan.received) & rooms.keys()

    def pushed(action: Action) -> Action:
        if action.kind is not Kind.PUSH:
            return action
        sparse, dense = (
            of[action.target].bytes_of_weights(received) for of in (plan.layouts, layouts)
        )
        return replace(action, num_bytes=action.num_bytes + dense - sparse)

    actions = tuple(map(pushed, plan.schedule.actions))
    return replace(plan, layouts=layouts, schedule=replace(plan.schedule, actions=actions))


def dense_layouts(layouts: Layouts, model: nn.Module) -> dict[str, RecordLayout]:
    """The same records with whole weights, and states and gradients of whole weights."""
    rooms = rooms_of(model)
    return {
        record: lay_out(
            record,
            tuple(_dense(layout, Part.WEIGHTS, rooms)),
            tuple(_dense(layout, Part.STATES, rooms)),
            tuple(_dense(layout, Part.GRADIENTS, rooms)),
        )
        for record, layout in layouts.items()
    }


def sparse_use(layouts: Layouts, model: nn.Module, dense_step: StepBytes) -> SparseUse:
    """What the sparse weights of a model take.

    Args:
        layouts: of its records.
        model: in its sparse form.
        dense_step: what a step would move with :func:`dense_plan`.
    """
    rooms = rooms_of(model)
    dense = dense_layouts(layouts, model)
    return SparseUse(
        weights=tuple(_weight(name, module) for name, module in packed_linears(model).items()),
        parameters=sum(
            math.prod(spec.shape)
            for layout in dense.values()
            for spec in _specs(layout, Part.WEIGHTS)
        ),
        values_bytes=_bytes(layouts, Part.WEIGHTS, rooms),
        states_bytes=_bytes(layouts, Part.STATES, rooms),
        pattern_bytes=sum(room.num_bytes for room in rooms.values()),
        dense_values_bytes=_bytes(dense, Part.WEIGHTS, rooms),
        dense_states_bytes=_bytes(dense, Part.STATES, rooms),
        dense_step_bytes=dense_step,
    )


def _weight(name: str, module: PackedLinear) -> SparseWeight:
    room, skipping = module.room, module.multiplication.skipping
    return SparseWeight(name, *room.shape, room.capacity, skipping.from_tokens, skipping.gain)


def _specs(layout: RecordLayout, part: Part) -> Iterator[ArraySpec]:
    return (place.spec for place in layout.parts[part])


def _owner(spec: ArraySpec, rooms: Mapping[str, PackedRoom]) -> str | None:
    """The sparse weight whose values, or a state or gradient of them, an array holds."""
    name = spec.name.rpartition("/")[2]
    return name if name in rooms else None


def _dense(
    layout: RecordLayout, part: Part, rooms: Mapping[str, PackedRoom]
) -> Iterator[ArraySpec]:
    for spec in _specs(layout, part):
        owner = _owner(spec, rooms)
        if owner is not None and spec.shape == (rooms[owner].capacity,):
            yield replace(spec, shape=rooms[owner].shape)
        elif not is_pattern(spec.name, rooms):
            yield spec


def _bytes(layouts: Layouts, part: Part, rooms: Mapping[str, PackedRoom]) -> int:
    return sum(
        spec.num_bytes
        for layout in layouts.values()
        for spec in _specs(layout, part)
        if _owner(spec, rooms) is not None
    )
