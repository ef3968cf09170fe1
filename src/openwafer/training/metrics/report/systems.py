"""Several systems side by side: how long each computes of a step, and how long it waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from openwafer.training.metrics.report.drawing import (
    Color,
    Figure,
    Key,
    Size,
    Words,
    bar_axes,
    draw_figure,
)
from openwafer.training.metrics.step_metrics import StepMetrics
from openwafer.training.metrics.units import format_bytes, format_share


@dataclass(frozen=True)
class SystemShare:
    """Medians over the steps of one system.

    Attributes:
        computing_seconds, waiting_seconds: of a step.
        received_bytes: from other systems, in a step.
    """

    computing_seconds: float
    waiting_seconds: float
    received_bytes: float


def list_systems(metrics: Sequence[StepMetrics]) -> list[SystemShare]:
    """Those of the last steps that were run by as many systems; none where there was one."""
    rows: list[tuple[tuple[float, float, int], ...]] = []
    for row in reversed(metrics):
        found = _of_step(row)
        if not found or (rows and len(found) != len(rows[0])):
            break
        rows.append(found)
    return [
        SystemShare(
            median(seconds - waiting for seconds, waiting, _ in steps),
            median(waiting for _, waiting, _ in steps),
            median(received for _, _, received in steps),
        )
        for steps in zip(*rows, strict=True)
    ]


def _of_step(row: StepMetrics) -> tuple[tuple[float, float, int], ...]:
    seconds, waiting, received = (
        row.system_seconds or (),
        row.system_waiting_seconds or (),
        row.system_received_bytes or (),
    )
    return tuple(zip(seconds, waiting, received, strict=True))


def describe_slowest(systems: Sequence[SystemShare]) -> str:
    """Which system the others wait for, and what it costs them."""
    computing = [system.computing_seconds for system in systems]
    slowest, usual = max(computing), median(computing)
    received = sum(system.received_bytes for system in systems)
    return (
        f"System {computing.index(slowest)} computes longest: {slowest:.2g} s of a step, where the "
        f"median is {usual:.2g} s. The systems wait for "
        f"{format_share(_waiting_share(systems))} of their time. In a step "
        f"{format_bytes(received)} pass between them."
    )


def _waiting_share(systems: Sequence[SystemShare]) -> float:
    waiting = sum(system.waiting_seconds for system in systems)
    return waiting / (waiting + sum(system.computing_seconds for system in systems))


def draw_systems(systems: Sequence[SystemShare]) -> Figure:
    """A bar for each system: computing, then waiting."""
    rows = range(len(systems))
    computing = [system.computing_seconds for system in systems]
    waiting = [system.waiting_seconds for system in systems]

    def paint(canvas: Any, _size: Size) -> None:
        axes = bar_axes(canvas, [f"system {row}" for row in rows])
        axes.barh(rows, computing, height=0.6, color=Color.FORWARD.value)
        axes.barh(rows, waiting, left=computing, height=0.6, color=Color.FAINT.value)
        axes.set_xlabel("seconds of a step")

    legend = (Key("computes", Color.FORWARD), Key("waits for others", Color.FAINT))
    caption = (
        "From the beginning of a step's forward to the end of its backward, medians of the steps. "
        "A system with records in its store also makes their updates."
    )
    height = 90 + 34 * len(systems)
    words = Words("Systems", caption, legend)
    return draw_figure("systems", words, paint, height=height)
