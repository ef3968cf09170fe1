"""The plan of a run as a table for the terminal."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import psutil
from rich.console import Console
from rich.table import Table

from openwafer.diagnostics import Diagnostic, counted, render
from openwafer.figures import Origin
from openwafer.training.data.dataset import BatchSizes
from openwafer.training.metrics.units import (
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from openwafer.training.plan_record import (
    ExpertsWay,
    ExpertTraffic,
    ExpertUse,
    Limit,
    ModeChoice,
    PipelineUse,
    PlannedLayer,
    PlanRecord,
    SparseUse,
    StepBytes,
    StoreUse,
)

PLAIN_WIDTH = 140
MINUTE_SECONDS = 60.0
HEAD = ("layers", "parameters", "weights", "states", "gradients", "activations")
STAGE_HEAD = (
    "stage",
    "layers",
    "work",
    "weights",
    "states",
    "gradients",
    "activations",
    "passing",
    "all",
)


def show_plan(plan: PlanRecord, console: Console) -> None:
    """Print where everything lives, and what a step is predicted to take."""
    if not console.is_terminal:
        # A file or a pipe has no width of its own.
        console = Console(file=console.file, width=PLAIN_WIDTH, quiet=console.quiet)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in enumerate(HEAD):
        table.add_column(title, justify="right" if column == 1 else "left", no_wrap=True)
    for _, alike in groupby(plan.layers, key=_shared_by_a_row):
        table.add_row(*_row(list(alike)))
    console.print(table)
    console.print()
    if plan.pipeline is not None:
        console.print(_stages(plan.pipeline))
        console.print()
    for name, text in _facts(plan):
        console.print(f"{name:<12} {text}", highlight=False)
    console.print()


def show_remarks(remarks: Iterable[Diagnostic | None], console: Console) -> None:
    """Print what there is to say about a run beside its plan."""
    for remark in remarks:
        if remark is not None:
            console.print(render(remark), markup=False, highlight=False, soft_wrap=True)


def show_sizes(sizes: BatchSizes, console: Console) -> None:
    """Print which batch sizes a plan is of, where they change."""
    if sizes.changes:
        text = f"{sizes}; the plan is of the largest"
        console.print(f"{'batch':<12} {text}", highlight=False, soft_wrap=True)


def _stages(pipeline: PipelineUse) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in STAGE_HEAD:
        table.add_column(title, no_wrap=True)
    numbered = [(str(number), stage) for number, stage in enumerate(pipeline.stages)]
    alike = "its copy" if pipeline.replicas == 2 else f"its {pipeline.replicas - 1} copies"
    rows = numbered if not pipeline.others else []
    for (number, first), other in zip(numbered, pipeline.others, strict=False):
        rows += [(number, first), (alike, other)]
    for title, stage in rows:
        table.add_row(
            title,
            stage.first if stage.first == stage.last else f"{stage.first} … {stage.last}",
            format_share(stage.share),
            format_bytes(stage.weights_bytes),
            format_bytes(stage.states_bytes),
            format_bytes(stage.gradients_bytes),
            format_bytes(stage.activation_bytes),
            format_bytes(stage.passing_bytes),
            format_bytes(stage.total_bytes),
        )
    return table


def _shared_by_a_row(layer: PlannedLayer) -> tuple[object, ...]:
    """What neighbouring layers have in common to share a row: all but the name."""
    return tuple(value for key, value in vars(layer).items() if key != "name")


def _row(layers: list[PlannedLayer]) -> tuple[str, ...]:
    first, last = layers[0], layers[-1]
    names = first.name if len(layers) == 1 else f"{first.name} … {last.name} ({len(layers)})"
    return (
        names,
        format_count(first.parameters),
        f"{format_bytes(first.weights_bytes)} {first.weights_tier}",
        f"{format_bytes(first.states_bytes)} {first.states_tier}",
        str(first.gradients_tier),
        f"{first.activations} {format_bytes(first.activation_bytes)}",
    )


def _stores(use: StoreUse) -> str:
    where = "all systems have a share" if use.is_shared else "the first system has all"
    return f"{where}: {use.reason}"


def _of_all(use: StoreUse | None) -> str:
    return ", of all systems together" if use is not None and use.is_shared else ""


def _facts(plan: PlanRecord) -> list[tuple[str, str]]:
    peak, budget = plan.predicted_peak_bytes, plan.device_budget_bytes
    held = f"{format_bytes(peak)} of {format_bytes(budget)} ({format_share(peak / budget)})"
    host = plan.predicted_host_bytes
    facts = [
        ("mode", f"{plan.mode} on {plan.device}"),
        ("parameters", format_count(plan.parameters)),
        ("device peak", held),
        ("host peak", "not predicted" if host is None else _host_peak(host)),
        ("a step needs", f"{format_count(plan.step_flops)} floating-point operations"),
        ("a step moves", _traffic(plan.step_bytes) + _of_all(plan.stores)),
    ]
    if plan.pipeline is not None:
        facts.insert(1, ("stages", _bubble(plan.pipeline)))
    elif plan.systems > 1:
        facts.insert(
            1, ("systems", f"{plan.systems}; figures are of the one with most micro-batches")
        )
        if plan.stores is not None:
            facts.insert(2, ("store", _stores(plan.stores)))
    if plan.choice is not None:
        facts.insert(1, ("chosen", _choice(plan.choice)))
    if plan.undone_step_bytes is not None and plan.kept_step_bytes is not None:
        facts.append(("if clipped", f"{_traffic(plan.undone_step_bytes)}, as it is run again"))
        facts.append(("if often so", f"{_traffic(plan.kept_step_bytes)}, as gradients are kept"))
    if plan.experts is not None:
        facts.append(("experts", _experts(plan.experts)))
    if plan.expert_traffic is not None:
        facts.append(("experts", _expert_traffic(plan.expert_traffic)))
    if plan.sparse is not None:
        facts.append(("sparse", _sparse(plan.sparse)))
        facts.append(("sparse store", _sparse_store(plan.sparse)))
        facts.append(("products", _products(plan.sparse)))
    facts.append(("a step takes", _time(plan)))
    if plan.origins:
        facts.append(("figures", _origins(plan)))
    return facts


def _origins(plan: PlanRecord) -> str:
    """Where figures come from, by origin."""
    is_given = plan.origins["device_budget_bytes"] is Origin.GIVEN
    timed = "" if plan.predicted_step_seconds is None else ", its time from rates measured just now"
    return (
        f"{Origin.INFERRED} from a step on tensors without memory{timed}; the device's memory is "
        f"{Origin.GIVEN if is_given else Origin.MEASURED}"
    )


def _bubble(pipeline: PipelineUse) -> str:
    stages, block = len(pipeline.stages), pipeline.block
    waits = (
        f"each waits {format_share(pipeline.bubble)} of it, "
        f"({stages} - 1) / ({block} + {stages} - 1)"
    )
    if pipeline.replicas == 1:
        return f"{stages}, one a system, and {block} micro-batches a step: {waits}"
    return (
        f"{stages} in each of {pipeline.replicas} replicas, and {pipeline.micro_batches} "
        f"micro-batches a step, {block} at most in a replica: {waits}"
    )


def _choice(choice: ModeChoice) -> str:
    streamed, staged = choice.streamed_seconds, choice.pipelined_seconds
    told = f"by the plan: {choice.reason}"
    if streamed is None or staged is None:
        return told
    times = f"about {_duration(staged)} in stages and {_duration(streamed)} where weights stream"
    return f"{told}, {times}"


def _host_peak(num_bytes: int) -> str:
    there = psutil.virtual_memory().total
    peak = f"about {format_bytes(num_bytes)}"
    return peak if num_bytes <= there else f"{peak}, and this machine has {format_bytes(there)}"


def _experts(experts: ExpertUse) -> str:
    used, all_of_them = experts.used / experts.layers, experts.experts / experts.layers
    return (
        f"about {used:.3g} of {all_of_them:.3g} used a layer, "
        f"{format_bytes(experts.used_bytes)} of "
        f"{format_bytes(experts.weights_bytes)}"
    )


def _expert_traffic(traffic: ExpertTraffic) -> str:
    fetched = format_bytes(traffic.fetch_bytes)
    if traffic.owners_bytes is None:
        why = "" if traffic.reason is None else f", for {traffic.reason}"
        return f"fetched by each system{why}: it receives {fetched} a step of them"
    sent = format_bytes(traffic.owners_bytes)
    if traffic.way is ExpertsWay.OWNERS:
        return (
            f"computed by the systems that own them: each receives about {sent} a step of rows, "
            f"and would of weights and gradients {fetched}"
        )
    return (
        f"fetched by each system: it receives {fetched} a step of weights and gradients, and would "
        f"of rows about {sent}"
    )


def _sparse(sparse: SparseUse) -> str:
    return (
        f"{format_share(sparse.elements / sparse.parameters)} of "
        f"{format_count(sparse.parameters)} dense parameters, in {len(sparse.weights)} weights, of "
        f"which {format_share(sparse.capacity / sparse.elements)} are kept at most"
    )


def _sparse_store(sparse: SparseUse) -> str:
    return (
        f"{format_bytes(sparse.store_bytes)} of values, states and pattern "
        f"({format_bytes(sparse.pattern_bytes)}), where dense weights take "
        f"{format_bytes(sparse.dense_store_bytes)}"
    )


def _products(sparse: SparseUse) -> str:
    by_tokens: dict[int | None, list[float | None]] = {}
    for weight in sparse.weights:
        by_tokens.setdefault(weight.skips_from_tokens, []).append(weight.skipping_gain)
    told = []
    for tokens, gains in by_tokens.items():
        how = "dense" if tokens is None else f"skip zeros from {tokens} tokens on"
        known = [gain for gain in gains if gain is not None]
        span = f", where skipping gains {min(known):.2g} to {max(known):.2g} times" if known else ""
        told.append(f"of {counted(len(gains), 'weight')} {how}{span}")
    return "; ".join(told)


def _time(plan: PlanRecord) -> str:
    seconds, limit, rate = (
        plan.predicted_step_seconds,
        plan.step_limit,
        plan.disk_limit_bytes_per_second,
    )
    if seconds is None and plan.systems > 1:
        return "not predicted: the other systems are not here, and the way to them is not measured"
    if seconds is None:
        return "not predicted: the rate of the store's disk cannot be measured"
    at_rate = f": {format_rate(rate)}" if limit is Limit.DISK and rate is not None else ""
    return f"about {_duration(seconds)} ({limit} is the limit{at_rate})"


@dataclass(frozen=True)
class Correction:
    """What the first steps say of a plan's time.

    Attributes:
        text: a line.
        matters: whether the run ends more than a minute earlier or later than was predicted.
    """

    text: str
    matters: bool


def correction(measured: float, predicted: float | None, steps_left: float) -> Correction:
    """Compare what a step takes with what was predicted, both in seconds.

    Args:
        measured, predicted: seconds of a step of the largest batch.
        steps_left: how many of them the rest of the run takes as long as.
    """
    text = f"a step takes {_duration(measured)}"
    if predicted is None:
        return Correction(f"{text}, which was not predicted", matters=False)
    text += f", and {_duration(predicted)} was predicted"
    later = (measured - predicted) * steps_left
    if abs(later) <= MINUTE_SECONDS:
        return Correction(text, matters=False)
    when = "later" if later > 0 else "earlier"
    return Correction(f"{text}: the run ends {_duration(abs(later))} {when}", matters=True)


def _traffic(moved: StepBytes) -> str:
    return ", ".join(
        f"{name} {format_bytes(num_bytes)}"
        for name, num_bytes in (
            ("fetch", moved.fetch),
            ("push", moved.push),
            ("disk read", moved.disk_read),
            ("disk write", moved.disk_write),
        )
    )


def _duration(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 60 else f"{seconds:.2g} s"
