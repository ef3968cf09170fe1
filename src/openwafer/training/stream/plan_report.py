"""The plan of a run as a record: per layer where things live, and what a step moves and takes."""

import json
from collections.abc import Mapping
from dataclasses import asdict

import psutil
from torch import nn

from openwafer.training.metrics import plan_record as record
from openwafer.training.metrics.plan_record import PlannedLayer, PlanRecord, StepBytes
from openwafer.training.store.layout import Part, RecordLayout
from openwafer.training.store.parameter_store import Tier
from openwafer.training.stream.device import Device
from openwafer.training.stream.layers import PINNED
from openwafer.training.stream.machine import MachineRates, measure_rates
from openwafer.training.stream.placement import StorePlacement
from openwafer.training.stream.plan import Mode, StreamPlan
from openwafer.training.stream.schedule import Kind, Schedule, UpdateTiming

# Bytes an optimizer pass moves for a byte of weights, states and gradients: read all, write back
# weights and states (Adam: 28 for 16).
UPDATE_TRAFFIC = 28 / 16
# Bytes that elementwise operators move for a byte they write.
OPERATOR_TRAFFIC = 2.5


def report_of(
    plan: StreamPlan,
    placement: StorePlacement,
    model: nn.Module,
    device: Device,
    timing: UpdateTiming,
) -> PlanRecord:
    """Describe a plan and predict the time of its step on this machine."""
    moved = step_bytes(plan, placement, timing)
    rates = measure_rates(device.torch_device)
    return PlanRecord(
        mode=record.Mode(plan.mode),
        device=str(device.torch_device),
        device_budget_bytes=device.budget_bytes or psutil.virtual_memory().total,
        predicted_peak_bytes=plan.predicted_peak_bytes,
        predicted_step_seconds=_seconds(plan, moved, rates, copies=device.is_asynchronous),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=tuple(_layers(plan, placement, model)),
        step_bytes=moved,
        disk_limit_bytes_per_second=None,
    )


def to_json(plan: PlanRecord) -> str:
    """The text of plan.json (docs/formats/plan.md)."""
    mark = {"format": record.FORMAT, "version": record.VERSION}
    return json.dumps(mark | asdict(plan), indent=1) + "\n"


def step_bytes(plan: StreamPlan, placement: StorePlacement, timing: UpdateTiming) -> StepBytes:
    """Bytes that one step moves over the link and from and to disk."""
    if plan.schedule is None:
        return StepBytes(0, 0, 0, 0)
    pinned = plan.layouts.get(PINNED)
    disk = _DiskBytes(plan.layouts, placement)
    if pinned is not None:
        disk.add_fetch(PINNED)
        disk.add_update(PINNED, timing, reads_weights=False)
    _count_actions(plan.schedule, disk, timing)
    return StepBytes(
        fetch=plan.schedule.total_bytes(Kind.FETCH) + _part_bytes(pinned, Part.WEIGHTS),
        push=plan.schedule.total_bytes(Kind.PUSH) + _part_bytes(pinned, Part.GRADIENTS),
        disk_read=disk.read,
        disk_write=disk.written,
    )


def _part_bytes(layout: RecordLayout | None, part: Part) -> int:
    return 0 if layout is None else layout.part_bytes(part)


def _count_actions(schedule: Schedule, disk: "_DiskBytes", timing: UpdateTiming) -> None:
    lent: set[str] = set()
    for action in schedule.actions:
        match action.kind:
            case Kind.FETCH:
                disk.add_fetch(action.target)
                if action.keeps_loan:
                    lent.add(action.target)
            case Kind.UPDATE:
                with_fetch = action.target in lent or timing is UpdateTiming.ON_FETCH
                disk.add_update(action.target, timing, reads_weights=not with_fetch)
            case Kind.READ | Kind.FORWARD | Kind.BACKWARD | Kind.PUSH | Kind.RELEASE:
                pass


class _DiskBytes:
    """Counts disk traffic of the parts that are on disk."""

    def __init__(self, layouts: Mapping[str, RecordLayout], placement: StorePlacement) -> None:
        self.read = 0
        self.written = 0
        self._layouts = layouts
        self._placement = placement

    def _on_disk(self, name: str, part: Part) -> int:
        is_on_disk = self._placement.tiers.get((name, part)) is Tier.DISK
        return self._layouts[name].part_bytes(part) if is_on_disk else 0

    def add_fetch(self, name: str) -> None:
        self.read += self._on_disk(name, Part.WEIGHTS)

    def add_update(self, name: str, timing: UpdateTiming, *, reads_weights: bool) -> None:
        weights, states = self._on_disk(name, Part.WEIGHTS), self._on_disk(name, Part.STATES)
        self.read += states + (weights if reads_weights else 0)
        self.written += weights + states
        if timing is UpdateTiming.ON_FETCH:
            gradients = self._on_disk(name, Part.GRADIENTS)
            self.read += gradients
            self.written += gradients


def _seconds(plan: StreamPlan, moved: StepBytes, rates: MachineRates, *, copies: bool) -> float:
    compute = plan.flops / rates.flops_per_second
    compute += OPERATOR_TRAFFIC * plan.dry.written_bytes / rates.copy_bytes_per_second
    link = (moved.fetch + moved.push) / rates.copy_bytes_per_second if copies else 0.0
    kept = sum(layout.part_bytes(part) for layout in plan.layouts.values() for part in Part)
    update = UPDATE_TRAFFIC * kept / (2 * rates.copy_bytes_per_second)
    return compute + link + update


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
                f"{part}_tier": record.Tier.DEVICE
                if is_resident
                else record.Tier(placement.tiers.get((name, part), Tier.DRAM))
                for part in Part
            },
            activations=record.Activations(plan.policies.get(name, "keep")),
            activation_bytes=max(left.get(name, 0), 0),
        )
        for name, layout in plan.layouts.items()
    ]
