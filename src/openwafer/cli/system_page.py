"""The plan for a system as one HTML file, with pictures of what would change it."""

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from openwafer.atomic_file import write_text
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
from openwafer.training.metrics.report import html

PICTURE_INCHES = (7.5, 3.8)
SPARSITIES = (0.0, 0.25, 0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
TOKENS = np.geomspace(100, 1e6, 120)
BLUE, ORANGE, GREY = "#1f5fa8", "#cf5b3f", "#999999"


def write_page(path: Path, plan: SystemPlan, pictures: Iterable[str]) -> None:
    """Replace the file `path`. Raises OSError."""
    style = files("openwafer.training.metrics.report").joinpath("page.css").read_text("utf-8")
    title = f"{plan.system} · plan"
    body = [
        f"<h1>{escape(plan.system)}</h1>",
        html.note(f"{counted(plan.num_systems, 'system')}, {plan.mode}: {plan.reason}."),
        html.note(f"A step waits longest for {plan.limit}."),
        *pictures,
        *map(_section, plan.sections),
    ]
    write_text(
        path,
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n",
    )


def _section(section: Section) -> str:
    rows = [
        [
            escape(figure.name.replace("_", " ")),
            escape(value_of(figure)),
            escape(str(figure.origin)),
            escape(figure.source),
        ]
        for figure in section.figures
    ]
    return html.section(section.title, html.table((" ", "value", "is", "from"), rows, "figures"))


def pictures_of(plan: SystemPlan, task: TrainingTask, system: System) -> Iterator[str]:
    """Those of a plan for a published or described system."""
    yield picture(
        "A step by resource",
        "Seconds of a step that each resource is busy; in each pass the slowest one counts.",
        lambda axes: draw_resources(axes, plan),
    )
    yield picture(
        "Roofline",
        "FLOP/s of one system by the tokens of a pass; the point is this plan's.",
        lambda axes: draw_roofline(axes, plan, task, system),
    )
    yield picture(
        "More systems",
        "A step of the same batch on more systems, times as fast as on one.",
        lambda axes: draw_systems(axes, task, system),
    )
    yield picture(
        "More zeros",
        "A step, times as fast as dense: if all weights had so many zeros.",
        lambda axes: draw_zeros(axes, plan, task, system),
    )


def picture(title: str, caption: str, draw: Callable[[Any], None]) -> str:
    """A section of the page with what ``draw`` puts on its axes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=PICTURE_INCHES, layout="constrained")
    axes: Any = canvas.subplots()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    drawn = io.BytesIO()
    # The same plan gives the same bytes.
    with rc_context({"svg.hashsalt": "openwafer"}):
        canvas.savefig(drawn, format="svg", metadata={"Date": None})
    data = base64.b64encode(drawn.getvalue()).decode()
    image = f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{data}">'
    return html.section(title, html.caption(caption), image)


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
    axes.plot([own], [rate(own)], "o", color=ORANGE)
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
