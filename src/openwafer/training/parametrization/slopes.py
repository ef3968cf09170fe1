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
        sizes: for each step from 0, the geometric mean of its sizes by width.
        slopes: for each step, of log size against log width; infinite where sizes overflow.
    """

    module: str
    is_output: bool
    sizes: tuple[Mapping[int, float], ...]
    slopes: tuple[float, ...]

    @property
    def is_flat(self) -> bool:
        """Whether it stays as it is in width, at the beginning and at the end."""
        ends = self.slopes[0], self.slopes[-1]
        return all(slope <= FLAT and (self.is_output or slope >= -FLAT) for slope in ends)


def growth_of(module: str, steps: Sequence[Series], *, is_output: bool) -> Growth:
    """The growth of a module, from its sizes at each step."""
    sizes = tuple({width: _mean(found) for width, found in step.items()} for step in steps)
    return Growth(module, is_output, sizes, tuple(slope_of(each) for each in sizes))


def steepest(growths: Sequence[Growth]) -> Growth:
    """The module that is furthest from flat."""
    return max(growths, key=_distance)


def _distance(growth: Growth) -> float:
    ends = growth.slopes[0], growth.slopes[-1]
    return max(max(slope, 0 if growth.is_output else -slope) for slope in ends)


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
