"""What a step of a star-shaped stencil does to an array, and the same by numpy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.kernels.operands import (
    check_fields,
    check_number,
    check_numbers,
    takes_operands,
)

BOUNDARIES: Final = ("zero", "fixed")

Offset = tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """What is added to one cell after each step.

    Attributes:
        cell: its index in the array.
        values: (steps,), finite; later steps add nothing.
    """

    cell: Offset
    values: NDArray[np.float32]

    def __post_init__(self) -> None:
        check_fields(self)
        check_numbers("values of a source", self.values)


@dataclass(frozen=True, eq=False)
class Stencil:
    """What a step does to each cell u of an array.

    ``u' = scale * sum(coefficient * neighbour) + own * u + before * (u a step before)``

    Attributes:
        coefficients: by offset (rows, columns) or (rows, columns, depth); all but one of an
            offset's numbers are 0, so that the stencil is a star.
        own: factor of the cell itself, beside the sum.
        before: factor of the cell a step before.
        scale: one number a cell, in the shape of the array; None is 1.
        source: what is added to one cell.
        boundary: cells outside of the array are ``"zero"``, or those of the rim that have no
            whole star are ``"fixed"``: they keep their values.
    """

    coefficients: Mapping[Offset, float]
    own: float = 0.0
    before: float = 0.0
    scale: NDArray[np.float32] | None = None
    source: Source | None = None
    boundary: str = "zero"
    num_dims: int = field(init=False)

    def __post_init__(self) -> None:
        check_fields(self)
        for offset, factor in self.coefficients.items():
            check_number(f"the coefficient of {offset}", factor)
            for number in offset:
                check_number(f"a number of offset {offset}", number, is_whole=True)
        lengths = {len(offset) for offset in self.coefficients}
        if lengths not in ({2}, {3}):
            raise error(
                "stencil-offset",
                f"offsets have {sorted(lengths)} numbers",
                help="give offsets (rows, columns), or (rows, columns, depth), and at least one",
            )
        for offset in self.coefficients:
            if sum(number != 0 for number in offset) > 1:
                raise error(
                    "stencil-offset",
                    f"offset {offset} leaves two axes; a star has offsets along one",
                    help="leave it out, or take a step for each axis",
                )
        numbers = [*self.coefficients.values(), self.own, self.before]
        with np.errstate(over="ignore"):
            are_finite = bool(np.isfinite(np.array(numbers, np.float32)).all())
        if not are_finite:
            raise error(
                "stencil-coefficient",
                f"coefficients are {numbers}; not all are finite as float32",
                help="give finite numbers",
            )
        if self.boundary not in BOUNDARIES:
            known = " or ".join(BOUNDARIES)
            raise error("option-value", f"boundary is {self.boundary!r}", help=f"give {known}")
        if self.scale is not None:
            check_numbers("scale", self.scale)
        object.__setattr__(self, "coefficients", MappingProxyType(dict(self.coefficients)))
        object.__setattr__(self, "num_dims", lengths.pop())

    @property
    def reach(self) -> Offset:
        """Of the star along rows and columns of PEs, and in depth: the longest offsets."""
        longest = [max(map(abs, numbers)) for numbers in zip(*self.coefficients, strict=True)]
        rows, columns, depth = (*longest, 0)[:3]
        return rows, columns, depth

    @takes_operands
    def applied(
        self, values: NDArray[Any], steps: int, before: NDArray[Any] | None = None
    ) -> NDArray[np.float64]:
        """The steps by numpy in float64.

        Args:
            values: two or three dims.
            steps: their number.
            before: the values a step before; None is zeros.
        """
        for state in self.states(values, steps, before):
            now = state
        return now

    def states(
        self, values: NDArray[Any], steps: int, before: NDArray[Any] | None = None
    ) -> Iterator[NDArray[np.float64]]:
        """The values before the first step and after each, as :meth:`applied` gives the last."""
        now = values.astype(np.float64)
        last = np.zeros_like(now) if before is None else before.astype(np.float64)
        reach = self.reach[: self.num_dims]
        is_rim = np.ones(now.shape, np.bool_)
        is_rim[inner_of(reach, now.shape)] = False
        yield now
        for step in range(steps):
            new = self.own * now + self.before * last + self.sums(now)
            if self.source is not None and step < len(self.source.values):
                new[self.source.cell] += self.source.values[step]
            now, last = (np.where(is_rim, now, new) if self.boundary == "fixed" else new), now
            yield now

    def sums(self, now: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each cell's neighbours times their coefficients, and its scale."""
        reach = self.reach[: self.num_dims]
        padded = np.pad(now, [(r, r) for r in reach])
        total = np.zeros_like(now)
        for offset, coefficient in self.coefficients.items():
            begins = [r + one for r, one in zip(reach, offset, strict=True)]
            window = tuple(slice(b, b + n) for b, n in zip(begins, now.shape, strict=True))
            total += coefficient * padded[window]
        return total if self.scale is None else total * self.scale

    @property
    def magnitudes(self) -> "Stencil":
        """The stencil of the magnitudes of all numbers."""
        source = self.source and Source(self.source.cell, np.abs(self.source.values))
        return Stencil(
            {offset: abs(number) for offset, number in self.coefficients.items()},
            abs(self.own),
            abs(self.before),
            None if self.scale is None else np.abs(self.scale),
            source,
            self.boundary,
        )

    @property
    def growth(self) -> float:
        """The most that a step multiplies the largest magnitude by, without a source."""
        largest = 1.0 if self.scale is None else float(np.abs(self.scale).max())
        of_star = sum(map(abs, self.coefficients.values())) * largest
        return of_star + abs(self.own) + abs(self.before)

    def factor(self, rows: int, columns: int, depth: int = 0) -> float:
        """The coefficient of an offset, 0 if it has none."""
        return self.coefficients.get((rows, columns, depth)[: self.num_dims], 0.0)


def inner_of(rim: Offset, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Of an array of the shape what is inside of a rim, cells on either side of each axis."""
    return tuple(slice(r, max(r, n - r)) for r, n in zip(rim, shape, strict=True))
