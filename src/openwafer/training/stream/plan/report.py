"""The plan of a run as a record: per layer where things live, and what a step moves and takes."""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import torch
from torch import nn

from openwafer.figures import Origin
from openwafer.training import plan_record as record
from openwafer.training.host_memory import OWN_STATUS, read_host_memory
from openwafer.training.plan_record import (
    ExpertUse,
    Mode,
    PlannedLayer,
    PlanRecord,
    SparseUse,
    SparseWeight,
    StepBytes,
)
from openwafer.training.sparsity.packed import PackedRoom
from openwafer.training.sparsity.packed_linear import (
    PackedLinear,
    is_pattern,
    packed_linears,
    rooms_of,
)
from openwafer.training.store.layout import (
    KEPT_PARTS,
    ArraySpec,
    Part,
    RecordLayout,
    lay_out,
    slice_of,
    whole_name,
)
from openwafer.training.store.pages import PAGE_MAP, resident_bytes
from openwafer.training.store.parameter_store import Tier
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.plan.placement import StorePlacement
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.step_time import Prediction
from openwafer.training.stream.plan.traffic import PlannedBytes
from openwafer.training.stream.replicas.ownership import StoreShare
from openwafer.training.stream.schedule import Action, Kind

INFERRED = dict.fromkeys(
    (
        "predicted_peak_bytes",
        "predicted_host_bytes",
        "step_flops",
        "predicted_step_seconds",
        "step_limit",
        "parameters",
        "layers",
        "step_bytes",
    ),
    Origin.INFERRED,
)


def report_of(
    plan: StreamPlan,
    placement: StorePlacement,
    model: nn.Module,
    device: Device,
    moved: PlannedBytes,
    predicted: Prediction,
) -> PlanRecord:
    """Describe a plan and what is predicted of it."""
    time, disk = predicted.time, predicted.disk
    return PlanRecord(
        mode=record.Mode(plan.mode),
        device=str(device.torch_device),
        device_budget_bytes=device.budget_bytes or device.memory_bytes,
        predicted_peak_bytes=plan.predicted_peak_bytes,
        predicted_host_bytes=predicted.host_bytes,
        step_flops=plan.calls.flops,
        predicted_step_seconds=time.seconds if time else None,
        step_limit=time.limit if time else None,
        parameters=sum(
            parameter.numel() for parameter in model.parameters() if _has_numbers(parameter.dtype)
        ),
        layers=tuple(_layers(plan, placement)),
        step_bytes=moved.usual.step,
        disk_limit_bytes_per_second=disk.both if disk else None,
        undone_step_bytes=moved.undone,
        kept_step_bytes=moved.kept,
        experts=_experts(plan),
        whole_layer_calls=len(plan.dry.visits) if plan.dry.leaves_out else None,
        origins=INFERRED
        | {
            "device_budget_bytes": Origin.GIVEN if device.budget_bytes else Origin.MEASURED,
            "disk_limit_bytes_per_second": Origin.MEASURED,
        },
    )


def _experts(plan: StreamPlan) -> ExpertUse | None:
    slices = [layer.name for layer in plan.split.layers if layer.slice_of is not None]
    used = [name for name in slices if name in plan.dry.experts_used]
    if not slices:
        return None
    experts = set(map(_expert_of, slices))
    return ExpertUse(
        layers=len({module for module, _ in experts}),
        experts=len(experts),
        used=len(set(map(_expert_of, used))),
        weights_bytes=_part_bytes([plan.layouts[name] for name in slices], Part.WEIGHTS),
        used_bytes=_part_bytes([plan.layouts[name] for name in used], Part.WEIGHTS),
    )


def _expert_of(name: str) -> tuple[str, int]:
    """The module that an expert belongs to, and its number there; it may have several weights."""
    found = slice_of(name)
    assert found is not None
    return found.whole.rpartition(".")[0], found.index


def to_json(plan: PlanRecord) -> str:
    """The text of plan.json (docs/formats/openwafer-plan.md)."""
    mark = {"format": record.FORMAT, "version": record.VERSION}
    return json.dumps(mark | asdict(plan), indent=1) + "\n"


