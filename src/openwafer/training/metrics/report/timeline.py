"""One step: which track did what when, what happened to each layer, and where the time went."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.ticker import MaxNLocator

from openwafer.training.metrics.report.drawing import Color, Figure, Key, Size, Words, draw_figure
from openwafer.training.metrics.step_trace import (
    Interval,
    Kind,
    StepTrace,
    TraceSpan,
    Track,
    clip,
    compute_share,
    union,
)
from openwafer.training.metrics.units import format_duration, format_share, time_scale

_COLORS = {
    Kind.FORWARD: Color.FORWARD,
    Kind.BACKWARD: Color.BACKWARD,
    Kind.RECOMPUTE: Color.RECOMPUTE,
    Kind.FETCH: Color.FETCH,
    Kind.PUSH: Color.PUSH,
    Kind.UPDATE: Color.UPDATE,
    Kind.READ: Color.READ,
    Kind.WRITE: Color.WRITE,
}
_CAUSE_COLORS = {
    Track.FETCH: Color.FETCH,
    Track.PUSH: Color.PUSH,
    Track.UPDATE: Color.UPDATE,
    Track.DISK_READ: Color.READ,
    Track.DISK_WRITE: Color.WRITE,
}
_VISIBLE_SHARE = 5e-4  # less would read 0.0%
# Compute lies over what moved meanwhile, a recompute over the backward that contains it.
_MOVES = (Kind.WRITE, Kind.READ, Kind.UPDATE, Kind.PUSH, Kind.FETCH)
_PAINT_ORDER = (*_MOVES, Kind.FORWARD, Kind.BACKWARD, Kind.RECOMPUTE)
_LANE_HEIGHT, _LAYER_HEIGHT, _MOST_LAYERS_HEIGHT, _FRAME_HEIGHT = 22, 14, 420, 60
_MOST_LAYER_NAMES = 30
# Gaps below a quarter of a pixel of the wide drawing cannot be seen.
_BRIDGED_SHARE = 1 / 4000


def draw_timeline(trace: StepTrace, layer_order: Sequence[str]) -> Figure:
    """Lanes of all tracks over lanes of all layers, in `layer_order`, others after them."""
    tracks = [track for track in Track if any(span.track is track for span in trace.spans)]
    layers = _order_layers(trace, layer_order)
    lanes_height = _LANE_HEIGHT * len(tracks)
    layers_height = min(_LAYER_HEIGHT * len(layers) + 8, _MOST_LAYERS_HEIGHT)

    def paint(canvas: Any, size: Size) -> None:
        heights = [lanes_height, layers_height]
        upper, lower = canvas.subplots(2, 1, sharex=True, height_ratios=heights)
        _paint_rows(upper, trace, [[s for s in trace.spans if s.track is t] for t in tracks])
        upper.set_yticks(range(len(tracks)), tracks)
        _paint_rows(lower, trace, [[s for s in trace.spans if s.layer == n] for n in layers])
        _name_layers(lower, layers, size)
        lower.xaxis.set_major_locator(MaxNLocator(5 if size.is_narrow else 10))
        lower.set_xlabel(f"time within the step, {time_scale(trace.window_seconds).unit}")

    height = _FRAME_HEIGHT + lanes_height + layers_height
    kinds = [kind for kind in Kind if any(span.kind is kind for span in trace.spans)]
    legend = tuple(Key(str(kind), _COLORS[kind]) for kind in kinds)
    words = Words("Timeline of a step", _caption(trace), legend)
    return draw_figure("timeline", words, paint, height=height)


def _caption(trace: StepTrace) -> str:
    return (
        f"Step {trace.step}, {format_duration(trace.window_seconds)} long. Above, what each track "
        "worked on. Below, the same work by layer, the first layer on top. "
        f"The device computes {format_share(compute_share(trace).share)} of the time."
    )


def _order_layers(trace: StepTrace, layer_order: Sequence[str]) -> list[str]:
    present = {span.layer for span in trace.spans}
    planned = [name for name in layer_order if name in present]
    return planned + sorted(present.difference(planned))


def _paint_rows(axes: Any, trace: StepTrace, rows: Sequence[Sequence[TraceSpan]]) -> None:
    for row, spans in enumerate(rows):
        for kind in _PAINT_ORDER:
            bars = _bars(trace, [span.interval for span in spans if span.kind is kind])
            axes.broken_barh(bars, (row - 0.42, 0.84), color=_COLORS[kind].value, linewidth=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, trace.window_seconds / time_scale(trace.window_seconds).divisor)
    axes.grid(visible=False, axis="y")


def _bars(trace: StepTrace, intervals: Sequence[Interval]) -> list[Interval]:
    """Start and width of each bar, in the unit of the time axis from the window's start."""
    divisor = time_scale(trace.window_seconds).divisor
    joined = union(
        clip(intervals, trace.window), bridge_seconds=trace.window_seconds * _BRIDGED_SHARE
    )
    return [((start - trace.window[0]) / divisor, (end - start) / divisor) for start, end in joined]


def _name_layers(axes: Any, layers: Sequence[str], size: Size) -> None:
    stride = -(-len(layers) // _MOST_LAYER_NAMES)
    shown = range(0, len(layers), stride)
    longest = 12 if size.is_narrow else 26
    axes.set_yticks(shown, [_shorten(layers[row], longest) for row in shown], fontsize=9)


def _shorten(name: str, longest: int) -> str:
    """The name's last parts that fit; a single part that does not fit loses its start."""
    while len(name) > longest and "." in name:
        name = name.partition(".")[2]
    return name if len(name) <= longest else f"…{name[1 - longest :]}"


@dataclass(frozen=True)
class Share:
    """A part of a step's time; `is_explained` unless nothing was traced in it."""

    key: Key
    share: float
    is_explained: bool = True


def list_shares(step: StepTrace) -> Iterator[Share]:
    """Compute, what the device waited for, the rest; without parts that would read 0.0%."""
    split = compute_share(step)
    yield Share(Key(f"computing {format_share(split.share)}", Color.FORWARD), split.share)
    for cause, seconds in split.exposed_seconds.items():
        share = seconds / split.window_seconds
        if share > _VISIBLE_SHARE:
            yield Share(Key(f"{cause} exposed {format_share(share)}", _CAUSE_COLORS[cause]), share)
    rest = split.unexplained_seconds / split.window_seconds
    if rest > _VISIBLE_SHARE:
        yield Share(Key(f"nothing traced {format_share(rest)}", Color.GRID), rest, False)
