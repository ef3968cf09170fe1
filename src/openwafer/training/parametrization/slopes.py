"""How sizes of activations grow with the width, and whether they stay as they are.

The coordinate check of Yang et al. 2022, arXiv:2203.03466, appendix D.1: under muP no activation
grows with the width, at the beginning and after some steps of training.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# Finite widths and few samples move slopes by a tenth or two; what is wrong, by a half or more.
FLAT: Final = 0.3

Series = Mapping[int, Sequence[float]]
"""Mean absolute activations by width: one for each layer and seed."""


@dataclass(frozen=True)
class Growth:
    """How the activations of a module follow the width.

    Attributes:
        module: its path, with a star for the number of a layer.
        is_output: whether it may begin smaller in a wider model, as outputs do under muP.
        is_of_change: whether all sizes but the first are of changes since; the first may be smaller
            in a deeper model, as what layers begin with cancels.
        sizes: for each step from 0, the geometric mean of its sizes by width.
        slopes: for each step, of log size against log width; infinite where sizes overflow.
    """

    module: str
    is_output: bool
    sizes: tuple[Mapping[int, float], ...]
    slopes: tuple[float, ...]
    is_of_change: bool = False

    @property
    def is_flat(self) -> bool:
        """Whether it stays as it is, at the beginning and at the end."""
        return self.distance <= FLAT

    @property
    def distance(self) -> float:
        """How far it is from flat."""
        first, last = self.slopes[0], self.slopes[-1]
        may_begin_smaller = self.is_output or self.is_of_change
        return max(first, last, 0 if may_begin_smaller else -first, 0 if self.is_output else -last)


def growth_of(
    module: str, steps: Sequence[Series], *, is_output: bool, is_of_change: bool = False
) -> Growth:
    """The growth of a module, from its sizes at each step."""
    sizes = tuple({width: _mean(found) for width, found in step.items()} for step in steps)
    slopes = tuple(slope_of(each) for each in sizes)
    return Growth(module, is_output, sizes, slopes, is_of_change)


def steepest(growths: Sequence[Growth]) -> Growth:
    """The module that is furthest from flat."""
    return max(growths, key=lambda growth: growth.distance)


def slope_of(sizes: Mapping[int, float]) -> float:
    """Of log size against log width, by least squares."""
    if not all(math.isfinite(size) for size in sizes.values()):
        return math.inf
    points = [(math.log(width), math.log(size)) for width, size in sizes.items()]
    x_mean = math.fsum(x for x, _ in points) / len(points)
    y_mean = math.fsum(y for _, y in points) / len(points)
    covariance = math.fsum((x - x_mean) * (y - y_mean) for x, y in points)
    return covariance / math.fsum((x - x_mean) ** 2 for x, _ in points)


def _mean(sizes: Sequence[float]) -> float:
    if not all(math.isfinite(size) for size in sizes):
        return math.inf
    return math.exp(math.fsum(math.log(size) for size in sizes) / len(sizes))
