"""Compares runs with a law on their way, while their learning rates still fall."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from openwafer.loss_laws import CoursePoint
from openwafer.planning.laws.fitted import Fitted, Law
from openwafer.planning.laws.points import TrainedPoint

SHARES: Final = tuple(n / 10 for n in range(1, 10))
LEAST_RUNS: Final = 3


def course_of(fitted: Fitted[Law]) -> tuple[CoursePoint, ...]:
    """Least and greatest loss of the fitted runs, relative to what the law gives tokens so far.

    There is a point for each tenth of their tokens at which three runs or more have a loss, and
    one for their ends; none where fewer than three runs were fitted.
    """
    runs = fitted.runs or fitted.points
    found = []
    for share in (*SHARES, 1.0):
        on_the_way = [(run, _loss_at(run, share)) for run in runs]
        ratios = [
            loss / fitted.law.expected(_shortened(run, share, loss))
            for run, loss in on_the_way
            if loss is not None
        ]
        if len(ratios) >= LEAST_RUNS:
            found.append(CoursePoint(share, min(ratios), max(ratios)))
    return tuple(found)


def _shortened(run: TrainedPoint, share: float, loss: float) -> TrainedPoint:
    tokens = None if run.tokens is None else share * run.tokens
    return replace(run, loss=loss, flops=share * run.flops, tokens=tokens)


def _loss_at(run: TrainedPoint, share: float) -> float | None:
    """The loss at a share of the tokens; None before the first that is known."""
    if share == 1:
        return run.loss
    curve: Sequence[tuple[float, float]] = [(point.tokens, point.loss) for point in run.curve]
    if run.tokens is None or not curve or share * run.tokens < curve[0][0]:
        return None
    tokens, losses = np.log([*curve, (run.tokens, run.loss)]).T
    return float(np.exp(np.interp(np.log(share * run.tokens), tokens, losses)))
