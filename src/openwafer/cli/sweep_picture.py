"""Losses of a sweep against each of its keys."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openwafer.cli.pictures import BLUE, RED, picture
from openwafer.training.sweep import Axis, Grid, Outcome, Setting

PANEL_INCHES = (5.5, 4.0)
GREY = "#bbbbbb"
# Of the largest and the least value, from which on an axis of numbers is logarithmic.
LOG_RATIO = 5


def draw_sweep(path: Path, grid: Grid, outcomes: Sequence[Outcome], best: Outcome) -> None:
    """Replace the picture `path`, .png or .svg by its name. Raises OSError."""
    width, height = PANEL_INCHES
    size, number = (width * len(grid.axes), height), len(grid.axes)
    with picture(path, size, ncols=number, squeeze=False, sharey=True) as panels:
        for axes, axis in zip(panels[0], grid.axes, strict=True):
            draw_axis(axes, axis, outcomes, best)
        panels[0][0].set_ylabel("loss on held-out documents")


def draw_axis(axes: Any, axis: Axis, outcomes: Sequence[Outcome], best: Outcome) -> None:
    """A line for each choice of the other keys, the best one's in color; seeds are points.

    What diverged is a cross at the upper edge.
    """
    places = _places(axis)
    for rest, line in _lines(axis.key, outcomes).items():
        is_best = rest == _rest(axis.key, best.setting)
        color = BLUE if is_best else GREY
        xs = [places[each.setting[axis.key]] for each in line]
        means = [each.mean if math.isfinite(each.mean) else math.nan for each in line]
        axes.plot(xs, means, "-", color=color, zorder=2 if is_best else 1)
        for x, each in zip(xs, line, strict=True):
            finite = [loss for loss in each.losses if math.isfinite(loss)]
            axes.plot([x] * len(finite), finite, ".", color=color, ms=5)
            if each.num_diverged:
                above = axes.get_xaxis_transform()
                axes.plot([x], [0.97], "x", color=RED, transform=above, clip_on=False)
    axes.plot([places[best.setting[axis.key]]], [best.mean], "D", color=RED, ms=6, zorder=3)
    numbers = [*places.values()]
    if min(numbers) > 0 and max(numbers) >= LOG_RATIO * min(numbers):
        axes.set_xscale("log")
        axes.set_xticks([], minor=True)
    axes.set_xticks(numbers, labels=[*places])
    axes.set_xlabel(axis.key)
    axes.spines[["top", "right"]].set_visible(False)


def _places(axis: Axis) -> dict[str, float]:
    """Where values are drawn: at themselves, or in order from 0 on if they are no numbers."""
    try:
        return {value: float(value) for value in sorted(axis.values, key=float)}
    except ValueError:
        return {value: float(place) for place, value in enumerate(axis.values)}


def _rest(key: str, setting: Setting) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in setting.items() if pair[0] != key)


def _lines(
    key: str, outcomes: Sequence[Outcome]
) -> dict[tuple[tuple[str, str], ...], list[Outcome]]:
    """Outcomes by what they share but for `key`, in the order of its values."""
    lines: dict[tuple[tuple[str, str], ...], list[Outcome]] = {}
    for each in outcomes:
        lines.setdefault(_rest(key, each.setting), []).append(each)
    return lines
