"""Figures over the steps of a run: loss, throughput, memory, bytes moved, systems side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from matplotlib.ticker import FuncFormatter, MaxNLocator

from openwafer.training.metrics.report.drawing import (
    Color,
    Figure,
    Key,
    Mark,
    Series,
    Size,
    Words,
    bar_axes,
    draw_figure,
    finite_points,
    moving_mean,
    thin,
)
from openwafer.training.metrics.step_lines import (
    StepMetrics,
    ValidationPoint,
    measured_peaks,
)
from openwafer.training.metrics.step_trace import StepTrace
from openwafer.training.metrics.units import (
    Scale,
    byte_scale,
    format_bytes,
    format_count,
    format_rate,
    format_share,
    time_scale,
)
from openwafer.training.plan_record import PlanRecord

_WIDEST_MEAN = 100
FAR = 10
_HEIGHT, _NARROW_HEIGHT = 220, 190


@dataclass(frozen=True)
class Level:
    """A horizontal line across a chart: a limit, or a prediction."""

    value: float
    key: Key

    def draw(self, axes: Any, scale: Scale) -> None:
        dashes = "--" if self.key.mark is Mark.DASHES else "-"
        axes.axhline(
            self.value / scale.divisor, color=self.key.color.value, linestyle=dashes, linewidth=1.5
        )


def draw_loss(metrics: Sequence[StepMetrics], validation: Sequence[ValidationPoint]) -> Figure:
    """Training loss, its moving mean, and the validation points where there are any.

    At least one loss must be a finite number; those that are not are left out.
    """
    steps, losses = finite_points((row.step, row.loss) for row in metrics)
    window = min(len(losses) // 25, _WIDEST_MEAN) | 1
    held_out = finite_points((point.step, point.loss) for point in validation)
    judged = [point for point in validation if point.is_on_track is not None]

    def paint(canvas: Any, size: Size) -> None:
        axes = _prepare_axes(canvas, size, Scale(1, ""))
        axes.plot(*thin(steps, losses), color=Color.FAINT.value, linewidth=1.5)
        mean = thin(steps, moving_mean(losses, window))
        axes.plot(*mean, color=Color.ACCENT.value, linewidth=2)
        axes.plot(*held_out, "o", color=Color.PUSH.value, markersize=5)
        for point in judged:
            bounds = (point.expected_low, point.expected_high)
            axes.plot([point.step] * 2, bounds, color=Color.PLAN.value, linewidth=3, alpha=0.6)

    averaged = f"mean of {window} steps" if window > 1 else "every step"
    legend = [Key("each step", Color.FAINT, Mark.LINE)] if window > 1 else []
    legend += [Key(averaged, Color.ACCENT, Mark.LINE)]
    caption = f"Training loss by step: {losses[0]:.3f} at the start, {losses[-1]:.3f} at the end."
    if validation:
        legend += [Key("validation", Color.PUSH, Mark.DOT)]
        caption += f" On held-out data it ends at {validation[-1].loss:.3f}."
    if judged:
        legend += [Key("expected by the law", Color.PLAN, Mark.LINE)]
        caption += _judge(judged)
    return _draw("loss", Words("Loss", caption, tuple(legend)), paint)


def _judge(judged: Sequence[ValidationPoint]) -> str:
    """How the held-out losses are beside a scaling law, the last one and all."""
    last, number = judged[-1], sum(bool(point.is_on_track) for point in judged)
    track = "on" if last.is_on_track else "off"
    return (
        f" The law expects {last.expected_low:.3f} to {last.expected_high:.3f} of the last one, "
        f"which is {track} track; {number} of {len(judged)} are on it."
    )


def draw_throughput(metrics: Sequence[StepMetrics]) -> Figure:
    """Tokens a second by step."""
    rates = [row.tokens_per_second for row in metrics]
    caption = (
        f"Tokens trained on in a second, by step. The median is {format_count(median(rates))}."
    )
    words = Words("Throughput", caption)
    return _draw_steps("throughput", words, metrics, rates, Scale(1, ""), ())


def draw_learning_rate(metrics: Sequence[StepMetrics]) -> Figure:
    """The learning rate by step."""
    rates = [row.learning_rate for row in metrics]
    peak = max(range(len(rates)), key=rates.__getitem__)
    caption = (
        f"The learning rate by step: {rates[peak]:.3g} at its highest, at step "
        f"{metrics[peak].step}, {rates[-1]:.3g} at the end."
    )
    words = Words("Learning rate", caption)
    return _draw_steps("learning-rate", words, metrics, rates, Scale(1, ""), ())


def draw_gradient_norm(metrics: Sequence[StepMetrics], clip_norm: float | None) -> Figure:
    """The gradients' global norm by step, against that to which they are clipped.

    At least one step must have a norm.
    """
    norms = {row.step: row.grad_norm for row in metrics if row.grad_norm is not None}
    caption = f"Global norm of the gradients by step. The median is {median(norms.values()):.3g}"
    levels = []
    if clip_norm is not None:
        num_clipped = sum(norm > clip_norm for norm in norms.values())
        levels = [Level(clip_norm, Key(f"clipped to {clip_norm:g}", Color.LIMIT, Mark.LINE))]
        caption += f", and {num_clipped} of {len(norms)} steps were clipped"
    words = Words("Gradient norm", f"{caption}.", tuple(level.key for level in levels))
    return _draw_values("gradient-norm", words, norms, Scale(1, ""), levels)


def draw_noise_scale(metrics: Sequence[StepMetrics]) -> Figure:
    """The smoothed noise scale by step, against the samples of a step; one step must have it."""
    known = {row.step: row.noise_scale for row in metrics if row.noise_scale is not None}
    caption = f"Smoothed B_simple, in samples. It ends at {[*known.values()][-1]:.3g}"
    levels = []
    # Whole numbers, but for the rounding of products.
    sizes = sorted(
        {
            round(row.tokens * row.noise_scale / row.noise_scale_tokens)
            for row in metrics
            if row.noise_scale and row.noise_scale_tokens
        }
    )
    if sizes:
        marks = (Mark.LINE, Mark.DASHES)
        levels = [
            Level(size, Key(f"batch of {size}", Color.LIMIT, mark))
            for size, mark in zip(dict.fromkeys((sizes[0], sizes[-1])), marks, strict=False)
        ]
        told = " to ".join(str(level.value) for level in levels)
        caption += f", and a step has {told}. Far below it a batch costs steps, far above tokens"
    words = Words("Gradient noise scale", f"{caption}.", tuple(level.key for level in levels))
    return _draw_values("noise-scale", words, known, Scale(1, ""), levels)


def draw_peak_memory(metrics: Sequence[StepMetrics], plan: PlanRecord) -> Figure:
    """The highest device memory of each metered step, against the budget and the prediction.

    At least one step must have been metered.
    """
    peaks = measured_peaks(metrics)
    most, budget = max(peaks.values()), plan.device_budget_bytes
    caption = (
        f"The most bytes held on the device in each of the {len(peaks)} steps that were metered, "
        f"of {len(metrics)}. The highest is {format_bytes(most)}, "
        f"{format_share(most / budget)} of the budget."
    )
    levels = (*_plain_loop(plan, most), *memory_levels(plan, most))
    words = Words("Peak device memory", caption, tuple(level.key for level in levels))
    scale = byte_scale(max(most, *(level.value for level in levels)))
    x, y = thin(*finite_points(peaks.items()))

    def paint(canvas: Any, size: Size) -> None:
        axes = _prepare_axes(canvas, size, scale)
        axes.plot(x, y / scale.divisor, "o", color=Color.ACCENT.value, markersize=3)
        _finish_from_zero(axes, scale, levels)

    return _draw("peak-memory", words, paint)


def draw_host_memory(metrics: Sequence[StepMetrics]) -> Figure:
    """The resident set of the process by step."""
    resident = [row.host_bytes for row in metrics]
    caption = (
        "Resident memory of the whole process after each step, libraries and file pages included. "
        f"The highest is {format_bytes(max(resident))}."
    )
    scale = byte_scale(max(resident))
    return _draw_steps("host-memory", Words("Host memory", caption), metrics, resident, scale, ())


def draw_disk_rate(metrics: Sequence[StepMetrics], limit_bytes_per_second: float | None) -> Figure:
    """Bytes read and written a second by step, against the probed limit where there is one."""
    rates = [(row.disk_read_bytes + row.disk_write_bytes) / row.seconds for row in metrics]
    caption = (
        "Bytes read from and written to the disk, per second of the whole step. "
        f"The median is {format_rate(median(rates))}"
    )
    levels = []
    if limit_bytes_per_second is not None:
        label = f"probed limit {format_rate(limit_bytes_per_second)}"
        levels = [Level(limit_bytes_per_second, Key(label, Color.LIMIT, Mark.LINE))]
        caption += f", {format_share(median(rates) / limit_bytes_per_second)} of the limit"
    words = Words("Disk rate", f"{caption}.", tuple(level.key for level in levels))
    scale = byte_scale(max([*rates, *(level.value for level in levels)]), "/s")
    return _draw_steps("disk-rate", words, metrics, rates, scale, levels)


def draw_step_memory(trace: StepTrace, plan: PlanRecord) -> Figure:
    """Device memory within one step; the trace must hold samples of it."""
    times, sizes = _fill_window(trace)
    clock = time_scale(trace.window_seconds)
    levels = memory_levels(plan, max(sizes))
    scale = byte_scale(max(*sizes, *(level.value for level in levels)))

    def paint(canvas: Any, size: Size) -> None:
        axes = _prepare_axes(canvas, size, scale, by_step=False)
        x, y = times / clock.divisor, sizes / scale.divisor
        axes.fill_between(x, y, step="post", color=Color.FAINT.value, alpha=0.5, linewidth=0)
        axes.step(x, y, where="post", color=Color.ACCENT.value, linewidth=1.5)
        axes.set_xlabel(f"time within the step, {clock.unit}")
        _finish_from_zero(axes, scale, levels)

    caption = (
        f"Bytes held on the device at each moment of step {trace.step}: weights, gradients and "
        f"activations come and go. The highest is {format_bytes(max(sizes))}."
    )
    words = Words("Device memory within a step", caption, tuple(level.key for level in levels))
    return _draw("step-memory", words, paint)


def memory_levels(plan: PlanRecord, most_bytes: float) -> tuple[Level, ...]:
    """The budget and the predicted peak, as lines of a chart of memory up to `most_bytes`.

    A budget far above both, such as all memory of a machine, would flatten the chart: no line.
    """
    budget, predicted = plan.device_budget_bytes, plan.predicted_peak_bytes
    text = f"predicted peak {format_bytes(predicted)}"
    levels = (Level(predicted, Key(text, Color.PLAN, Mark.DASHES)),)
    if budget > FAR * max(most_bytes, predicted):
        return levels
    limit = Key(f"budget {format_bytes(budget)}", Color.LIMIT, Mark.LINE)
    return (Level(budget, limit), *levels)


def _plain_loop(plan: PlanRecord, most_bytes: float) -> tuple[Level, ...]:
    """What a plain loop would hold, where that was counted and is no more than a chart shows."""
    found = plan.plain_loop_bytes
    if found is None or found > FAR * max(most_bytes, plan.predicted_peak_bytes):
        return ()
    label = f"plain loop, by the plan's count {format_bytes(found)}"
    return (Level(found, Key(label, Color.PUSH, Mark.LINE)),)


def _draw(name: str, words: Words, paint: Any) -> Figure:
    return draw_figure(name, words, paint, height=_HEIGHT, narrow_height=_NARROW_HEIGHT)


def _draw_steps(
    name: str,
    words: Words,
    metrics: Sequence[StepMetrics],
    values: Sequence[float],
    scale: Scale,
    levels: Sequence[Level],
) -> Figure:
    by_step = {row.step: value for row, value in zip(metrics, values, strict=True)}
    return _draw_values(name, words, by_step, scale, levels)


def _draw_values(
    name: str, words: Words, values: Mapping[int, float], scale: Scale, levels: Sequence[Level]
) -> Figure:
    """A line through one value a step, from zero, and levels across it."""
    steps, heights = finite_points(values.items())

    def paint(canvas: Any, size: Size) -> None:
        axes = _prepare_axes(canvas, size, scale)
        axes.plot(*thin(steps, heights / scale.divisor), color=Color.ACCENT.value, linewidth=1.5)
        _finish_from_zero(axes, scale, levels)

    return _draw(name, words, paint)


def _prepare_axes(canvas: Any, size: Size, scale: Scale, *, by_step: bool = True) -> Any:
    axes = canvas.subplots()
    axes.set_xlabel("step" if by_step else "time")
    axes.xaxis.set_major_locator(MaxNLocator(5 if size.is_narrow else 10, integer=by_step))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: scale.label(value)))
    axes.grid(visible=False, axis="x")
    return axes


def _finish_from_zero(axes: Any, scale: Scale, levels: Sequence[Level]) -> None:
    for level in levels:
        level.draw(axes, scale)
    axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.03)


def _fill_window(trace: StepTrace) -> tuple[Series, Series]:
    """Samples with their times counted from the window's start, drawn out to its end."""
    begin, end = trace.window
    points = [(max(time, begin) - begin, size) for time, size in trace.memory]
    return finite_points([*points, (end - begin, trace.memory[-1][1])])


