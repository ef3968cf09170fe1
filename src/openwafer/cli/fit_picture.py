"""The picture of a fit: losses by compute, the law, and its interval."""

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from openwafer.cli.pictures import BLUE, INK, RED, picture
from openwafer.planning.laws import FitRecord, Fitted, Law, SizeTokensLaw, TrainedPoint
from openwafer.planning.laws.expectation import expected_loss

PICTURE_INCHES = (7.5, 4.5)
NUM_DRAWN = 120
FAINT = "#9aa4b0"


def draw_fit(path: Path, fitted: Fitted[Law], record: FitRecord) -> None:
    """Draw points, law, interval, and what was asked of the law, into a .png or .svg file."""
    with picture(path, PICTURE_INCHES, dpi=150) as axes:
        _draw_law(axes, fitted, record)
        if isinstance(fitted.law, SizeTokensLaw):
            _draw_sizes(axes, fitted.law, fitted.points)
        _draw_runs(axes, fitted.runs)
        for is_held_out, mark, label in ((False, "o", "fitted"), (True, "s", "held out")):
            points = [c.point for c in record.points if c.is_held_out is is_held_out]
            face = "none" if is_held_out else INK
            if points:
                axes.plot(*_places(points), mark, color=INK, mfc=face, ms=5, label=label)
        answers = [(a.flops, a.figures[-1].value) for a in record.expectations + record.proposals]
        if answers:
            axes.plot(*zip(*answers, strict=True), "D", color=RED, ms=6, label="asked for")
        axes.set(xscale="log", xlabel="training FLOPs", ylabel="loss, nats a token")
        axes.legend(frameon=False)


def _draw_law(axes: Any, fitted: Fitted[Law], record: FitRecord) -> None:
    asked = [answer.flops for answer in (*record.expectations, *record.proposals)]
    compared = [one.point.flops for one in record.points]
    ends = [*fitted.flops_range, *asked, *compared, *(run.flops for run in fitted.runs)]
    flops = np.geomspace(min(ends) / 1.5, max(ends) * 1.5, NUM_DRAWN)
    curve = [expected_loss(fitted, float(f)) for f in flops]
    low = [figure.value if figure.low is None else figure.low for figure in curve]
    high = [figure.value if figure.high is None else figure.high for figure in curve]
    label = "95% interval of the law"
    axes.fill_between(flops, low, high, color="#a9c4e4", alpha=0.6, linewidth=0, label=label)
    is_best = record.runs or isinstance(fitted.law, SizeTokensLaw)
    name = "law, of the best size" if is_best else "law"
    axes.plot(flops, [figure.value for figure in curve], color=BLUE, label=name)


def _draw_sizes(axes: Any, law: SizeTokensLaw, points: tuple[TrainedPoint, ...]) -> None:
    """What the law gives each size, from the fewest to the most tokens that one was trained on."""
    known = [(p.parameters, p.tokens) for p in points if p.parameters and p.tokens]
    for number, (size, own) in enumerate(groupby(sorted(known), key=lambda pair: pair[0])):
        reached = [tokens for _, tokens in own]
        tokens = np.geomspace(min(reached) / 2, max(reached) * 2, NUM_DRAWN)
        losses = [law.loss_for(size, float(t)) for t in tokens]
        label = None if number else "law, of a size"
        flops = law.flops_ratio * size * tokens
        axes.plot(flops, losses, color=BLUE, lw=0.8, alpha=0.7, label=label)


def _draw_runs(axes: Any, runs: tuple[TrainedPoint, ...]) -> None:
    for run in runs:
        scale = run.flops / run.tokens if run.tokens else 1.0
        along = [(point.tokens * scale, point.loss) for point in run.curve]
        if along:
            axes.plot(*zip(*along, strict=True), color=FAINT, lw=0.8)
    if runs:
        axes.plot(*_places(runs), "o", color=FAINT, ms=4, label="runs")


def _places(points: list[TrainedPoint] | tuple[TrainedPoint, ...]) -> tuple[list[float], ...]:
    return [p.flops for p in points], [p.loss for p in points]
