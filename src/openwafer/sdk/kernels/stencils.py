"""Steps of star-shaped stencils: a description becomes routes, code of PEs and a host's call."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import GENERATIONS, Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.door.run import Run
from openwafer.sdk.kernels.operands import takes_arrays
from openwafer.sdk.kernels.precision import Precision, gamma
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    Result,
    check_memory,
    check_operand,
    check_rectangle,
    compiled,
    cycles_of,
    known_arch,
)

BOUNDARIES: Final = ("zero", "fixed")
MAX_REACH: Final = 7
"""PEs that a message goes: a control wavelet has a command for each router, its sender's too."""
MAX_STEPS: Final = 65_535
_STEPS_TIMED: Final = (4, 12)
"""Of a smaller array; the steps before the first number are its beginning."""

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
        if not np.isfinite(np.array(numbers, np.float32)).all():
            raise error(
                "stencil-coefficient",
                f"coefficients are {numbers}; not all are finite as float32",
                help="give finite numbers",
            )
        if self.boundary not in BOUNDARIES:
            known = " or ".join(BOUNDARIES)
            raise error("option-value", f"boundary is {self.boundary!r}", help=f"give {known}")
        object.__setattr__(self, "coefficients", MappingProxyType(dict(self.coefficients)))
        object.__setattr__(self, "num_dims", lengths.pop())

    @property
    def reach(self) -> Offset:
        """Of the star along rows and columns of PEs, and in depth: the longest offsets."""
        longest = [max(map(abs, numbers)) for numbers in zip(*self.coefficients, strict=True)]
        rows, columns, depth = (*longest, 0)[:3]
        return rows, columns, depth

    def applied(
        self, values: NDArray[Any], steps: int, before: NDArray[Any] | None = None
    ) -> NDArray[np.float64]:
        """The steps by numpy in float64.

        Args:
            values: two or three dims.
            steps: their number.
            before: the values a step before; None is zeros.
        """
        now = values.astype(np.float64)
        last = np.zeros_like(now) if before is None else before.astype(np.float64)
        reach = self.reach[: self.num_dims]
        is_rim = np.ones(now.shape, np.bool_)
        is_rim[_inner(reach, now.shape)] = False
        for step in range(steps):
            new = self.own * now + self.before * last + self._sums(now)
            if self.source is not None and step < len(self.source.values):
                new[self.source.cell] += self.source.values[step]
            now, last = (np.where(is_rim, now, new) if self.boundary == "fixed" else new), now
        return now

    def _sums(self, now: NDArray[np.float64]) -> NDArray[np.float64]:
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

    def factor(self, rows: int, columns: int, depth: int = 0) -> float:
        """The coefficient of an offset, 0 if it has none."""
        return self.coefficients.get((rows, columns, depth)[: self.num_dims], 0.0)


