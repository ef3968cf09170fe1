"""``openwafer place`` counts, places and draws the layers of a model."""

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from openwafer.cli.counted_task import loads_of
from openwafer.cli.floor_plan_picture import draw_floor_plan
from openwafer.cli.tables import plain_console, value_of
from openwafer.diagnostics import Diagnostic, Severity, counted, tell
from openwafer.figures import Figure, Origin
from openwafer.planning.placement import (
    FloorPlan,
    PipelineTask,
    Placement,
    place_pipeline,
    write_placement,
)
from openwafer.planning.systems import find_system
from openwafer.training.data.dataset import BatchSizes
from openwafer.training.session import RunConfig


@dataclass(frozen=True)
class Outputs:
    """Files to write; None for none."""

    json: Path | None
    picture: Path | None


def pipeline_of(config: RunConfig) -> PipelineTask:
    """What a run trains, counted layer by layer."""
    sizes = config.batch.sizes
    return PipelineTask(loads_of(config), max(sizes.all), config.batch.sequence_length)


def place_layers(config: RunConfig, wafer: str, replicas: int | None, outputs: Outputs) -> None:
    """Place a run's layers on a wafer, tell the floor plan, and write it down."""
    system = find_system(wafer)
    if config.sparsity is not None:
        tell((_dense(),))
    if config.batch.schedule:
        tell((_largest(config.batch.sizes),))
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        shown = bar.add_task("counting layers", total=None)
        task = pipeline_of(config)
        placement = place_pipeline(
            task,
            system,
            replicas,
            lambda done, most: bar.update(
                shown, description="floor plans", completed=done, total=most
            ),
        )
    _show(placement)
    if outputs.json is not None:
        write_placement(outputs.json, placement)
        print(f"wrote {outputs.json}")
    if outputs.picture is not None:
        draw_floor_plan(outputs.picture, placement)
        print(f"wrote {outputs.picture}")


def _dense() -> Diagnostic:
    return Diagnostic(
        Severity.WARNING,
        "placement-dense",
        "sparse weights are placed as if they were dense, in work and in memory",
        help="openwafer plan --system tells what zeros gain where weights stream",
    )


def _largest(sizes: BatchSizes) -> Diagnostic:
    return Diagnostic(
        Severity.WARNING,
        "placement-batch",
        f"the batch has {sizes}, and the floor plan is that of {max(sizes.all)}",
        help="to place another size: --set batch.size=N --set batch.schedule=[]",
    )


def _show(placement: Placement) -> None:
    console = plain_console()
    plan = placement.chosen
    site = plan.site
    tile = f"{site.columns // plan.across} x {site.rows // plan.down}"
    for name, text in (
        ("wafer", f"{placement.system.title}, {site.columns} x {site.rows} cores"),
        ("replicas", f"{plan.replicas}, {plan.across} x {plan.down} tiles of {tile} cores"),
        ("layers", f"{len(plan.rectangles)}, activations {plan.recomputing}"),
    ):
        console.print(f"{name:<8} {text}", highlight=False)
    console.print()
    console.print(_layers(plan))
    console.print()
    console.print(_compared(placement))


def _layers(plan: FloorPlan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in enumerate(
        ("layer", "cores from", "columns", "rows", "of a token", "busy", "a core holds")
    ):
        table.add_column(title, justify="right" if column else "left", overflow="fold")
    clock, slowest = plan.site.fabric.clock.value, plan.slowest_cycles
    for demand, own in zip(plan.demands, plan.rectangles, strict=True):
        cycles = demand.cycles(own.columns, own.rows)
        table.add_row(
            demand.name,
            f"{own.x}, {own.y}",
            f"{own.columns}",
            f"{own.rows}",
            _told("s", cycles / clock),
            f"{cycles / slowest:.1%}" if slowest else "",
            _told("B", demand.held_bytes / own.cores),
        )
    return table


def _told(unit: str, value: float) -> str:
    return value_of(Figure("", value, unit, Origin.INFERRED, ""))


def _compared(placement: Placement) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(counted(placement.chosen.replicas, "replica"))
    for title in ("placed", "rows of squares", "bound"):
        table.add_column(title, justify="right")
    table.add_column("is")
    table.add_column("from", overflow="fold")
    simplest = placement.rows_of_squares
    others = {} if simplest is None else {figure.name: figure for figure in simplest.figures}
    for figure in placement.chosen.figures:
        other = others.get(figure.name)
        bound = placement.bounds.get(figure.name)
        table.add_row(
            figure.name,
            value_of(figure),
            "no room" if other is None else value_of(other),
            "" if bound is None else value_of(bound),
            str(figure.origin),
            figure.source,
        )
    return table
