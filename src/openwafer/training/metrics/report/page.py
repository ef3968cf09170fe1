"""The report of a run: one HTML file that needs nothing beside it."""

from collections.abc import Iterator
from math import isfinite
from pathlib import Path

from openwafer.atomic_file import write_text
from openwafer.config import PathLike, path_of
from openwafer.diagnostics import error
from openwafer.training.metrics.report import curves, overview
from openwafer.training.metrics.report.drawing import Figure
from openwafer.training.metrics.report.rendering import render
from openwafer.training.metrics.report.sparse import describe_sparse, draw_churn, draw_masks
from openwafer.training.metrics.report.systems import describe_slowest, draw_systems, list_systems
from openwafer.training.metrics.report.timeline import draw_timeline, list_shares
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
    systems = list_systems(run.metrics.rows)
    return render(
        "report.html",
        title=f"{run.name} · openwafer",
        run=run,
        traced=traced,
        summary=overview.describe_run(run),
        model=overview.describe_model(run.config),
        tiles=overview.list_tiles(run, traced) if run.metrics.rows else (),
        figures={drawn.name: drawn for drawn in _figures(run, traced)},
        has_noise=any(row.gradient_noise is not None for row in run.metrics.rows),
        shares=[*list_shares(traced)] if traced is not None else (),
        slowest=describe_slowest(systems) if systems else None,
        sparse=describe_sparse(run.plan, run.masks.rows if run.masks is not None else ()),
    )


def _figures(run: RunRecord, traced: StepTrace | None) -> Iterator[Figure]:
    """Those that this run has something to draw for."""
    rows, plan = run.metrics.rows, run.plan
    if rows:
        yield from _figures_of_steps(run)
    if any(row.noise_scale is not None for row in rows):
        yield curves.draw_noise_scale(rows)
    if traced is not None:
        if traced.memory:
            yield curves.draw_step_memory(traced, plan)
        yield draw_timeline(traced, [layer.name for layer in plan.layers])
    if systems := list_systems(rows):
        yield draw_systems(systems)
    if run.masks is not None and run.masks.rows:
        yield draw_churn(run.masks.rows)
    if run.mask_pictures:
        yield draw_masks(run.mask_pictures)


def _figures_of_steps(run: RunRecord) -> Iterator[Figure]:
    rows, plan = run.metrics.rows, run.plan
    if any(isfinite(row.loss) for row in rows):
        yield curves.draw_loss(rows, run.validation.rows if run.validation else ())
    yield curves.draw_throughput(rows)
    if measured_peaks(rows):
        yield curves.draw_peak_memory(rows, plan)
    traffic = list_traffic(rows, plan)
    if any(way.measured_bytes or way.planned_bytes for way in traffic):
        yield draw_traffic(traffic, plan.parameters)
    if any(row.disk_read_bytes or row.disk_write_bytes for row in rows):
        yield curves.draw_disk_rate(rows, plan.disk_limit_bytes_per_second)
    yield curves.draw_host_memory(rows)
