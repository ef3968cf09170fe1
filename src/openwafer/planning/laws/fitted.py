"""A law fitted to points, with the laws that it could as well have been."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from openwafer.diagnostics import Diagnostic
from openwafer.figures import Figure, Origin
from openwafer.loss_laws import LawKind
from openwafer.planning.laws.points import TrainedPoint

Array = NDArray[np.float64]
INTERVAL_PERCENT = 95
TAIL = (1 - INTERVAL_PERCENT / 100) / 2


@dataclass(frozen=True)
class Resampling:
    """How intervals are found: by `num_replicas` fits to residuals of signs dealt by `seed`."""

    seed: int = 0
    num_replicas: int = 200


LEAST_UNSEEN: Final = 0.1
"""Share of a point's error that is left in its residual, at least: one that a law goes through
tells nothing of its error."""

USUAL_RESAMPLING: Final = Resampling()


@dataclass(frozen=True)
class Allocation:
    """How compute is spent: `parameters` of a model, and `tokens` that it is trained on."""

    parameters: float
    tokens: float


class Law(Protocol):
    """A loss in nats a token, as it follows from what was spent."""

    @property
    def source(self) -> str:
        """Where its constants stand, or how they were found."""
        ...

    @property
    def allocation_source(self) -> str:
        """Whose rule `allocation` follows."""
        ...

    @property
    def kind(self) -> LawKind:
        """Its form."""
        ...

    def constants(self) -> Mapping[str, float]:
        """Its constants by their names."""
        ...

    def expected(self, point: TrainedPoint) -> float:
        """The loss of a trained model."""
        ...

    def loss_at(self, flops: float) -> float:
        """The loss that is reached with `flops` well spent."""
        ...

    def allocation(self, flops: float) -> Allocation:
        """How `flops` are well spent."""
        ...


FittedLaw = TypeVar("FittedLaw", bound=Law, covariant=True)


@dataclass(frozen=True)
class Fitted(Generic[FittedLaw]):
    """A law, with what it was fitted to.

    Attributes:
        law: the fitted one.
        replicas: fitted to `points` with the signs of their residuals dealt anew.
        points: it was fitted to.
        runs: from which the points follow, where these are minima found among runs.
        remarks: what was left out, and why.
    """

    law: FittedLaw
    replicas: tuple[FittedLaw, ...]
    points: tuple[TrainedPoint, ...]
    runs: tuple[TrainedPoint, ...] = ()
    remarks: tuple[Diagnostic, ...] = ()

    @property
    def flops_range(self) -> tuple[float, float]:
        """Least and most compute of the points."""
        flops = [point.flops for point in self.points]
        return min(flops), max(flops)

    @property
    def scatter(self) -> float:
        """Root mean square of the points' relative distance from the law."""
        residuals = [math.log(point.loss / self.law.expected(point)) for point in self.points]
        return math.sqrt(sum(r * r for r in residuals) / len(residuals))

    def figure(self, name: str, unit: str, source: str, of: Callable[[FittedLaw], float]) -> Figure:
        """What follows from the law, between the percentiles of what follows from the replicas."""
        value, others = of(self.law), [of(law) for law in self.replicas]
        if not set(others) - {value}:
            return Figure(name, value, unit, Origin.INFERRED, source)
        tail = (100 - INTERVAL_PERCENT) / 2
        low, high = map(float, np.percentile(others, [tail, 100 - tail]))
        return Figure(name, value, unit, Origin.INFERRED, source, low, high)

    def constants(self) -> tuple[Figure, ...]:
        """The law's constants, each with its interval."""
        return tuple(
            self.figure(name, "", self.law.source, _constant(name)) for name in self.law.constants()
        )


def _constant(name: str) -> Callable[[Law], float]:
    return lambda law: law.constants()[name]


def unseen_residuals(losses: Array, expected: Array, slopes: Array) -> Array:
    """Log distances of losses from a law by least squares that did not see the loss.

    Each is its residual over one less its leverage (MacKinnon and White 1985, HC3).

    Args:
        slopes: of the expected logs by each constant of the law, (points, constants).
    """
    basis, _, _ = np.linalg.svd(slopes / np.abs(slopes).max(axis=0), full_matrices=False)
    unseen = np.maximum(1 - np.square(basis).sum(axis=1), LEAST_UNSEEN)
    residuals: Array = np.log(losses / expected) / unseen
    return residuals


def resampled_losses(
    expected: Array, residuals: Array, num_constants: int, resampling: Resampling
) -> Sequence[Array]:
    """Losses as they could have been: of the law, with each point's own residual, its sign anew.

    So a noisy point stays a noisy one, and the law is in the middle (the wild bootstrap, Davidson
    and Flachaire 2008). Few points know their own noise badly, as Student's distribution tells.

    Args:
        residuals: log distances of the points from a law that did not see them.
    """
    freedom = len(expected) - num_constants
    widening = stdtrit(freedom, 1 - TAIL) / ndtri(1 - TAIL)
    dealer = np.random.default_rng(resampling.seed)
    return [
        expected * np.exp(widening * residuals * dealer.choice([-1.0, 1.0], size=len(expected)))
        for _ in range(resampling.num_replicas)
    ]
