"""``openwafer cirh``: the graph of a training step that the vendor's front end writes."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openwafer.cli.tables import plain_console
from openwafer.diagnostics import error

if TYPE_CHECKING:
    from rich.table import Table

    from openwafer.training.frontends.official.graph import Graph
    from openwafer.training.frontends.official.visits import StepPlan

cirh_app = typer.Typer(help="Graphs of training steps, as the vendor's front end writes them.")


@cirh_app.callback()
def _root() -> None:
    """A command of this name alone would take the place of the group."""


@cirh_app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE.mlir", help="A cirh.mlir.")],
) -> None:
    """Show a graph's operations, its layers, and the order in which a step needs their weights."""
    from openwafer.training.frontends.official.text import read_graph
    from openwafer.training.frontends.official.visits import plan_step

    graph = read_graph(_text_of(file), str(file))
    plan = plan_step(graph)
    console = plain_console()
    for table in (_operations(graph), _layers(plan), _visits(plan)):
        console.print(table, "")
    for line in _sentences(graph, plan):
        console.print(line)


def _text_of(file: Path) -> str:
    try:
        # What is no text is no graph, which the reader tells with its place.
        return file.read_text("utf-8", "replace")
    except OSError as cause:
        raise error(
            "cirh-file", f"cannot read {file}: {cause.strerror}", help="give a cirh.mlir"
        ) from cause


def _table(title: str, *columns: str) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _operations(graph: "Graph") -> "Table":
    from openwafer.training.frontends.official.operators import MEANINGS, flops

    counts = Counter(one.kind for one in graph.operations)
    work: Counter[str] = Counter()
    for one in graph.operations:
        work[one.kind] += flops(one, graph.types)
    table = _table("Operations", "kind", "times", "FLOPs a step", "known")
    for kind, count in counts.most_common():
        is_known = "yes" if kind in MEANINGS else "no"
        of_kind = f"{work[kind]:,}" if work[kind] else "-"
        table.add_row(kind, f"{count:,}", of_kind, is_known)
    return table


def _layers(plan: "StepPlan") -> "Table":
    from openwafer.training.frontends.official.visits import SHARED, is_weight

    table = _table("Layers", "layer", "weights", "bytes of weights", "bytes of states")
    for layer, held in plan.records.items():
        weights = [one for one in held if is_weight(one)]
        states = sum(one.type.num_bytes for one in held if not is_weight(one))
        name = "of no layer" if layer == SHARED else layer
        table.add_row(name, f"{len(weights):,}", f"{plan.layer_bytes(layer):,}", f"{states:,}")
    return table


def _visits(plan: "StepPlan") -> "Table":
    table = _table("A step", "layers on the device", "operations", "values written")
    for visit in plan.visits:
        num_writes = len(visit.writes)
        layers = ", ".join(sorted(visit.layers)) or "none"
        table.add_row(layers, f"{len(visit.nodes) - num_writes:,}", f"{num_writes:,}")
    return table


def _sentences(graph: "Graph", plan: "StepPlan") -> Iterable[str]:
    largest = max((sum(map(plan.layer_bytes, visit.layers)) for visit in plan.visits), default=0)
    model = sum(map(plan.layer_bytes, plan.records))
    waiting = sum(graph.types[one].num_bytes for one in plan.waiting)
    yield f"The device has at most {largest:,} bytes of weights at once; the model has {model:,}."
    if waiting:
        yield f"{waiting:,} bytes of gradients wait in the store, until a value of all is known."
    yield from _unknown(graph)


def _unknown(graph: "Graph") -> Iterable[str]:
    from openwafer.training.frontends.official.operators import unknown_operations

    found = unknown_operations(graph)
    if found:
        yield "It cannot be run here, for these operations:"
    for kind, lines in found.items():
        yield f"  {kind}: {len(lines)}, the first in line {lines[0]}"
