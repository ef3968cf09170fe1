"""Approaches 1 and 2 of Hoffmann et al. 2022 (arXiv 2203.15556): the best size of each compute.

Both find the least loss at some computes, and lines through the logs of the best sizes there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from scipy.linalg import block_diag

from openwafer.diagnostics import Diagnostic, Severity, error
from openwafer.figures import Origin
from openwafer.loss_laws import LawKind
from openwafer.planning.laws.compute_law import ComputeLaw, fit_compute_law, solve_again
from openwafer.planning.laws.fitted import (
    USUAL_RESAMPLING,
    Allocation,
    Array,
    Fitted,
    Resampling,
)
from openwafer.planning.laws.noise import resampled_losses
from openwafer.planning.laws.points import (
    TrainedPoint,
    check_points,
    require_enough,
    sizes_and_tokens,
)

SAME_BUDGET: Final = 1.1
"""Factor of compute within which runs are of one budget."""

NUM_LINE_CONSTANTS = 2
NUM_PARABOLA_CONSTANTS = 3
LEAST_MINIMA = 4
NUM_COMPUTES = 400
SAME_SIZE: Final = 1.005
"""Factor of parameters within which runs are of one size."""


@dataclass(frozen=True)
class FrontierLaw:
    """The loss of the best size by compute, and that size.

    Attributes:
        kind: the approach that found it.
        loss: loss of the best size.
        size_factor, size_exponent: ``parameters = size_factor * flops ** size_exponent``.
        flops_ratio: FLOPs of training for each parameter and token.
        source: the origin of the constants.
    """

    kind: LawKind
    loss: ComputeLaw
    size_factor: float
    size_exponent: float
    flops_ratio: float
    source: str

    @property
    def allocation_source(self) -> str:
        """Whose rule `allocation` follows."""
        return f"the best sizes, at {self.flops_ratio:.3g} FLOPs a parameter and token"

    def constants(self) -> Mapping[str, float]:
        """Its constants by their names."""
        return {
            **self.loss.constants(),
            "size_factor": self.size_factor,
            "size_exponent": self.size_exponent,
            "tokens_exponent": 1 - self.size_exponent,
        }

    def expected(self, point: TrainedPoint) -> float:
        """The loss of the best size at the compute of a model."""
        return self.loss.loss_at(point.flops)

    def loss_at(self, flops: float) -> float:
        """The loss that is reached with `flops` well spent."""
        return self.loss.loss_at(flops)

    def allocation(self, flops: float) -> Allocation:
        """The best size, and the tokens that it leaves."""
        parameters = self.size_factor * flops**self.size_exponent
        return Allocation(parameters, flops / (self.flops_ratio * parameters))


def fit_isoflop(
    points: Sequence[TrainedPoint], resampling: Resampling = USUAL_RESAMPLING
) -> Fitted[FrontierLaw]:
    """Approach 2: parabolas of log loss over log size through the runs of each compute.

    A compute whose parabola has its least loss at none of its sizes is left out, and told.

    Raises:
        OpenwaferError: as `fit_size_law`, ``frontier-few`` for fewer than four minima.
    """
    check_points(points)
    sizes_and_tokens(points)
    budgets = [_Budget(group) for group in _by_compute(points) if _num_sizes(group) > 2]
    kept = [budget for budget in budgets if budget.minimum(budget.losses) is not None]
    remarks = tuple(_no_minimum(budget) for budget in budgets if budget not in kept)
    _require_minima(len(kept), "computes of 3 sizes or more, with a best size among them,")
    runs = [run for budget in kept for run in budget.runs]
    require_enough(runs, NUM_PARABOLA_CONSTANTS * len(kept))
    losses = np.concatenate([budget.losses for budget in kept])
    expected = np.concatenate([np.exp(budget.parabola(budget.losses)) for budget in kept])
    slopes = block_diag(*(budget.slopes for budget in kept))
    dealt = resampled_losses(losses, expected, slopes, resampling)
    ratio = _flops_ratio(runs)
    minima = _minima(kept, losses, ratio)
    found = fit_compute_law(minima, replace(resampling, num_replicas=0))
    law = _law(LawKind.ISOFLOP, minima, found.law, ratio)
    replicas = []
    for drawn in dealt:
        others = _minima(kept, drawn, ratio)
        if len(others) >= LEAST_MINIMA:
            again = solve_again(others, found.law)
            replicas.append(_law(LawKind.ISOFLOP, others, again, ratio))
    return Fitted(law, tuple(replicas), tuple(minima), tuple(points), remarks)


def fit_envelope(
    points: Sequence[TrainedPoint], resampling: Resampling = USUAL_RESAMPLING
) -> Fitted[FrontierLaw]:
    """Approach 1: the lower envelope of training curves, by the computes where it changes size.

    Where two neighbouring sizes have the same loss, and no other has less, the best size is about
    the geometric mean of theirs.

    Raises:
        OpenwaferError: as `fit_size_law`, ``points-curves`` where no run has a curve,
            ``frontier-few`` for fewer than four changes.
    """
    check_points(points)
    sizes_and_tokens(points)
    if not any(point.curve for point in points):
        raise error(
            "points-curves",
            f"none of {len(points)} points has a curve of losses along its training",
            help="fit folders of runs that evaluate often (evaluate.every), or take --law isoflop",
        )
    ratio = _flops_ratio(points)
    changes = _changes(points, ratio)
    _require_minima(len(changes), "computes at which the best of two neighbouring sizes changes,")
    found = fit_compute_law(changes, resampling)
    law = _law(LawKind.ENVELOPE, changes, found.law, ratio)
    flops = np.array([change.flops for change in changes])
    sizes, _ = sizes_and_tokens(changes)
    line = law.size_factor * flops**law.size_exponent
    slopes = np.vander(np.log(flops / flops.mean()), NUM_LINE_CONSTANTS)
    dealt = resampled_losses(sizes, line, slopes, resampling)
    replicas = [
        _law(LawKind.ENVELOPE, _with_sizes(changes, drawn), other, ratio)
        for drawn, other in zip(dealt, found.replicas, strict=True)
    ]
    return Fitted(law, tuple(replicas), tuple(changes), tuple(points))


def _law(
    kind: LawKind, minima: Sequence[TrainedPoint], loss: ComputeLaw, ratio: float
) -> FrontierLaw:
    logs = np.log([minimum.flops for minimum in minima])
    sizes, _ = sizes_and_tokens(minima)
    exponent, height = np.polyfit(logs - logs.mean(), np.log(sizes), 1)
    how = "parabolas" if kind is LawKind.ISOFLOP else "curves that cross"
    source = f"the best sizes of {len(minima)} computes, by {how}"
    factor = math.exp(height - exponent * logs.mean())
    return FrontierLaw(kind, loss, factor, float(exponent), ratio, source)


def _flops_ratio(points: Sequence[TrainedPoint]) -> float:
    parameters, tokens = sizes_and_tokens(points)
    flops = np.array([point.flops for point in points])
    return float(np.exp(np.log(flops / (parameters * tokens)).mean()))


def _require_minima(num: int, what: str) -> None:
    if num < LEAST_MINIMA:
        raise error(
            "frontier-few",
            f"{num} {what} for a law of best sizes and of their losses, which takes {LEAST_MINIMA}",
            help="train more sizes at more computes, or fit --law parametric",
        )


def _optimum(flops: float, log_size: float, log_loss: float, ratio: float) -> TrainedPoint:
    parameters = math.exp(log_size)
    return TrainedPoint(
        math.exp(log_loss),
        flops,
        parameters,
        flops / (ratio * parameters),
        name=f"best at {flops:.3g} FLOPs",
        origin=Origin.INFERRED,
    )


def _with_sizes(points: Sequence[TrainedPoint], sizes: Array) -> list[TrainedPoint]:
    return [replace(p, parameters=float(size)) for p, size in zip(points, sizes, strict=True)]


def _by_compute(points: Sequence[TrainedPoint]) -> list[list[TrainedPoint]]:
    ordered = sorted(points, key=lambda point: point.flops)
    groups = [ordered[:1]]
    for point in ordered[1:]:
        if point.flops <= SAME_BUDGET * groups[-1][0].flops:
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def _num_sizes(points: Sequence[TrainedPoint]) -> int:
    sizes = sorted(sizes_and_tokens(points)[0])
    return 1 + sum(bool(b > SAME_SIZE * a) for a, b in pairwise(sizes))


class _Budget:
    """The runs of one compute, and parabolas of log loss over log size."""

    def __init__(self, runs: Sequence[TrainedPoint]) -> None:
        self.runs = runs
        self.flops = math.exp(sum(math.log(run.flops) for run in runs) / len(runs))
        self.losses: Array = np.array([run.loss for run in runs])
        sizes = np.log(sizes_and_tokens(runs)[0])
        self._middle, self._sizes = float(sizes.mean()), sizes - sizes.mean()

    def parabola(self, losses: Array) -> Array:
        """Log losses that the parabola through `losses` gives its runs."""
        heights: Array = np.polyval(np.polyfit(self._sizes, np.log(losses), 2), self._sizes)
        return heights

    @property
    def slopes(self) -> Array:
        """Of the parabola's heights by each of its constants, (runs, 3)."""
        found: Array = np.vander(self._sizes, NUM_PARABOLA_CONSTANTS)
        return found

    def minimum(self, losses: Array) -> tuple[float, float] | None:
        """Log size and log loss of the least, None where no size of the runs is near it."""
        curvature, slope, height = np.polyfit(self._sizes, np.log(losses), 2)
        if curvature <= 0:
            return None
        best = -slope / (2 * curvature)
        if not self._sizes.min() <= best <= self._sizes.max():
            return None
        return float(best) + self._middle, float(height + slope * best / 2)


