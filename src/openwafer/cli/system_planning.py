"""What ``openwafer plan --system`` counts, tells and writes."""

from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from openwafer.cli.counted_task import task_of
from openwafer.cli.measured_plan import plan_of
from openwafer.cli.system_page import write_page
from openwafer.cli.tables import plain_console, value_of
from openwafer.planning.system_plan import SystemPlan, TrainingTask, plan_system, write_system_plan
from openwafer.planning.systems import System, find_system
from openwafer.training.session import RunConfig, Session


@dataclass(frozen=True)
class Outputs:
    """Files to write; None for none."""

    json: Path | None
    page: Path | None


def plan_elsewhere(config: RunConfig, name: str, num_systems: int, outputs: Outputs) -> None:
    """Plan a run's training on systems of a name, tell it, and write it down."""
    system, task = find_system(name), task_of(config)
    _finish(plan_system(task, system, num_systems), task, system, outputs)


def plan_here(session: Session, outputs: Outputs) -> None:
    """The measured plan of this machine in the same form."""
    task = task_of(session.config)
    _finish(plan_of(session.plan(), session.config, task), task, None, outputs)


def _finish(plan: SystemPlan, task: TrainingTask, system: System | None, outputs: Outputs) -> None:
    _show(plan)
    if outputs.json is not None:
        write_system_plan(outputs.json, plan)
        print(f"wrote {outputs.json}")
    if outputs.page is not None:
        write_page(outputs.page, plan, task, system)
        print(f"wrote {outputs.page}")


def _show(plan: SystemPlan) -> None:
    console = plain_console()
    number = "" if plan.num_systems == 1 else f"{plan.num_systems} replicas, each on one "
    for name, text in (
        ("system", f"{number}{plan.system}, in {plan.precision}"),
        ("mode", f"{plan.mode}, activations {plan.activations}"),
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
