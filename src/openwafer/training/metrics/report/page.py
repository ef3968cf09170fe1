"""The report of a run: one HTML file that needs nothing beside it."""

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path

from openwafer.atomic_file import write_text
from openwafer.config import PathLike, path_of
from openwafer.diagnostics import error
from openwafer.training.metrics.report import curves, details, html
from openwafer.training.metrics.report.noise import show_noise
from openwafer.training.metrics.report.overview import show_overview
from openwafer.training.metrics.report.sparse import show_sparse
from openwafer.training.metrics.report.systems import show_systems
from openwafer.training.metrics.report.timeline import draw_timeline
from openwafer.training.metrics.report.traffic import draw_traffic, list_traffic
from openwafer.training.metrics.run_record import RunRecord, load_run
from openwafer.training.metrics.step_metrics import measured_peaks
from openwafer.training.metrics.step_trace import StepTrace, trace_step_missing


def write_report(run_folder: PathLike, *, step: int | None = None) -> Path:
    """Write report.html into a run folder and return its path.

    `step` chooses the traced step that the timeline shows; by default a late, whole one. Raises
    `OpenwaferError` as `load_run` does, trace-step-missing, and report-not-written.
    """
    folder = path_of(run_folder, "run_folder")
    path = folder / "report.html"
    text = render_report(load_run(folder), step=step)
    try:
        write_text(path, text)
    except OSError as cause:
        raise error(
            "report-not-written",
            f"cannot write {path}: {cause.strerror}",
            help="free some space, or copy the run to a folder that may be written to",
        ) from cause
    return path


def render_report(run: RunRecord, *, step: int | None = None) -> str:
    """The report as HTML text."""
    if run.trace is None and step is not None:
        raise trace_step_missing(f"the run {run.name}", step, ())
    traced = run.trace.select(step) if run.trace is not None else None
    body = [show_overview(run, traced), *_show_steps(run), *show_noise(run)]
    body += _show_traced_step(run, traced)
    body += [*_show_traffic(run), *show_systems(run), *show_sparse(run), *_show_rest(run)]
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(run.name)} · openwafer</title><style>\n{style}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _show_steps(run: RunRecord) -> Iterator[str]:
    rows = run.metrics.rows
    if run.metrics.torn:
        yield html.note("The last line of metrics.jsonl was cut short by a kill and is left out.")
    if not rows:
        yield html.absent("Loss", "No step was finished yet.")
        return
    yield from _show_loss(run)
    yield html.figure(curves.draw_throughput(rows))
    if measured_peaks(rows):
        yield html.figure(curves.draw_peak_memory(rows, run.plan))


def _show_loss(run: RunRecord) -> Iterator[str]:
    rows = run.metrics.rows
    if not any(isfinite(row.loss) for row in rows):
        yield html.absent("Loss", "No loss of this run is a finite number.")
        return
    yield html.figure(curves.draw_loss(rows, run.validation.rows if run.validation else ()))
    if run.validation is None:
        yield html.note("No validation was run.")


def _show_traced_step(run: RunRecord, traced: StepTrace | None) -> Iterator[str]:
    if traced is None:
        yield html.absent("Timeline of a step", "No step was traced in this run.")
        return
    if traced.memory:
        yield html.figure(curves.draw_step_memory(traced, run.plan))
    yield html.figure(draw_timeline(traced, [layer.name for layer in run.plan.layers]))
    yield details.show_compute_share(traced)


def _show_traffic(run: RunRecord) -> Iterator[str]:
    rows = run.metrics.rows
    if not rows:
        return
    traffic = list_traffic(rows, run.plan)
    if any(way.measured_bytes or way.planned_bytes for way in traffic):
        yield html.figure(draw_traffic(traffic, run.plan.parameters))
    else:
        yield html.absent("Bytes moved", "Nothing was streamed: the model stayed on the device.")
    if any(row.disk_read_bytes or row.disk_write_bytes for row in rows):
        yield html.figure(curves.draw_disk_rate(rows, run.plan.disk_limit_bytes_per_second))
    yield html.figure(curves.draw_host_memory(rows))


def _show_rest(run: RunRecord) -> Iterator[str]:
    if run.sample is not None:
        yield details.show_sample(run.sample)
    else:
        yield html.absent("A sample of generated text", "No text was generated in this run.")
    yield details.show_plan(run.plan)
    if run.environment is not None:
        yield details.show_environment(run.environment)
    else:
        yield html.absent("Environment", "The environment of this run was not recorded.")
    yield details.show_config(run.config_text)
