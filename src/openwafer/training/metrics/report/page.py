"""The report of a run: one HTML file that needs nothing beside it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean, median

from openwafer.atomic_file import write_text
from openwafer.config import PathLike, path_of
from openwafer.diagnostics import error
from openwafer.training.metrics.report import curves
from openwafer.training.metrics.report.curves import (
    describe_slowest,
    draw_systems,
    draw_traffic,
    list_systems,
    list_traffic,
)
from openwafer.training.metrics.report.drawing import Figure, render
from openwafer.training.metrics.report.fabric import draw_fabric
from openwafer.training.metrics.report.sparse import describe_sparse, draw_churn, draw_masks
from openwafer.training.metrics.report.timeline import draw_timeline, list_shares
from openwafer.training.metrics.run_record import RunRecord, load_run
from openwafer.training.metrics.step_lines import StepMetrics, measured_peaks
from openwafer.training.metrics.step_trace import StepTrace, compute_share, trace_step_missing
from openwafer.training.metrics.units import (
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from openwafer.training.plan_record import Home, Mode, PlannedLayer, PlanRecord

_PLACES = {Home.DEVICE: "on the device", Home.DRAM: "in DRAM", Home.DISK: "on disk"}
_MOST_MODEL_FACTS = 8

Tile = tuple[str, str, str]


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
        summary=describe_run(run),
        model=describe_model(run.config),
        tiles=list_tiles(run, traced) if run.metrics.rows else (),
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
    if run.fabric is not None and run.fabric.passes:
        yield draw_fabric(run.fabric)
    if run.mask_pictures:
        yield draw_masks(run.mask_pictures)


def _figures_of_steps(run: RunRecord) -> Iterator[Figure]:
    rows, plan = run.metrics.rows, run.plan
    if any(isfinite(row.loss) for row in rows):
        yield curves.draw_loss(rows, run.validation.rows if run.validation else ())
    yield curves.draw_learning_rate(rows)
    if any(row.grad_norm is not None for row in rows):
        yield curves.draw_gradient_norm(rows, _clip_norm(run.config))
    yield curves.draw_throughput(rows)
    if measured_peaks(rows):
        yield curves.draw_peak_memory(rows, plan)
    traffic = list_traffic(rows, plan)
    if any(way.measured_bytes or way.planned_bytes for way in traffic):
        yield draw_traffic(traffic, plan.parameters)
    if any(row.disk_read_bytes or row.disk_write_bytes for row in rows):
        yield curves.draw_disk_rate(rows, plan.disk_limit_bytes_per_second)
    yield curves.draw_host_memory(rows)


def _clip_norm(config: Mapping[str, object]) -> float | None:
    """The norm that the config clips gradients to, if it does."""
    written = config.get("clip_norm")
    return float(written) if isinstance(written, int | float) else None


def describe_run(run: RunRecord) -> str:
    """What was trained, for how long, on what, and where it lives."""
    plan = run.plan
    num_steps = run.metrics.rows[-1].step + 1 if run.metrics.rows else 0
    return (
        f"A model of {format_count(plan.parameters)} parameters in {len(plan.layers)} layers, "
        f"trained for {num_steps} steps on {plan.device} with a budget of "
        f"{format_bytes(plan.device_budget_bytes)} of device memory. {describe_home(plan)}"
    )


def describe_home(plan: PlanRecord) -> str:
    """Where weights and optimizer states live, by size."""
    if plan.mode is Mode.RESIDENT:
        return "The model fits: all of it stays on the device."
    if plan.mode is Mode.PIPELINED:
        return f"Each of {plan.systems} systems keeps a stage of the model."
    weights = _by_tier(plan.layers, lambda layer: (layer.weights_tier, layer.weights_bytes))
    states = _by_tier(plan.layers, lambda layer: (layer.states_tier, layer.states_bytes))
    return f"Weights live {weights}; optimizer states {states}."


def list_tiles(run: RunRecord, step: StepTrace | None) -> list[Tile]:
    """Name, number, and what to hold it against; at least one step is needed."""
    rows, plan = run.metrics.rows, run.plan
    streamed = median(row.fetch_bytes + row.push_bytes for row in rows)
    return [
        ("Loss at the last step", f"{rows[-1].loss:.3f}", f"from {rows[0].loss:.3f}"),
        ("Tokens a second", format_count(median(r.tokens_per_second for r in rows)), "median"),
        ("Step", format_duration(median(row.seconds for row in rows)), _predicted(plan)),
        *_tile_compute(step),
        *_tiles_of_work(rows, plan),
        *_tile_peak(rows, plan),
        (
            "Streamed a step",
            format_bytes(streamed),
            f"{streamed / plan.parameters:.2f} B/parameter",
        ),
        *_tile_disk(rows, plan.disk_limit_bytes_per_second),
        _tile_host(rows, plan.predicted_host_bytes),
    ]


def _tile_peak(rows: Sequence[StepMetrics], plan: PlanRecord) -> list[Tile]:
    peaks = measured_peaks(rows).values()
    budget = f"of {format_bytes(plan.device_budget_bytes)}"
    return [("Peak on the device", format_bytes(max(peaks)), budget)] if peaks else []


def _tiles_of_work(rows: Sequence[StepMetrics], plan: PlanRecord) -> Iterator[Tile]:
    """What a model computed and fetched that leaves out layers or tokens, beside the whole."""
    whole = plan.whole_layer_calls
    if whole is None:
        return
    mean = fmean(row.fetch_bytes for row in rows)
    flops = [row.flops for row in rows if row.flops is not None]
    if flops and plan.step_flops:
        share = format_share(fmean(flops) / plan.step_flops)
        yield ("FLOPs a step", format_count(fmean(flops)), f"{share} of the whole model's, mean")
    calls = [row.layer_calls for row in rows if row.layer_calls is not None]
    if calls:
        yield ("Layer calls a step", f"{fmean(calls):.1f}", f"of {whole}, mean")
    if plan.step_bytes.fetch:
        share = format_share(mean / plan.step_bytes.fetch)
        yield ("Fetched a step", format_bytes(mean), f"{share} of the whole model's, mean")


def _tile_host(rows: Sequence[StepMetrics], predicted: int | None) -> Tile:
    beside = "" if predicted is None else f", predicted peak {format_bytes(predicted)}"
    most = format_bytes(max(row.host_bytes for row in rows))
    return "Host memory", most, f"resident after a step{beside}"


def _predicted(plan: PlanRecord) -> str:
    seconds = plan.predicted_step_seconds
    if seconds is None:
        return "median"
    return f"predicted {format_duration(seconds)} ({plan.step_limit})"


def _tile_compute(step: StepTrace | None) -> list[Tile]:
    if step is None:
        return []
    share = format_share(compute_share(step).share)
    return [("Device computes", share, f"of step {step.step}")]


def _tile_disk(rows: Sequence[StepMetrics], limit: float | None) -> list[Tile]:
    rate = median((row.disk_read_bytes + row.disk_write_bytes) / row.seconds for row in rows)
    if not rate:
        return []
    beside = "median" if limit is None else f"{format_share(rate / limit)} of the limit"
    return [("Disk rate", format_rate(rate), beside)]


def _by_tier(
    layers: Sequence[PlannedLayer], part: Callable[[PlannedLayer], tuple[Home, int]]
) -> str:
    sizes = dict.fromkeys(Home, 0)
    for tier, num_bytes in map(part, layers):
        sizes[tier] += num_bytes
    homes = [f"{_PLACES[tier]} ({format_bytes(size)})" for tier, size in sizes.items() if size]
    return " and ".join(homes) or "nowhere, there are none"


def describe_model(config: Mapping[str, object]) -> str:
    """The first facts of the config's model."""
    model = config.get("model")
    if not isinstance(model, dict):
        return f"Model: {model}" if model else ""
    facts = [f"{key} {value}" for key, value in model.items() if _is_plain(value)]
    return f"Model: {', '.join(facts[:_MOST_MODEL_FACTS])}"


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float) and value != ""
