"""The plan of a run as a record: per layer where things live, and what a step moves and takes."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import torch
from torch import nn

from openwafer.figures import Origin
from openwafer.training import plan_record as record
from openwafer.training.plan_record import ExpertUse, Mode, PlannedLayer, PlanRecord
from openwafer.training.store.layout import Part, RecordLayout, slice_of, whole_name
from openwafer.training.store.parameter_store import Tier
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.plan.placement import StorePlacement
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.step_time import Prediction
from openwafer.training.stream.plan.traffic import PlannedBytes

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