def _layers(plan: StreamPlan, placement: StorePlacement) -> list[PlannedLayer]:
    """The records, in the place of those of experts their weights, behind the others.

    A weight whose experts live in different places has an entry for each.
    """
    left = dict(
        zip((visit.layer for visit in plan.dry.visits), plan.dry.activation_bytes, strict=False)
    )
    homes = partial(_homes, plan, placement)
    found: dict[tuple[str, tuple[record.Home, ...]], list[RecordLayout]] = {}
    for name, layout in plan.layouts.items():
        found.setdefault((whole_name(name), homes(name)), []).append(layout)
    ordered = sorted(found, key=lambda key: _attribute_of_experts(key[0], plan))
    return [
        PlannedLayer(
            name=name,
            parameters=sum(map(_num_elements, found[name, (weights, states, gradients)])),
            weights_bytes=_part_bytes(found[name, (weights, states, gradients)], Part.WEIGHTS),
            states_bytes=_part_bytes(found[name, (weights, states, gradients)], Part.STATES),
            weights_tier=weights,
            states_tier=states,
            gradients_tier=gradients,
            activations=record.Activations(plan.policies.get(name, "keep")),
            activation_bytes=max(left.get(name, 0), 0),
        )
        for name, (weights, states, gradients) in ordered
    ]


def _homes(plan: StreamPlan, placement: StorePlacement, name: str) -> tuple[record.Home, ...]:
    """Where the parts of a record live."""
    if plan.mode is Mode.RESIDENT:
        return (record.Home.DEVICE,) * len(Part)
    return tuple(record.Home(placement.tiers.get((name, part), Tier.DRAM)) for part in Part)


def _attribute_of_experts(name: str, plan: StreamPlan) -> str:
    """Neighbours of one attribute are one row of the table; empty for what is not by expert."""
    return name.rpartition(".")[2] if name in plan.split.sliced else ""


def _num_elements(layout: RecordLayout) -> int:
    return sum(
        math.prod(place.spec.shape)
        for place in layout.parts[Part.WEIGHTS]
        if _has_numbers(place.spec.dtype)
    )


def _has_numbers(dtype: torch.dtype) -> bool:
    """Whether arrays of a format are weights, and not bytes that tell where weights are."""
    return dtype is not torch.uint8


def _part_bytes(layouts: Sequence[RecordLayout], part: Part) -> int:
    return sum(layout.part_bytes(part) for layout in layouts)


Layouts = Mapping[str, RecordLayout]
Rooms = Mapping[str, PackedRoom]


def sparse_use(
    plan: StreamPlan, model: nn.Module, bytes_of_step: Callable[[StreamPlan], StepBytes]
) -> SparseUse | None:
    """What the sparse weights of a model take; ``None`` of a model without any.

    Args:
        plan: of a step.
        model: in its sparse form.
        bytes_of_step: what a step moves by a plan.
    """
    rooms = rooms_of(model)
    if not rooms:
        return None
    dense = _dense_plan(plan, rooms)
    return SparseUse(
        weights=tuple(_weight(name, module) for name, module in packed_linears(model).items()),
        parameters=sum(
            math.prod(spec.shape)
            for layout in dense.layouts.values()
            for spec in _specs(layout, Part.WEIGHTS)
        ),
        values_bytes=_bytes(plan.layouts, Part.WEIGHTS, rooms),
        states_bytes=_bytes(plan.layouts, Part.STATES, rooms),
        pattern_bytes=sum(room.num_bytes for room in rooms.values()),
        dense_values_bytes=_bytes(dense.layouts, Part.WEIGHTS, rooms),
        dense_states_bytes=_bytes(dense.layouts, Part.STATES, rooms),
        dense_step_bytes=bytes_of_step(dense),
    )


def _dense_plan(plan: StreamPlan, rooms: Rooms) -> StreamPlan:
    """The same plan with dense weights, and with states and gradients of such."""
    layouts = {
        record: lay_out(
            record,
            tuple(_dense(layout, Part.WEIGHTS, rooms)),
            tuple(_dense(layout, Part.STATES, rooms)),
            tuple(_dense(layout, Part.GRADIENTS, rooms)),
        )
        for record, layout in plan.layouts.items()
    }
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


def _weight(name: str, module: PackedLinear) -> SparseWeight:
    room, skipping = module.room, module.multiplication.skipping
    return SparseWeight(name, *room.shape, room.capacity, skipping.from_tokens, skipping.gain)


def _specs(layout: RecordLayout, part: Part) -> Iterator[ArraySpec]:
    return (place.spec for place in layout.parts[part])


def _owner(spec: ArraySpec, rooms: Rooms) -> str | None:
    """The sparse weight whose values, or a state or gradient of them, an array holds."""
    name = spec.name.rpartition("/")[2]
    return name if name in rooms else None


