"""``openwafer plan --system`` counts, tells and writes a plan for a system."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from openwafer.cli.counted_task import task_of
from openwafer.cli.joined_systems import Forecast, draw_forecast, with_forecast
from openwafer.cli.measured_plan import plan_of
from openwafer.cli.simulated_cycles import with_cycles
from openwafer.cli.system_page import Picture, drawn, pictures_of, write_page
from openwafer.cli.tables import plain_console, value_of
from openwafer.diagnostics import Diagnostic, tell
from openwafer.planning.system_plan import SystemPlan, plan_system, write_system_plan
from openwafer.planning.systems import find_system
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.systems import blocks_of


@dataclass(frozen=True)
class Outputs:
    """Files to write; None for none."""

    json: Path | None
    page: Path | None


def plan_elsewhere(
    config: RunConfig, name: str, num_systems: int, outputs: Outputs, simulated: Path | None
) -> None:
    """Plan a run's training on systems of a name, tell it, and write it down.

    Args:
        config: of the run.
        name: of a system, or a file that describes one.
        num_systems: of them.
        outputs: files to write.
        simulated: folder of a run on the wafer, whose cycles take the place of published constants.
    """
    system = find_system(name)
    if simulated is not None:
        system = with_cycles(system, simulated)
    task = task_of(config, system)
    plan = plan_system(task, system, num_systems)
    _finish(plan, outputs, pictures_of(plan, task, system))


def plan_here(session: Session, outputs: Outputs, link: float | None) -> None:
    """The measured plan of this machine in the same form, and of several like it.

    Args:
        session: of the run.
        outputs: files to write.
        link: bytes a second between systems; ``None`` where nobody says.
    """
    config, task = session.config, task_of(session.config)
    if config.systems == 1:
        _finish(plan_of(session.plan(), config, task), outputs, ())
        return
    record, measured = session.measure()
    plan = plan_of(record, config, task)
    if isinstance(measured, Diagnostic):
        tell([measured])
        _finish(plan, outputs, ())
        return
    blocks = [len(block) for block in blocks_of(config.batch.most_micro_batches, config.systems)]
    forecast = Forecast(measured, blocks, link)
    _finish(with_forecast(plan, task, forecast), outputs, _pictures_of(forecast))


def _pictures_of(forecast: Forecast) -> Iterator[Picture]:
    yield drawn(
        "More systems",
        "A step of the same batch on more systems like this one, times as fast as on one.",
        lambda axes: draw_forecast(axes, forecast),
    )


def _finish(plan: SystemPlan, outputs: Outputs, pictures: Iterable[Picture]) -> None:
    _show(plan)
    if outputs.json is not None:
        write_system_plan(outputs.json, plan)
        print(f"wrote {outputs.json}")
    if outputs.page is not None:
        write_page(outputs.page, plan, pictures)
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
