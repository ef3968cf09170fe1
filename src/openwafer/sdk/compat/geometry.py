"""The vendor's coordinates."""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["IntRectangle", "IntVector"]


@dataclass(frozen=True)
class IntVector:
    """A pair of whole numbers."""

    x: int
    y: int


@dataclass(frozen=True)
class IntRectangle:
    """The points from `origin` up to, not including, `dims`: its far corner."""

    origin: IntVector
    dims: IntVector

    def points(self) -> Iterator[IntVector]:
        """Every point, row by row."""
        for y in range(self.origin.y, self.dims.y):
            for x in range(self.origin.x, self.dims.x):
                yield IntVector(x, y)
