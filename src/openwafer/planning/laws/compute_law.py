"""Loss by compute: a power law that ends in a floor."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from openwafer.loss_laws import LawKind, compute_loss
from openwafer.planning.laws.fitted import (
    USUAL_RESAMPLING,
    Allocation,
    Array,
    Fitted,
    Resampling,
)
from openwafer.planning.laws.noise import resampled_losses
from openwafer.planning.laws.points import (
    FLOPS_PER_PARAMETER_AND_TOKEN,
    TrainedPoint,
    check_points,
    require_enough,
    require_spread,
)

TOKENS_PER_PARAMETER = 20
"""What is best by Hoffmann et al. 2022, arXiv 2203.15556, table 3."""

NUM_CONSTANTS = 3
START_EXPONENTS = (0.03, 0.1, 0.3)
START_FLOORS = (0.0, 0.5, 0.9)
MAX_START_SHARE = 0.9
# A law that hardly falls has its scale beyond all numbers.
LEAST_EXPONENT, MAX_EXPONENT, MAX_LOG = 1e-12, 5.0, 700.0


@dataclass(frozen=True)
class ComputeLaw:
    """``loss = (flops / scale_flops) ** -exponent + floor_loss``, in nats a token.

    `source` says where the constants stand or how they were found.
    """

    scale_flops: float
    exponent: float
    floor_loss: float
    source: str

    @property
    def kind(self) -> LawKind:
        """Its form."""
        return LawKind.COMPUTE

    @property
    def allocation_source(self) -> str:
        """Whose rule `allocation` follows."""
        return f"{TOKENS_PER_PARAMETER} tokens a parameter: Hoffmann et al. 2022, arXiv 2203.15556"

    def constants(self) -> dict[str, float]:
        """Its constants by their names."""
        return {
            "scale_flops": self.scale_flops,
            "exponent": self.exponent,
            "floor_loss": self.floor_loss,
        }

    def losses_at(self, flops: Array) -> Array:
        """The losses of models trained with `flops`."""
        losses: Array = compute_loss(self.constants(), flops)
        return losses

    def slopes_at(self, flops: Array) -> Array:
        """Of log losses by height, exponent and floor, (flops, 3)."""
        logs, losses = np.log(flops), self.losses_at(flops)
        power = losses - self.floor_loss
        by_constant = [power, (logs.mean() - logs) * power, np.ones_like(power)]
        slopes: Array = np.stack(by_constant, axis=1) / losses[:, None]
        return slopes

    def loss_at(self, flops: float) -> float:
        """The loss of a model trained with `flops`."""
        return float(self.losses_at(np.asarray(flops)))

    def expected(self, point: TrainedPoint) -> float:
        """The loss of a trained model."""
        return self.loss_at(point.flops)

    def allocation(self, flops: float) -> Allocation:
        """Twenty tokens a parameter, since such a law says nothing of sizes."""
        parameters = math.sqrt(flops / (FLOPS_PER_PARAMETER_AND_TOKEN * TOKENS_PER_PARAMETER))
        return Allocation(parameters, TOKENS_PER_PARAMETER * parameters)


def fit_compute_law(
    points: Sequence[TrainedPoint], resampling: Resampling = USUAL_RESAMPLING
) -> Fitted[ComputeLaw]:
    """Fit by least squares of relative distances.

    Raises:
        OpenwaferError: ``points-values``, ``points-tokenizers``, ``points-conditions``,
            ``points-few``, ``points-same-compute``.
    """
    check_points(points)
    require_enough(points, NUM_CONSTANTS)
    require_spread(points, NUM_CONSTANTS)
    flops = np.array([point.flops for point in points])
    losses = np.array([point.loss for point in points])
    trials = [
        _solve(flops, losses, (exponent, share * float(losses.min())))
        for exponent in START_EXPONENTS
        for share in START_FLOORS
    ]
    law = min(trials, key=lambda trial: _squares(trial, flops, losses))
    start = (law.exponent, law.floor_loss)
    expected = law.losses_at(flops)
    dealt = resampled_losses(losses, expected, law.slopes_at(flops), resampling)
    return Fitted(law, tuple(_solve(flops, drawn, start) for drawn in dealt), tuple(points))


def solve_again(points: Sequence[TrainedPoint], start: ComputeLaw) -> ComputeLaw:
    """The law of other points, from one that was fitted to points alike."""
    flops = np.array([point.flops for point in points])
    losses = np.array([point.loss for point in points])
    return _solve(flops, losses, (start.exponent, start.floor_loss))


def _squares(law: ComputeLaw, flops: Array, losses: Array) -> float:
    return float(np.square(np.log(losses / law.losses_at(flops))).sum())


def _solve(flops: Array, losses: Array, start: tuple[float, float]) -> ComputeLaw:
    logs = np.log(flops)
    centre, least = float(logs.mean()), float(losses.min())
    exponent, floor = start[0], min(start[1], MAX_START_SHARE * least)

    def residuals(constants: Array) -> Array:
        # Counted from the points' middle, height and exponent hardly depend on each other.
        height, exponent, floor = constants
        expected: Array = np.exp(height - exponent * (logs - centre)) + floor
        return np.log(expected / losses)

    def slopes(constants: Array) -> Array:
        height, exponent, floor = constants
        power: Array = np.exp(height - exponent * (logs - centre))
        by_constant = [power, (centre - logs) * power, np.ones_like(power)]
        relative: Array = np.stack(by_constant, axis=1) / (power + floor)[:, None]
        return relative

    height, exponent, floor = least_squares(
        residuals,
        [math.log(losses.mean() - floor), exponent, floor],
        jac=slopes,
        bounds=([-np.inf, 0, 0], [np.inf, MAX_EXPONENT, least]),
        x_scale=[0.1, 0.01, 0.1],
    ).x
    # Nor has one that is all floor a scale of its own: the least exponent that a number can tell.
    exponent = max(exponent, LEAST_EXPONENT, -height / (MAX_LOG / 2 + centre))
    log_scale = min(centre + height / exponent, MAX_LOG)
    source = f"least squares of log loss over {len(losses)} points"
    return ComputeLaw(math.exp(log_scale), float(exponent), float(floor), source)
