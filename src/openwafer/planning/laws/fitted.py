"""A law fitted to points, with the laws that it could as well have been."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import Diagnostic
from openwafer.figures import Figure, Origin
from openwafer.loss_laws import LawKind
from openwafer.planning.laws.points import TrainedPoint

Array = NDArray[np.float64]
INTERVAL_PERCENT = 95


@dataclass(frozen=True)
class Resampling:
    """Intervals follow from `num_replicas` fits to losses with noise, which `seed` draws."""

    seed: int = 0
    num_replicas: int = 200


USUAL_RESAMPLING: Final = Resampling()


@dataclass(frozen=True)
class Allocation:
    """A way to spend compute: `parameters` of a model, and `tokens` that it is trained on."""

    parameters: float
    tokens: float


class Law(Protocol):
    """Gives the loss, in nats a token, for what was spent."""

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
    """A law and its points.

    Attributes:
        law: the fitted one.
        replicas: laws fitted to this law's losses at `points`, with noise as these have it.
        points: points that it was fitted to.
        runs: runs from which the points follow, where these are minima among runs.
        remarks: points that were left out, and why.
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
