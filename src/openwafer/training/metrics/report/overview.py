"""The top of a report: what was trained, where it lived, and the headline numbers."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from openwafer.training.metrics.compute_share import compute_share
from openwafer.training.metrics.run_record import RunRecord
from openwafer.training.metrics.step_metrics import StepMetrics, measured_peaks
from openwafer.training.metrics.step_trace import StepTrace
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