@dataclass(frozen=True)
class Traffic:
    """One way that bytes go: the median of all steps, and the plan's figure if there is one."""

    name: str
    color: Color
    measured_bytes: float
    planned_bytes: int | None


def list_traffic(metrics: Sequence[StepMetrics], plan: PlanRecord) -> tuple[Traffic, ...]:
    """The four ways: fetch, push, disk read, disk write. At least one step is needed.

    What is measured is of the first system, and a plan of stores on all systems is of all of them.
    """
    fetch = median(row.fetch_bytes for row in metrics)
    push = median(row.push_bytes for row in metrics)
    read = median(row.disk_read_bytes for row in metrics)
    written = median(row.disk_write_bytes for row in metrics)
    ways = (
        Traffic("fetch", Color.FETCH, fetch, plan.step_bytes.fetch),
        Traffic("push", Color.PUSH, push, plan.step_bytes.push),
        Traffic("disk read", Color.READ, read, plan.step_bytes.disk_read),
        Traffic("disk write", Color.WRITE, written, plan.step_bytes.disk_write),
    )
    is_of_all = plan.stores is not None and plan.stores.is_shared
    return tuple(replace(way, planned_bytes=None) for way in ways) if is_of_all else ways


def draw_traffic(ways: Sequence[Traffic], parameters: int) -> Figure:
    """Bytes a parameter and step on each way, the plan as a mark on the measured bar."""
    measured = [way.measured_bytes / parameters for way in ways]
    planned = [
        None if way.planned_bytes is None else way.planned_bytes / parameters for way in ways
    ]
    marks = [(mark, row) for row, mark in enumerate(planned) if mark is not None]
    longest = [max(bar, mark or 0.0) for bar, mark in zip(measured, planned, strict=True)]
    rows = range(len(ways))

    def paint(canvas: Any, size: Size) -> None:
        axes = bar_axes(canvas, [way.name for way in ways])
        axes.barh(rows, measured, height=0.55, color=[way.color.value for way in ways])
        for place in marks:
            axes.plot(*place, "|", color=Color.INK.value, markersize=24, markeredgewidth=2)
        axes.set_xlim(0, max(*longest, 1) * (1.45 if size.is_narrow else 1.2))
        axes.set_xlabel("bytes a parameter and step")
        for row, (bar, mark) in enumerate(zip(measured, planned, strict=True)):
            label = f"{bar:.2f}" if mark is None else f"{bar:.2f} (plan {mark:.2f})"
            end_xy, shift = (longest[row], row), (8, 0)
            axes.annotate(label, end_xy, shift, textcoords="offset points", va="center")

    total = sum(way.measured_bytes for way in ways)
    whose = "a step moves" if marks else "a step moves from and to the first system's store"
    caption = (
        f"Bytes that {whose} on each way, divided by the model's parameters: the median of all "
        f"steps as a bar{', the plan as an upright mark' * bool(marks)}. "
        f"In all they are {format_bytes(total)}."
    )
    return draw_figure("traffic", Words("Bytes moved", caption), paint, height=190)


