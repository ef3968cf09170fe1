"""What a wafer took for each layer."""

from typing import Any, Final

from openwafer.training.metrics.fabric_report import FabricReport
from openwafer.training.metrics.report.drawing import (
    Color,
    Figure,
    Key,
    Size,
    Words,
    bar_axes,
    draw_figure,
)

_KINDS: Final = (
    ("forward", "forward", Color.FORWARD),
    ("delta", "gradients of inputs", Color.BACKWARD),
    ("gradient", "gradients of weights", Color.UPDATE),
    (None, "in each PE", Color.FAINT),
)


def draw_fabric(report: FabricReport) -> Figure:
    """A bar for each layer: cycles of its passes, one behind the other."""
    layers = list(dict.fromkeys(one.layer for one in report.passes))
    rows = range(len(layers))

    def paint(canvas: Any, _size: Size) -> None:
        axes = bar_axes(canvas, [layer or "between layers" for layer in layers])
        begins = [0] * len(layers)
        for name, _, color in _KINDS:
            cycles = [report.cycles_of(layer, name) for layer in layers]
            axes.barh(rows, cycles, left=begins, height=0.6, color=color.value)
            begins = [sum(two) for two in zip(begins, cycles, strict=True)]
        axes.set_xlabel("cycles")

    streamed = sum(one.stream_cycles for one in report.passes)
    off = sum(report.copies_off.values())
    caption = (
        f"{report.rows} x {report.columns} PEs of {report.generation}, simulated: "
        f"{report.cycles:,} cycles, of which the ports alone would take {streamed:,}; products "
        f"with weights keep {report.utilisation:.1%} of the cycles busy; "
        f"{report.memory_bytes:,} bytes of a PE. {report.copies_on:,} activations and gradients "
        f"were copied onto the wafer, {off:,} off it. The host computed "
        f"{sum(report.host_calls.values()):,} calls of layers."
    )
    legend = tuple(Key(words, color) for _, words, color in _KINDS)
    words = Words("Cycles on the wafer", caption, legend)
    return draw_figure("fabric", words, paint, height=110 + 26 * len(layers))