def _no_minimum(budget: _Budget) -> Diagnostic:
    sizes = sizes_and_tokens(budget.runs)[0]
    return Diagnostic(
        Severity.WARNING,
        "isoflop-open",
        f"the {len(sizes)} runs of {budget.flops:.3g} FLOPs, of {sizes.min():.3g} to "
        f"{sizes.max():.3g} parameters, have no best size among them; they are left out",
        help="train sizes beyond the best one at that compute",
    )


def _minima(budgets: Sequence[_Budget], losses: Array, ratio: float) -> list[TrainedPoint]:
    ends = np.cumsum([len(budget.runs) for budget in budgets])[:-1]
    found = [
        (budget.flops, budget.minimum(own))
        for budget, own in zip(budgets, np.split(losses, ends), strict=True)
    ]
    return [_optimum(flops, *best, ratio) for flops, best in found if best is not None]


def _changes(points: Sequence[TrainedPoint], ratio: float) -> list[TrainedPoint]:
    """Where the envelope changes from a size to the next."""
    groups = _by_size(points)
    ends = [point.flops for point in points]
    flops = np.geomspace(min(ends) / 100, max(ends), NUM_COMPUTES)
    # A size that was not trained so far, or no more, has no loss there.
    logs = np.array([_curve(group, np.log(flops)) for group in groups])
    sizes = [math.log(sizes_and_tokens(group)[0][0]) for group in groups]
    found = [
        (one, math.log(flops[at]), (low[at] + high[at]) / 2)
        for one, (low, high) in enumerate(pairwise(logs))
        for at in np.flatnonzero((high > low)[:-1] & (high <= low)[1:])
        if np.nanmin(logs[:, at]) >= low[at]
    ]
    # Noise makes curves cross several times: the middle of these is one change.
    return [
        _optimum(math.exp(compute), (sizes[one] + sizes[one + 1]) / 2, loss, ratio)
        for one in range(len(groups) - 1)
        if (own := [(compute, loss) for index, compute, loss in found if index == one])
        for compute, loss in [np.mean(own, axis=0)]
    ]


def _by_size(points: Sequence[TrainedPoint]) -> list[list[TrainedPoint]]:
    ordered = sorted(points, key=lambda point: float(point.parameters or 0))
    groups = [ordered[:1]]
    for point in ordered[1:]:
        assert point.parameters is not None
        if point.parameters <= SAME_SIZE * float(groups[-1][0].parameters or 0):
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def _curve(runs: Sequence[TrainedPoint], log_flops: Array) -> Array:
    """Least log losses of runs of one size by log compute; NaN where none has any."""
    best = np.full_like(log_flops, math.inf)
    for run in runs:
        assert run.tokens is not None
        scale = run.flops / run.tokens
        along = {point.tokens * scale: point.loss for point in run.curve} | {run.flops: run.loss}
        computes, losses = np.log(sorted(along.items())).T
        own = np.interp(log_flops, computes, losses, left=math.inf, right=math.inf)
        best = np.minimum(best, own)
    return np.where(np.isfinite(best), best, math.nan)
