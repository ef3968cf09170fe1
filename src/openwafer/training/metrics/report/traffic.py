"""Draws the bytes that one step moves, beside the plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from openwafer.training.metrics.report.drawing import (
    Color,
    Figure,
    Size,
    Words,
    bar_axes,
    draw_figure,
)
from openwafer.training.metrics.step_metrics import StepMetrics
from openwafer.training.metrics.units import format_bytes
from openwafer.training.plan_record import PlanRecord


@dataclass(frozen=True)
class Traffic:
    """One way that bytes go: the median of all steps, and the plan's figure if there is one."""

    name: str
    color: Color
    measured_bytes: float
    planned_bytes: int | None


def list_traffic(metrics: Sequence[StepMetrics], plan: PlanRecord) -> tuple[Traffic, ...]:
    """The four ways: fetch, push, disk read, disk write. At least one step is needed.

    What is measured is of the first system, and a plan of stores on all systems is of all of them.
    """
    fetch = median(row.fetch_bytes for row in metrics)
    push = median(row.push_bytes for row in metrics)
    read = median(row.disk_read_bytes for row in metrics)
    written = median(row.disk_write_bytes for row in metrics)
    ways = (
        Traffic("fetch", Color.FETCH, fetch, plan.step_bytes.fetch),
        Traffic("push", Color.PUSH, push, plan.step_bytes.push),
        Traffic("disk read", Color.READ, read, plan.step_bytes.disk_read),
        Traffic("disk write", Color.WRITE, written, plan.step_bytes.disk_write),
    )
    is_of_all = plan.stores is not None and plan.stores.is_shared
    return tuple(replace(way, planned_bytes=None) for way in ways) if is_of_all else ways


def draw_traffic(ways: Sequence[Traffic], parameters: int) -> Figure:
    """Bytes a parameter and step on each way, the plan as a mark on the measured bar."""
    measured = [way.measured_bytes / parameters for way in ways]
    planned = [
        None if way.planned_bytes is None else way.planned_bytes / parameters for way in ways
    ]
    marks = [(mark, row) for row, mark in enumerate(planned) if mark is not None]
    longest = [max(bar, mark or 0.0) for bar, mark in zip(measured, planned, strict=True)]
    rows = range(len(ways))

    def paint(canvas: Any, size: Size) -> None:
        axes = bar_axes(canvas, [way.name for way in ways])
        axes.barh(rows, measured, height=0.55, color=[way.color.value for way in ways])
        for place in marks:
            axes.plot(*place, "|", color=Color.INK.value, markersize=24, markeredgewidth=2)
        axes.set_xlim(0, max(*longest, 1) * (1.45 if size.is_narrow else 1.2))
        axes.set_xlabel("bytes a parameter and step")
        for row, (bar, mark) in enumerate(zip(measured, planned, strict=True)):
            label = f"{bar:.2f}" if mark is None else f"{bar:.2f} (plan {mark:.2f})"
            end_xy, shift = (longest[row], row), (8, 0)
            axes.annotate(label, end_xy, shift, textcoords="offset points", va="center")

    total = sum(way.measured_bytes for way in ways)
    whose = "a step moves" if marks else "a step moves from and to the first system's store"
    caption = (
        f"Bytes that {whose} on each way, divided by the model's parameters: the median of all "
        f"steps as a bar{', the plan as an upright mark' * bool(marks)}. "
        f"In all they are {format_bytes(total)}."
    )
    return draw_figure("traffic", Words("Bytes moved", caption), paint, height=190)