@dataclass(frozen=True)
class SystemShare:
    """Medians over the steps of one system.

    Attributes:
        computing_seconds, waiting_seconds: of a step.
        received_bytes: from other systems, in a step.
    """

    computing_seconds: float
    waiting_seconds: float
    received_bytes: float


def list_systems(metrics: Sequence[StepMetrics]) -> list[SystemShare]:
    """Those of the last steps that were run by as many systems; none where there was one."""
    rows: list[tuple[tuple[float, float, int], ...]] = []
    for row in reversed(metrics):
        found = _of_step(row)
        if not found or (rows and len(found) != len(rows[0])):
            break
        rows.append(found)
    return [
        SystemShare(
            median(seconds - waiting for seconds, waiting, _ in steps),
            median(waiting for _, waiting, _ in steps),
            median(received for _, _, received in steps),
        )
        for steps in zip(*rows, strict=True)
    ]


def _of_step(row: StepMetrics) -> tuple[tuple[float, float, int], ...]:
    seconds, waiting, received = (
        row.system_seconds or (),
        row.system_waiting_seconds or (),
        row.system_received_bytes or (),
    )
    return tuple(zip(seconds, waiting, received, strict=True))


def describe_slowest(systems: Sequence[SystemShare]) -> str:
    """Which system the others wait for, and what it costs them."""
    computing = [system.computing_seconds for system in systems]
    slowest, usual = max(computing), median(computing)
    received = sum(system.received_bytes for system in systems)
    return (
        f"System {computing.index(slowest)} computes longest: {slowest:.2g} s of a step, where the "
        f"median is {usual:.2g} s. The systems wait for "
        f"{format_share(_waiting_share(systems))} of their time. In a step "
        f"{format_bytes(received)} pass between them."
    )


def _waiting_share(systems: Sequence[SystemShare]) -> float:
    waiting = sum(system.waiting_seconds for system in systems)
    return waiting / (waiting + sum(system.computing_seconds for system in systems))


def draw_systems(systems: Sequence[SystemShare]) -> Figure:
    """A bar for each system: computing, then waiting."""
    rows = range(len(systems))
    computing = [system.computing_seconds for system in systems]
    waiting = [system.waiting_seconds for system in systems]

    def paint(canvas: Any, _size: Size) -> None:
        axes = bar_axes(canvas, [f"system {row}" for row in rows])
        axes.barh(rows, computing, height=0.6, color=Color.FORWARD.value)
        axes.barh(rows, waiting, left=computing, height=0.6, color=Color.FAINT.value)
        axes.set_xlabel("seconds of a step")

    legend = (Key("computes", Color.FORWARD), Key("waits for others", Color.FAINT))
    caption = (
        "From the beginning of a step's forward to the end of its backward, medians of the steps. "
        "A system with records in its store also makes their updates."
    )
    height = 90 + 34 * len(systems)
    words = Words("Systems", caption, legend)
    return draw_figure("systems", words, paint, height=height)
