"""What ``openwafer plan --system`` counts, tells and writes."""

from pathlib import Path

from rich.table import Table

from openwafer.cli.counted_task import task_of
from openwafer.cli.measured_plan import plan_of
from openwafer.cli.tables import plain_console, value_of
from openwafer.planning.system_plan import SystemPlan, plan_system, write_system_plan
from openwafer.planning.systems import find_system
from openwafer.training.session import RunConfig, Session


def plan_elsewhere(config: RunConfig, name: str, num_systems: int, json: Path | None) -> None:
    """Plan a run's training on systems of a name, tell it, and write it down."""
    system = find_system(name)
    _finish(plan_system(task_of(config), system, num_systems), json)


def plan_here(session: Session, json: Path | None) -> None:
    """The measured plan of this machine in the same form."""
    _finish(plan_of(session.plan(), session.config), json)


def _finish(plan: SystemPlan, json: Path | None) -> None:
    _show(plan)
    if json is not None:
        write_system_plan(json, plan)
        print(f"wrote {json}")


def _show(plan: SystemPlan) -> None:
    console = plain_console()
    number = "" if plan.num_systems == 1 else f"{plan.num_systems} replicas, each on one "
    kind = "activations recomputed" if plan.recomputes else "activations kept"
    for name, text in (
        ("system", f"{number}{plan.system}, in {plan.precision}"),
        ("mode", f"{plan.mode}, {kind}"),
        ("since", plan.reason),
        ("limit", f"a step waits longest for {plan.limit}"),
    ):
        console.print(f"{name:<8} {text}", highlight=False)
    for section in plan.sections:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(section.title, min_width=30)
        table.add_column("", justify="right", min_width=22)
        table.add_column("is", min_width=9)
        table.add_column("from")
        for figure in section.figures:
            name = figure.name.replace("_", " ")
            table.add_row(name, value_of(figure), str(figure.origin), figure.source)
        console.print()
        console.print(table)
