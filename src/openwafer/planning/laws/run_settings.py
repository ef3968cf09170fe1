"""Proposes batch and learning rate for a new run, from those of a law's runs."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.figures import Figure, Origin
from openwafer.planning.laws.points import TrainedPoint
from openwafer.planning.laws.published import KAPLAN_BATCH, CriticalBatch

SAME: Final = 1.02
"""Factor within which two runs have the same size, and the same tokens."""

NUM_NOISES, NUM_RATES = 3, 3
LEAST_LOSS_RANGE: Final = 1.1
MUP: Final = "mup"


def critical_batch(points: Sequence[TrainedPoint]) -> CriticalBatch:
    """The critical batch by the loss: of the runs' gradient noise scales, else as published.

    Runs tell it where three or more have measured their noise, their losses differ by a tenth, and
    the noise rises while the loss falls (McCandlish et al. 2018, arXiv 1812.06162).
    """
    known = [(p.loss, p.noise_scale_tokens) for p in points if p.noise_scale_tokens]
    losses = [loss for loss, _ in known]
    if len(known) < NUM_NOISES or max(losses) < LEAST_LOSS_RANGE * min(losses):
        return KAPLAN_BATCH
    logs = np.log(np.array(known, dtype=float))
    slope, height = map(float, np.polyfit(logs[:, 0], logs[:, 1], 1))
    if slope >= 0:
        return KAPLAN_BATCH
    source = f"gradient noise scales of {len(known)} runs"
    return CriticalBatch(math.exp(height), -1 / slope, source)


def best_of_rates(
    points: Sequence[TrainedPoint],
) -> tuple[list[TrainedPoint], tuple[Diagnostic, ...]]:
    """The points without those that another learning rate made better, and notes of these.

    Runs of a size, tokens and batch that differ in the rate are one point of a law, the best.
    """
    kept, notes = [], []
    for group in _alike(points):
        best = min(group, key=lambda point: point.loss)
        for point in group:
            if point.learning_rate in (None, best.learning_rate):
                kept.append(point)
                continue
            message = (
                f"{point.name} has learning rate {point.learning_rate:g} and loss "
                f"{point.loss:.4f}; {best.name} with {best.learning_rate:g} has {best.loss:.4f}, "
                "and is the one that the law is fitted to"
            )
            notes.append(Diagnostic(Severity.NOTE, "rate-left-out", message))
    return [point for point in points if point in kept], tuple(notes)


def learning_rate(points: Sequence[TrainedPoint], parameters: float) -> Figure | None:
    """The learning rate for a model of so many `parameters`; None where no run tells its own.

    Of sizes trained at three rates or more, the best rate is where a parabola of log loss over log
    rate is least. Rates go with a power of the size where several sizes tell theirs.
    """
    known = [p for p in points if p.learning_rate and p.parameters]
    if not known:
        return None
    best = [found for group in _alike(known) if (found := _best_rate(group)) is not None]
    rates = {point.learning_rate for point in known}
    if best:
        how = f"best of the rates that {_count(len(best), 'size was', 'sizes were')} trained at"
        return _by_size(best, parameters, how)
    if len(rates) > 1:
        given = [(float(p.parameters or 0), float(p.learning_rate or 0)) for p in known]
        return _by_size(given, parameters, "as the runs have it; no size tells its best one")
    [rate] = rates
    assert rate is not None
    if all(point.parametrization == MUP for point in known):
        how = "that of all runs: under muP it is the base model's, for every width"
    else:
        how = "that of all runs, none of which tried another; larger models often want less"
    return Figure("learning_rate", rate, "", Origin.INFERRED, how)


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _by_size(known: Sequence[tuple[float, float]], parameters: float, how: str) -> Figure:
    logs = np.log(np.array(known))
    sizes = logs[:, 0]
    if np.ptp(sizes) > math.log(SAME):
        slope, height = np.polyfit(sizes, logs[:, 1], 1)
        rate = math.exp(height + slope * math.log(parameters))
    else:
        rate = math.exp(logs[:, 1].mean())
    beyond = max(parameters / math.exp(sizes.max()), math.exp(sizes.min()) / parameters)
    if beyond > SAME:
        how += f"; asked for a size {beyond:.3g} times beyond them"
    return Figure("learning_rate", rate, "", Origin.INFERRED, how)


def _best_rate(group: Sequence[TrainedPoint]) -> tuple[float, float] | None:
    """Size and best rate; None where too few rates were tried, or the best one is beyond them."""
    losses: dict[float, float] = {}
    for point in group:
        rate = float(point.learning_rate or 0)
        losses[rate] = min(point.loss, losses.get(rate, math.inf))
    if len(losses) < NUM_RATES:
        return None
    logs = np.log(sorted(losses.items()))
    least = int(logs[:, 1].argmin())
    if least in (0, len(logs) - 1):
        return None
    rates, heights = logs[least - 1 : least + 2].T
    curvature, slope, _ = np.polyfit(rates, heights, 2)
    return float(group[0].parameters or 0), math.exp(-slope / (2 * curvature))


def _alike(points: Iterable[TrainedPoint]) -> list[list[TrainedPoint]]:
    """Points in groups of the same size, tokens and batch; such a point alone has its own."""
    groups: list[list[TrainedPoint]] = []
    for point in sorted(points, key=_place):
        if groups and _is_alike(groups[-1][-1], point):
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def _place(point: TrainedPoint) -> tuple[float, ...]:
    return (point.batch_tokens or 0, point.parameters or 0, point.tokens or 0)


def _is_alike(one: TrainedPoint, other: TrainedPoint) -> bool:
    pairs = ((one.parameters, other.parameters), (one.tokens, other.tokens))
    return one.batch_tokens == other.batch_tokens and all(
        a is not None and b is not None and max(a, b) <= SAME * min(a, b) for a, b in pairs
    )