def _dense(layout: RecordLayout, part: Part, rooms: Rooms) -> Iterator[ArraySpec]:
    for spec in _specs(layout, part):
        owner = _owner(spec, rooms)
        if owner is not None and spec.shape == (rooms[owner].capacity,):
            yield replace(spec, shape=rooms[owner].shape)
        elif not is_pattern(spec.name, rooms):
            yield spec


def _bytes(layouts: Layouts, part: Part, rooms: Rooms) -> int:
    return sum(
        spec.num_bytes
        for layout in layouts.values()
        for spec in _specs(layout, part)
        if _owner(spec, rooms) is not None
    )


def resident_now() -> int | None:
    """Bytes of the process's resident set; ``None`` where the kernel does not say."""
    return read_host_memory().resident_bytes if OWN_STATUS.exists() else None


def resident_beside(weights: Iterable[torch.Tensor]) -> int | None:
    """Bytes of the resident set that is left when these weights have gone to the store."""
    if not PAGE_MAP.exists():
        return None
    storages = {
        storage.data_ptr(): storage
        for storage in map(torch.Tensor.untyped_storage, weights)
        if storage.device.type == "cpu"
    }
    return read_host_memory().resident_bytes - sum(map(resident_bytes, storages.values()))


def host_peak(beside_bytes: int, plan: StreamPlan, share: StoreShare) -> int:
    """The most host memory that the process will hold, planning included.

    Args:
        beside_bytes: the resident set without store and step.
        plan: the step.
        share: what the store holds.
    """
    sizes = {
        (record, part): layout.part_bytes(part)
        for record, layout in share.layouts.items()
        for part in (KEPT_PARTS if plan.mode is Mode.RESIDENT else Part)
    }
    on_disk = sum(
        num_bytes for key, num_bytes in sizes.items() if share.tiers.get(key) is Tier.DISK
    )
    store_bytes = sum(sizes.values()) - on_disk + min(on_disk, share.ring_bytes)
    return max(beside_bytes + store_bytes + plan.dry.host_bytes, read_host_memory().peak_bytes)


def lent_bytes(plan: StreamPlan) -> int:
    """Most bytes of weights that a device uses in the memory of the store's ring."""
    if plan.schedule is None:
        return 0
    nested = (layer for layer in plan.split.layers if layer.parent is not None)
    largest = max((_weights_of(plan, layer.records) for layer in nested), default=0)
    # The layer's code may hold on to what it took of two experts before.
    return plan.schedule.capacity_bytes + plan.nested_capacity_bytes + 2 * largest


def _weights_of(plan: StreamPlan, records: Iterable[str]) -> int:
    return sum(plan.layouts[record].part_bytes(Part.WEIGHTS) for record in records)


def expert_bytes(plan: StreamPlan, *, joins: bool) -> int:
    """Most bytes of gradients of experts beside the store: the zeros of one that is not used.

    Args:
        plan: the step.
        joins: whether somebody watches gradients, as clipping does; those of the weights of one
            layer are joined then.
    """
    by_layer: Counter[str] = Counter()
    largest = 0
    for layer in plan.split.layers:
        if layer.slice_of is not None and layer.parent is not None:
            num_bytes = plan.layouts[layer.name].part_bytes(Part.WEIGHTS)
            by_layer[layer.parent] += num_bytes
            largest = max(largest, num_bytes)
    return largest + (max(by_layer.values(), default=0) if joins else 0)


def owned_bytes(
    plan: StreamPlan, owned: Collection[str], num_micro_batches: int, *, joins: bool
) -> int:
    """The same where ranks compute the experts they own for all of them.

    Args:
        plan: the step.
        owned: records of this rank.
        num_micro_batches: of all ranks, whose gradients of one layer are kept apart.
        joins: whether norms are taken, until which all gradients are kept; a whole weight comes to
            one rank for that.
    """
    by_layer: Counter[str] = Counter()
    by_weight: Counter[str] = Counter()
    for layer in plan.split.layers:
        if layer.slice_of is not None and layer.parent is not None:
            num_bytes = plan.layouts[layer.name].part_bytes(Part.WEIGHTS)
            by_weight[layer.slice_of] += num_bytes
            by_layer[layer.parent] += num_bytes if layer.name in owned else 0
    apart = num_micro_batches * max(by_layer.values(), default=0)
    return apart + (by_layer.total() + 2 * max(by_weight.values(), default=0) if joins else 0)
