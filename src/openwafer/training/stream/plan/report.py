"""The plan of a run as a record: per layer where things live, and what a step moves and takes."""

import json
from dataclasses import asdict

from torch import nn

from openwafer.training import plan_record as record
from openwafer.training.plan_record import Mode, PlannedLayer, PlanRecord
from openwafer.training.store.layout import Part
from openwafer.training.store.parameter_store import Tier
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.plan.placement import StorePlacement
from openwafer.training.stream.plan.search import StreamPlan
from openwafer.training.stream.plan.step_time import Prediction
from openwafer.training.stream.plan.traffic import PlannedBytes


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
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=tuple(_layers(plan, placement, model)),
        step_bytes=moved.usual.step,
        disk_limit_bytes_per_second=disk.both if disk else None,
        undone_step_bytes=moved.undone,
        kept_step_bytes=moved.kept,
    )


def to_json(plan: PlanRecord) -> str:
    """The text of plan.json (docs/formats/openwafer-plan.md)."""
    mark = {"format": record.FORMAT, "version": record.VERSION}
    return json.dumps(mark | asdict(plan), indent=1) + "\n"


def _layers(plan: StreamPlan, placement: StorePlacement, model: nn.Module) -> list[PlannedLayer]:
    left = dict(
        zip((visit.layer for visit in plan.dry.visits), plan.dry.activation_bytes, strict=False)
    )
    parameters = dict(model.named_parameters())
    is_resident = plan.mode is Mode.RESIDENT
    return [
        PlannedLayer(
            name=name,
            parameters=sum(parameters[held].numel() for held in plan.split.records[name]),
            weights_bytes=layout.part_bytes(Part.WEIGHTS),
            states_bytes=layout.part_bytes(Part.STATES),
            **{
                f"{part}_tier": record.Home.DEVICE
                if is_resident
                else record.Home(placement.tiers.get((name, part), Tier.DRAM))
                for part in Part
            },
            activations=record.Activations(plan.policies.get(name, "keep")),
            activation_bytes=max(left.get(name, 0), 0),
        )
        for name, layout in plan.layouts.items()
    ]