@dataclass(frozen=True)
class StencilPlan:
    """How steps of a stencil are done, before anything is compiled.

    Each PE has the column of cells of one row and column of the array. In each step columns go to
    the neighbours as far as the star reaches, and are multiplied as they come.

    Attributes:
        stencil: what a step does.
        shape: rows, columns and depth; the depth of an array of two dims is 1.
        arch: the generation.
    """

    stencil: Stencil
    shape: tuple[int, int, int]
    arch: Arch

    @property
    def held(self) -> tuple[int, int, int]:
        """Cells of the rim that keep their values, on either side of each axis."""
        if self.stencil.boundary == "zero":
            return 0, 0, 0
        rows, columns, depth = self.stencil.reach
        return rows, columns, depth

    @property
    def memory_bytes(self) -> int:
        """Bytes of a PE's 48 KB, with those that are kept for code."""
        rows, columns, reach = self.stencil.reach
        depth = self.shape[2]
        arrays = 2 * (rows > 0) + 2 * (columns > 0)
        arrays += (self.stencil.before != 0) + (self.stencil.scale is not None)
        elements = 2 * (depth + 2 * reach) + arrays * depth + self._factors.size
        added = 0 if self.stencil.source is None else len(self.stencil.source.values)
        return Precision.F32.given.itemsize * (elements + added) + CODE_BYTES

    @property
    def num_roundings(self) -> int:
        """The most roundings that a value goes through in a step."""
        rows, columns, depth = self.stencil.reach
        return max(rows, columns, 2 * depth + 1) + 8

    def error_bound(
        self, values: NDArray[Any], steps: int, before: NDArray[Any] | None = None
    ) -> NDArray[np.float64]:
        """Bound of each cell's error after all steps.

        It is ``gamma(steps * num_roundings)`` times what the steps make of the magnitudes of all
        numbers, and what products below the normal numbers may lose.

        Args:
            values: of the plan's shape, finite.
            steps: their number.
            before: the values a step before.
        """
        dtype = Precision.F32.given
        all_positive = self.stencil.magnitudes
        made = all_positive.applied(
            np.abs(values), steps, None if before is None else np.abs(before)
        )
        largest = 1.0 if all_positive.scale is None else float(all_positive.scale.max())
        growth = sum(all_positive.coefficients.values()) * largest
        growth += all_positive.own + all_positive.before
        least = float(np.finfo(dtype).smallest_subnormal)
        lost = steps * self.num_roundings * least * max(1.0, growth) ** steps
        return gamma(steps * self.num_roundings, dtype) * made + lost

    def cycles(self, steps: int) -> int:
        """Predicted cycles of steps: those of an array just wider than the star, simulated here.

        PEs wait for those that the star reaches and for no others, so each step of an array takes
        as long as one of the smallest array in which a PE has neighbours on all sides.

        Args:
            steps: 0 or more.

        Raises:
            OpenwaferError: the number of steps is out of range.
        """
        _check_steps(steps)
        first, later = _STEPS_TIMED
        source = self.stencil.source
        num_added = 0 if source is None else len(source.values)

        @cache
        def taken(values: int, steps: int) -> int:
            """Of the smallest array, whose source has so many values at most."""
            return _cycles_of_zeros(self._smallest_alike(values), steps)

        def more(values: int, steps: int) -> int:
            """Of steps that are not the first ones."""
            if not steps:
                return 0
            return round((taken(values, later) - taken(values, first)) / (later - first) * steps)

        num_adding = max(0, min(steps, num_added) - later)
        # The host's command reaches each column a hop later.
        hop = GENERATIONS[self.arch].timing.hop_cycles
        late = hop * (self.shape[1] - self._smallest_alike(0).shape[1])
        values = min(later, num_added)
        # Steps behind a source's last value take less.
        others = more(min(1, num_added), max(0, steps - later) - num_adding)
        return late + taken(values, min(steps, later)) + more(values, num_adding) + others

    def _smallest_alike(self, num_added: int) -> "StencilPlan":
        """The same on as few PEs as have one among them that is like most of this plan's.

        Args:
            num_added: the most values of the source.
        """
        own, sizes = self.stencil, self.shape[:2]
        few = [min(size, 2 * reach + 3) for size, reach in zip(sizes, own.reach, strict=False)]
        source = own.source and Source(
            (*map(_alike, own.source.cell, sizes, few), *own.source.cell[2:]),
            own.source.values[:num_added],
        )
        scale = None if own.scale is None else own.scale[: few[0], : few[1]]
        stencil = replace(own, scale=scale, source=source)
        return StencilPlan(stencil, (few[0], few[1], self.shape[2]), self.arch)

    @takes_arrays
    def run(
        self,
        values: NDArray[Any],
        steps: int,
        before: NDArray[Any] | None = None,
        *,
        check: bool = False,
    ) -> Result:
        """Do steps on the simulated wafer.

        Args:
            values: (rows, columns) or (rows, columns, depth), float32.
            steps: 0 or more.
            before: the values a step before; None is zeros.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type, or the number of steps is out of range.
        """
        shape = self.shape[: self.stencil.num_dims]
        for name, array in (("values", values), ("before", before)):
            if array is not None:
                check_operand(name, array, shape, Precision.F32)
        _check_steps(steps)
        with compiled("stencil", self.arch, self.params).run(check=check) as run:
            self._give(run, values, before)
            run.launch("main", steps)
            taken = run["cells" if steps % 2 == 0 else "others"]
            reach = self.stencil.reach[2]
            own = taken[..., reach : reach + self.shape[2]]
            return Result(own.reshape(values.shape).copy(), cycles_of(run, self.arch))

    def _give(self, run: Run, values: NDArray[Any], before: NDArray[Any] | None) -> None:
        """Copy all numbers to the PEs. Held cells are the same before as now."""
        now = values.reshape(self.shape)
        last = np.zeros_like(now) if before is None else before.reshape(self.shape)
        if self.stencil.boundary == "fixed":
            inner = _inner(self.held, self.shape)
            last, moving = now.copy(), last[inner]
            last[inner] = moving
        reach = self.stencil.reach[2]
        pads = ((0, 0), (0, 0), (reach, reach))
        run["cells"], run["others"] = np.pad(now, pads), np.pad(last, pads)
        run["factors"] = np.broadcast_to(self._factors, (*self.shape[:2], len(self._factors)))
        if self.stencil.scale is not None:
            run["scale"] = self.stencil.scale.reshape(self.shape)
        if self.stencil.source is not None and len(self.stencil.source.values):
            y, x = self.stencil.source.cell[:2]
            run["added", y, x] = self.stencil.source.values

    @property
    def _factors(self) -> NDArray[np.float32]:
        """By distance from the west, east, north and south; of the own column; own and before."""
        stencil = self.stencil
        rows, columns, depth = stencil.reach
        found = [stencil.factor(0, -n) for n in range(columns + 1)]
        found += [stencil.factor(0, n) for n in range(columns + 1)]
        found += [stencil.factor(-n, 0) for n in range(rows + 1)]
        found += [stencil.factor(n, 0) for n in range(rows + 1)]
        found += [stencil.factor(0, 0, n) for n in range(-depth, depth + 1)]
        return np.array([*found, stencil.own, stencil.before], np.float32)

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        stencil, (rows, columns, depth) = self.stencil, self.shape
        source = stencil.source or Source((0, 0, 0), np.zeros(0, np.float32))
        y, x, z = (*source.cell, 0)[:3]
        held_rows, held_columns, held_depth = self.held
        if 2 * held_depth >= depth:
            # No cell has a whole star.
            held_rows, held_depth = rows, 0
        return {
            "rows": rows,
            "columns": columns,
            "depth": depth,
            "held_rows": held_rows,
            "held_columns": held_columns,
            "held_depth": held_depth,
            "column_reach": stencil.reach[0],
            "row_reach": stencil.reach[1],
            "depth_reach": stencil.reach[2],
            "has_scale": stencil.scale is not None,
            "has_own": stencil.own != 0,
            "has_before": stencil.before != 0,
            "source_x": x,
            "source_y": y,
            "source_z": z,
            "num_added": len(source.values),
        }


