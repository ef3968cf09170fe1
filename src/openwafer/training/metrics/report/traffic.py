"""What one step moves, beside the plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from openwafer.training.metrics.report.drawing import Color, Figure, Size, Words, draw_figure
from openwafer.training.metrics.step_metrics import StepMetrics
from openwafer.training.metrics.units import format_bytes
from openwafer.training.plan_record import PlanRecord


@dataclass(frozen=True)
class Traffic:
    """One way that bytes go: the median of all steps, and the plan's figure."""

    name: str
    color: Color
    measured_bytes: float
    planned_bytes: int


def list_traffic(metrics: Sequence[StepMetrics], plan: PlanRecord) -> tuple[Traffic, ...]:
    """The four ways: fetch, push, disk read, disk write. At least one step is needed."""
    fetch = median(row.fetch_bytes for row in metrics)
    push = median(row.push_bytes for row in metrics)
    read = median(row.disk_read_bytes for row in metrics)
    written = median(row.disk_write_bytes for row in metrics)
    return (
        Traffic("fetch", Color.FETCH, fetch, plan.step_bytes.fetch),
        Traffic("push", Color.PUSH, push, plan.step_bytes.push),
        Traffic("disk read", Color.READ, read, plan.step_bytes.disk_read),
        Traffic("disk write", Color.WRITE, written, plan.step_bytes.disk_write),
    )


def draw_traffic(ways: Sequence[Traffic], parameters: int) -> Figure:
    """Bytes a parameter and step on each way, the plan as a mark on the measured bar."""
    measured = [way.measured_bytes / parameters for way in ways]
    planned = [way.planned_bytes / parameters for way in ways]
    rows = range(len(ways))

    def paint(canvas: Any, size: Size) -> None:
        axes = canvas.subplots()
        axes.barh(rows, measured, height=0.55, color=[way.color.value for way in ways])
        axes.plot(planned, rows, "|", color=Color.INK.value, markersize=24, markeredgewidth=2)
        axes.set_yticks(rows, [way.name for way in ways])
        axes.set_xlim(0, max(*measured, *planned, 1) * (1.45 if size.is_narrow else 1.2))
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("bytes a parameter and step")
        for row, figures in enumerate(zip(measured, planned, strict=True)):
            label = "{:.2f} (plan {:.2f})".format(*figures)
            end_xy, shift = (max(figures), row), (8, 0)
            axes.annotate(label, end_xy, shift, textcoords="offset points", va="center")

    total = sum(way.measured_bytes for way in ways)
    caption = (
        "Bytes that a step moves on each way, divided by the model's parameters: the median of "
        "all steps as a bar, the plan as an upright mark. "
        f"In all a step moves {format_bytes(total)}."
    )
    return draw_figure(
        "traffic", Words("Bytes moved", caption), paint, height=190, narrow_height=190
    )
