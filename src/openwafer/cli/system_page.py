"""The plan for a system as one HTML file, with pictures of what would change it."""

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from openwafer.atomic_file import write_text
from openwafer.cli.pictures import BLUE, RED, picture
from openwafer.cli.tables import value_of
from openwafer.diagnostics import counted
from openwafer.planning.system_plan import (
    Activations,
    Section,
    SystemPlan,
    TrainingTask,
    plan_system,
    setting_of,
)
from openwafer.planning.systems import System
from openwafer.planning.throughput import Resource, step_time
from openwafer.training.metrics.report.drawing import render

PICTURE_INCHES = (7.5, 3.8)
SPARSITIES = (0.0, 0.25, 0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
TOKENS = np.geomspace(100, 1e6, 120)
GREY = "#999999"


Picture = tuple[str, str, str]
"""Title, caption, and an SVG in base64."""


def write_page(path: Path, plan: SystemPlan, pictures: Iterable[Picture]) -> None:
    """Replace the file `path`. Raises OSError."""
    notes = (
        f"{counted(plan.num_systems, 'system')}, {plan.mode}: {plan.reason}.",
        f"A step waits longest for {plan.limit}.",
    )
    tables = [(section.title, _rows(section)) for section in plan.sections]
    title = f"{plan.system} · plan"
    values = {"heading": plan.system, "notes": notes, "pictures": pictures, "tables": tables}
    write_text(path, render("figures.html", title=title, **values))


def _rows(section: Section) -> list[tuple[str, ...]]:
    return [
        (each.name.replace("_", " "), value_of(each), str(each.origin), each.source)
        for each in section.figures
    ]


def pictures_of(plan: SystemPlan, task: TrainingTask, system: System) -> Iterator[Picture]:
    """Those of a plan for a published or described system."""
    yield drawn(
        "A step by resource",
        "Seconds of a step that each resource is busy; in each pass the slowest one counts.",
        lambda axes: draw_resources(axes, plan),
    )
    yield drawn(
        "Roofline",
        "FLOP/s of one system by the tokens of a pass; the point is this plan's.",
        lambda axes: draw_roofline(axes, plan, task, system),
    )
    yield drawn(
        "More systems",
        "A step of the same batch on more systems, times as fast as on one.",
        lambda axes: draw_systems(axes, task, system),
    )
    yield drawn(
        "More zeros",
        "A step, times as fast as dense: if all weights had so many zeros.",
        lambda axes: draw_zeros(axes, plan, task, system),
    )


def drawn(title: str, caption: str, draw: Callable[[Any], None]) -> Picture:
    """A section of the page with what ``draw`` puts on its axes."""
    written = io.BytesIO()
    with picture(written, PICTURE_INCHES) as axes:
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
    return title, caption, base64.b64encode(written.getvalue()).decode()


def draw_resources(axes: Any, plan: SystemPlan) -> None:
    """Bars of the step's resources."""
    step = next(section for section in plan.sections if section.title == "step")
    names = {*map(str, Resource), "store", "network and last layer"}
    bars = [figure for figure in step.figures if figure.name in names]
    axes.barh([bar.name for bar in bars], [bar.value for bar in bars], color=BLUE)
    axes.invert_yaxis()
    axes.set(xlabel="s")


def draw_roofline(axes: Any, plan: SystemPlan, task: TrainingTask, system: System) -> None:
    """What a system reaches with so many tokens in a pass, and what the plan has."""
    setting = setting_of(task, system, plan.mode, Activations(plan.activations))

    def rate(tokens: float) -> float:
        flops, number = task.model.flops_per_token * tokens, plan.num_systems
        time = step_time(system, task.model, tokens * number, setting, number)
        return flops / time.passes_seconds

    axes.plot(TOKENS, [rate(float(tokens)) for tokens in TOKENS], color=BLUE)
    own = plan.figure("step", "tokens of a pass").value
    axes.plot([own], [rate(own)], "o", color=RED)
    axes.axhline(system.peak.value, color=GREY, linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="tokens of a pass", ylabel="FLOP/s as if dense")


def draw_systems(axes: Any, task: TrainingTask, system: System) -> None:
    """The same batch on 1, 2, 4 systems and so on, as many as a cluster and the batch have."""
    most = task.batch_size
    if system.max_systems is not None:
        most = min(most, int(system.max_systems.value))
    numbers = sorted({*(2**power for power in range(most.bit_length())), most})
    gains = _gains([plan_system(task, system, number) for number in numbers])
    axes.plot(numbers, numbers, color=GREY, linestyle="--", label="linear")
    axes.plot(numbers, gains, "o-", color=BLUE, ms=4, label="a step")
    axes.set(xscale="log", yscale="log", xlabel="systems", ylabel="times as fast")
    axes.legend(frameon=False)


def draw_zeros(axes: Any, plan: SystemPlan, task: TrainingTask, system: System) -> None:
    """Steps of the model with all its weights sparse."""
    model = replace(task.model, sparse_parameters=task.model.parameters)
    plans = [
        plan_system(replace(task, model=model, sparsity=share), system, plan.num_systems)
        for share in SPARSITIES
    ]
    fewer = [1 / (1 - share) for share in SPARSITIES]
    axes.plot(fewer, fewer, color=GREY, linestyle="--", label="linear")
    axes.plot(fewer, _gains(plans), "o-", color=BLUE, ms=4, label="a step")
    axes.set(xscale="log", yscale="log", ylabel="times as fast as dense")
    axes.set(xlabel="weights / weights that are not zero")
    axes.legend(frameon=False)


def _gains(plans: Sequence[SystemPlan]) -> list[float]:
    seconds = [plan.figure("step", "step").value for plan in plans]
    return [seconds[0] / each for each in seconds]