def _check_steps(steps: int) -> None:
    if steps not in range(MAX_STEPS + 1):
        raise error("stencil-steps", f"{steps} steps", help=f"give 0 to {MAX_STEPS:,}")


def _cycles_of_zeros(plan: StencilPlan, steps: int) -> int:
    """Simulated; other numbers take as long."""
    return plan.run(np.zeros(plan.shape[: plan.stencil.num_dims], np.float32), steps).cycles


def _alike(place: int, size: int, few: int) -> int:
    """Of few places in a row the one as far from the nearer end, or in the middle."""
    middle = few // 2
    behind = size - 1 - place
    return few - 1 - behind if behind < min(place, middle) else min(place, middle)


def _inner(rim: Offset, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Of an array of the shape what is inside of a rim."""
    return tuple(slice(r, max(r, n - r)) for r, n in zip(rim, shape, strict=True))


def plan_stencil(stencil: Stencil, shape: tuple[int, ...], *, arch: str = Arch.WSE3) -> StencilPlan:
    """Plan steps of a stencil, a PE for each row and column of the array.

    Args:
        stencil: what a step does.
        shape: of the array: rows and columns, and depth if offsets have three numbers.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: it does not fit the fabric, a PE's memory or a message's way.
    """
    generation = known_arch(arch)
    if len(shape) != stencil.num_dims or min(shape) < 1:
        raise error(
            "kernel-shape",
            f"an array of the shape {shape}; offsets have {stencil.num_dims} numbers",
            help="give an array with a dim for each of them, and with elements",
        )
    rows, columns, depth = (*shape, 1)[:3]
    check_rectangle(rows, columns, generation)
    longest = max(stencil.reach[:2])
    if longest > MAX_REACH:
        raise error(
            "stencil-reach",
            f"the star reaches {longest} PEs far; messages go {MAX_REACH} PEs",
            help="put the longest axis into the depth, or take shorter offsets",
        )
    _check_arrays(stencil, shape)
    plan = StencilPlan(stencil, (rows, columns, depth), generation)
    check_memory(plan.memory_bytes, f"a column of {depth} cells")
    return plan


def _check_arrays(stencil: Stencil, shape: tuple[int, ...]) -> None:
    if stencil.scale is not None:
        check_operand("scale", stencil.scale, shape, Precision.F32)
    if stencil.source is None:
        return
    cell, values = stencil.source.cell, stencil.source.values
    check_operand("source", values, (len(values),), Precision.F32)
    is_inside = len(cell) == len(shape) and all(
        0 <= i < n for i, n in zip(cell, shape, strict=True)
    )
    if not is_inside:
        raise error(
            "stencil-source",
            f"the source is at {cell}, the array has the shape {shape}",
            help="give the index of a cell",
        )


@takes_arrays
def stencil(
    description: Stencil,
    values: NDArray[Any],
    steps: int,
    before: NDArray[Any] | None = None,
    *,
    arch: str = Arch.WSE3,
) -> Result:
    """Steps of a stencil: an array to the array of the same shape after all steps.

    The error of each cell is at most :meth:`StencilPlan.error_bound`. The order of additions
    depends on nothing but the plan, so the bits repeat.

    Args:
        description: what a step does.
        values: (rows, columns) or (rows, columns, depth), float32, a PE for each row and column.
        steps: 0 or more.
        before: the values a step before; None is zeros.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: shape or type do not fit, or the fabric or a PE's memory is too small.
    """
    return plan_stencil(description, values.shape, arch=arch).run(values, steps, before)
