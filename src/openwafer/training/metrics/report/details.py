"""The lower part of a report: compute share, plan, sample, environment, config."""

from collections.abc import Mapping
from html import escape

from openwafer.training.metrics.compute_share import compute_share
from openwafer.training.metrics.report import html
from openwafer.training.metrics.report.drawing import Color, Key
from openwafer.training.metrics.sample_record import GeneratedSample
from openwafer.training.metrics.step_trace import StepTrace, Track
from openwafer.training.metrics.units import format_bytes, format_count, format_share
from openwafer.training.plan_record import Home, PlannedLayer, PlanRecord

_CAUSE_COLORS = {
    Track.FETCH: Color.FETCH,
    Track.PUSH: Color.PUSH,
    Track.UPDATE: Color.UPDATE,
    Track.DISK_READ: Color.READ,
    Track.DISK_WRITE: Color.WRITE,
}
_MOST_OPEN_ROWS = 48
_VISIBLE_SHARE = 5e-4  # less would read 0.0%
_PLAN_HEAD = ("layer", "parameters", "weights", "states", "gradients", "activations")


def show_compute_share(step: StepTrace) -> str:
    """Where the step's wall time went, as a bar and as numbers."""
    split = compute_share(step)
    causes = [
        (cause, seconds / split.window_seconds)
        for cause, seconds in split.exposed_seconds.items()
        if seconds > _VISIBLE_SHARE * split.window_seconds
    ]
    shares = [(Color.FORWARD, split.share), *((_CAUSE_COLORS[c], share) for c, share in causes)]
    keys = [Key(f"computing {format_share(split.share)}", Color.FORWARD)]
    keys += [Key(f"{c} exposed {format_share(share)}", _CAUSE_COLORS[c]) for c, share in causes]
    unexplained = split.unexplained_seconds / split.window_seconds
    if unexplained > _VISIBLE_SHARE:
        keys += [Key(f"nothing traced {format_share(unexplained)}", Color.GRID)]
    text = (
        f"How step {step.step} spent its time. A transfer or update is exposed while the device "
        "waits and it is the nearest thing at work; all the rest of it is hidden behind compute."
    )
    pieces = html.caption(text), html.share_bar(shares), html.legend(keys)
    return html.section("Share of time the device computes", *pieces)


def show_plan(plan: PlanRecord) -> str:
    """One row a layer: sizes, tiers, and what becomes of its activations."""
    text = (
        "Where each layer's weights, optimizer states and gradients live, and whether its "
        "activations are kept, recomputed or offloaded between forward and backward."
    )
    table = html.table(_PLAN_HEAD, [_plan_row(layer) for layer in plan.layers], "plan")
    if len(plan.layers) > _MOST_OPEN_ROWS:
        table = f"<details><summary>{len(plan.layers)} layers</summary>{table}</details>"
    return html.section(f"Plan: {plan.mode}", html.caption(text), table)


def show_sample(sample: GeneratedSample) -> str:
    """The prompt in bold and what the model wrote after it."""
    text = f"Written by the model after {sample.step} steps; the prompt is in bold."
    written = f"<b>{escape(sample.prompt)}</b>{escape(sample.text)}"
    return html.section(
        "A sample of generated text", html.caption(text), f'<pre class="sample">{written}</pre>'
    )


def show_environment(facts: Mapping[str, str]) -> str:
    """The machine and the releases."""
    text = "The machine and the releases of the software that this run used."
    rows = "".join(f"<tr><th>{escape(n)}</th><td>{escape(f)}</td></tr>" for n, f in facts.items())
    return html.section("Environment", html.caption(text), f"<table>{rows}</table>")


def show_config(config_text: str) -> str:
    """The resolved configuration, folded."""
    folded = f"<details><summary>config.yaml</summary><pre>{escape(config_text)}</pre></details>"
    return html.section("Configuration", folded)


def _plan_row(layer: PlannedLayer) -> tuple[str, ...]:
    folders, dot, last = escape(layer.name).rpartition(".")
    return (
        folders.replace(".", ".<wbr>") + dot + last,
        format_count(layer.parameters),
        _sized(layer.weights_bytes, layer.weights_tier),
        _sized(layer.states_bytes, layer.states_tier),
        str(layer.gradients_tier),
        _sized(layer.activation_bytes, layer.activations),
    )


def _sized(num_bytes: int, where: Home | str) -> str:
    return f'{format_bytes(num_bytes)} <span class="where">{where}</span>'
