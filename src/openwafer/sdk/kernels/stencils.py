"""Steps of star-shaped stencils: a description becomes routes, code of PEs and a host's call."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.diagnostics import error
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.door.compiled import Param
from openwafer.sdk.door.run import Run
from openwafer.sdk.kernels.operands import takes_operands
from openwafer.sdk.kernels.precision import Precision, gamma, named_precision, precision_of
from openwafer.sdk.kernels.products import tile_length
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
from openwafer.sdk.kernels.star import Source, Stencil, inner_of
from openwafer.sdk.kernels.trees import start_delay

MAX_REACH: Final = 7
"""PEs that a message goes: a control wavelet has a command for each router, its sender's too."""
MAX_STEPS: Final = 65_535
_STEPS_TIMED: Final = (4, 12)
"""Of a smaller array; the steps before the first number are its beginning."""


@dataclass(frozen=True)
class StencilPlan:
    """How steps of a stencil are done, before anything is compiled.

    Each PE has the column of cells of one row and column of the array. In each step columns go to
    the neighbours as far as the star reaches, and are multiplied as they come. On fewer PEs each
    has a tile of an array of two dims, whose rims go to the neighbours.

    Attributes:
        stencil: what a step does.
        shape: rows, columns and depth; the depth of an array of two dims is 1.
        size: rows and columns of PEs.
        arch: the generation.
        precision: types of the values and of the sums.
    """

    stencil: Stencil
    shape: tuple[int, int, int]
    size: tuple[int, int]
    arch: Arch
    precision: Precision

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of the array on a PE."""
        rows, columns = map(tile_length, self.shape[:2], self.size, (1, 1))
        return rows, columns

    @property
    def is_tiled(self) -> bool:
        """Whether PEs have tiles of more than one row or column."""
        return self.tile != (1, 1)

    @property
    def padding(self) -> int:
        """Zeros that fill the last wavelet of a column."""
        in_wavelet = 4 // self.precision.given.itemsize
        return -self.shape[2] % in_wavelet

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
        (tile_rows, tile_columns), (rows, columns, reach) = self.tile, self.stencil.reach
        more = (self.stencil.before != 0) + (self.stencil.scale is not None)
        if self.is_tiled:
            padded = (tile_rows + 2 * rows) * (tile_columns + 2 * columns)
            rims = 2 * (rows * tile_columns + columns * tile_rows)
            sums, given = (2 + more) * padded + 2 * rims, 3 * rims
        else:
            length = self.shape[2] + self.padding
            padded = length + 2 * reach
            sums = 2 * padded + (2 * (rows > 0) + 2 * (columns > 0) + more) * length
            given = 0
        added = 0 if self.stencil.source is None else len(self.stencil.source.values)
        sums += added + len(self._weights)
        given += self._factors.size + self.precision.is_widened * padded
        numbers = self.precision
        return numbers.sums.itemsize * sums + numbers.given.itemsize * given + CODE_BYTES

    @property
    def num_roundings(self) -> int:
        """The most roundings to the sums' type that a value goes through in a step.

        They are those of its coefficient, of a side or the own column, of four sides, of the scale
        and its product, and of what the own value, the one before and the source add. In a tile
        all offsets are added up one after another.
        """
        rows, columns, depth = self.stencil.reach
        if self.is_tiled:
            return 2 * (rows + columns) + 1 + 6
        return max(rows, columns, 2 * depth + 1) + 10

    @takes_operands
    def error_bound(
        self, values: NDArray[Any], steps: int, before: NDArray[Any] | None = None
    ) -> NDArray[np.float64]:
        """Bound of each cell's error after all steps.

        It is ``gamma(steps * num_roundings)`` times what the steps make of the magnitudes of all
        numbers, and what products below the normal numbers may lose. f16 values with f32 sums, and
        their coefficients, are rounded to f16 in each step beside this, so ``gamma(2 * steps)`` of
        f16 comes on top. It is infinite where a number on the way may leave the range of its type.

        Args:
            values: of the plan's shape, finite.
            steps: their number.
            before: the values a step before.
        """
        all_positive = self.stencil.magnitudes
        states = all_positive.states(
            np.abs(values), steps, None if before is None else np.abs(before)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            return self._bound(all_positive, steps, states)

    def _bound(
        self, all_positive: Stencil, steps: int, states: Iterator[NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """See :meth:`error_bound`, of the states before the first step and after each."""
        given, sums = self.precision.given, self.precision.sums
        relative = gamma(steps * self.num_roundings, sums)
        least = self.num_roundings * float(np.finfo(sums).smallest_subnormal)
        if self.precision.is_widened:
            relative = (1 + relative) * (1 + gamma(2 * steps, given)) - 1
            least += float(np.finfo(given).smallest_subnormal)
        lost = steps * least * np.float64(max(1.0, all_positive.growth)) ** steps
        unscaled = replace(all_positive, scale=None)
        now = next(states)
        most = float(now.max())
        for new in states:
            most = max(most, float(unscaled.sums(now).max()), float(new.max()))
            now = new
        bound = relative * now + (1 + relative) * lost
        # Numbers beyond float64 make it no number.
        is_inside = (1 + relative) * (most + lost) <= float(np.finfo(given).max)
        return bound if is_inside else np.full_like(bound, np.inf)

    @takes_operands
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
        late = start_delay(1 + self.size[1] - self._smallest_alike(0).size[1], self.arch)
        values = min(later, num_added)
        # Steps behind a source's last value take less.
        others = more(min(1, num_added), max(0, steps - later) - num_adding)
        return late + taken(values, min(steps, later)) + more(values, num_adding) + others

    def _smallest_alike(self, num_added: int) -> "StencilPlan":
        """The same on as few PEs as have one among them that is like most of this plan's.

        Args:
            num_added: the most values of the source.
        """
        own, tile = self.stencil, self.tile
        far = [ceil(reach / cells) for reach, cells in zip(own.reach, tile, strict=False)]
        few = [min(size, 2 * reach + 3) for size, reach in zip(self.size, far, strict=True)]
        shape = [
            length if number == size else number * cells
            for length, number, size, cells in zip(self.shape, few, self.size, tile, strict=False)
        ]
        source = own.source and Source(
            (*map(_alike, own.source.cell, self.size, few, tile), *own.source.cell[2:]),
            own.source.values[:num_added],
        )
        scale = None if own.scale is None else own.scale[: shape[0], : shape[1]]
        stencil = replace(own, scale=scale, source=source)
        return replace(
            self,
            stencil=stencil,
            shape=(shape[0], shape[1], self.shape[2]),
            size=(few[0], few[1]),
        )

    @takes_operands
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
            values: (rows, columns) or (rows, columns, depth), of the plan's precision.
            steps: 0 or more.
            before: the values a step before; None is zeros.
            check: look for mistakes of the program.

        Raises:
            OpenwaferError: they have another shape or type, or the number of steps is out of range.
        """
        shape = self.shape[: self.stencil.num_dims]
        for name, array in (("values", values), ("before", before)):
            if array is not None:
                check_operand(name, array, shape, self.precision)
        _check_steps(steps)
        name = "stencil_tile" if self.is_tiled else "stencil"
        with compiled(name, self.arch, self.params).run(check=check) as run:
            self._give(run, values, before)
            run.launch("main", steps)
            own = self._taken(run["cells" if steps % 2 == 0 else "others"])
            return Result(own.reshape(values.shape).copy(), cycles_of(run, self.arch))

    def _spread(self, array: NDArray[Any]) -> NDArray[Any]:
        """What each PE has of an array of the plan's shape, with zeros around it."""
        rows, columns, reach = self.stencil.reach
        if not self.is_tiled:
            return np.pad(array, ((0, 0), (0, 0), (reach, self.padding + reach)))
        (down, across), (height, width) = self.size, self.tile
        behind = (down * height - self.shape[0], across * width - self.shape[1])
        full = np.pad(array[..., 0], [(0, number) for number in behind])
        tiles = full.reshape(down, height, across, width).swapaxes(1, 2)
        return np.pad(tiles, ((0, 0), (0, 0), (rows, rows), (columns, columns))).reshape(
            down, across, -1
        )

    def _taken(self, spread: NDArray[Any]) -> NDArray[Any]:
        """The array of what all PEs have."""
        rows, columns, reach = self.stencil.reach
        if not self.is_tiled:
            return spread[..., reach : reach + self.shape[2]]
        (down, across), (height, width) = self.size, self.tile
        tiles = spread.reshape(down, across, height + 2 * rows, width + 2 * columns)
        own = tiles[:, :, rows : rows + height, columns : columns + width].swapaxes(1, 2)
        return own.reshape(down * height, across * width)[: self.shape[0], : self.shape[1]]

    def _give(self, run: Run, values: NDArray[Any], before: NDArray[Any] | None) -> None:
        """Copy all numbers to the PEs. Held cells are the same before as now."""
        now = values.reshape(self.shape)
        last = np.zeros_like(now) if before is None else before.reshape(self.shape)
        if self.stencil.boundary == "fixed":
            inner = inner_of(self.held, self.shape)
            last, moving = now.copy(), last[inner]
            last[inner] = moving
        sums = self.precision.sums
        run["cells"], run["others"] = (self._spread(one).astype(sums) for one in (now, last))
        for name, numbers in (("factors", self._factors), ("weights", self._weights)):
            run[name] = np.broadcast_to(numbers, (*self.size, len(numbers)))
        if self.stencil.scale is not None:
            scale = self.stencil.scale.reshape(self.shape).astype(sums)
            run["scale"] = self._spread(scale) if self.is_tiled else scale
        if len(self._source.values):
            y, x = (i // n for i, n in zip(self._source.cell, self.tile, strict=False))
            run["added", y, x] = self._source.values.astype(sums)

    @property
    def _source(self) -> Source:
        """What is added, to no cell that is held."""
        source = self.stencil.source
        shape, held = self.shape[: self.stencil.num_dims], self.held
        nothing = Source((0,) * len(shape), np.zeros(0, np.float32))
        if source is None:
            return nothing
        is_held = any(
            not rim <= i < n - rim for i, n, rim in zip(source.cell, shape, held, strict=False)
        )
        return nothing if is_held else source

    @property
    def _weights(self) -> NDArray[Any]:
        """Of a cell's own value and of the one a step before."""
        return np.array([self.stencil.own, self.stencil.before], self.precision.sums)

    @property
    def _factors(self) -> NDArray[Any]:
        """By distance from the west, east, north and south; of the own column."""
        stencil = self.stencil
        rows, columns, depth = stencil.reach
        found = [stencil.factor(0, -n) for n in range(columns + 1)]
        found += [stencil.factor(0, n) for n in range(columns + 1)]
        found += [stencil.factor(-n, 0) for n in range(rows + 1)]
        found += [stencil.factor(n, 0) for n in range(rows + 1)]
        found += [stencil.factor(0, 0, n) for n in range(-depth, depth + 1)]
        return np.array(found, self.precision.given)

    @property
    def params(self) -> dict[str, Param]:
        """Of its program."""
        stencil, y, x = self.stencil, *self._source.cell[:2]
        shared: dict[str, Param] = {
            "rows": self.size[0],
            "columns": self.size[1],
            "column_reach": stencil.reach[0],
            "row_reach": stencil.reach[1],
            "has_scale": stencil.scale is not None,
            "has_own": stencil.own != 0,
            "has_before": stencil.before != 0,
            "source_x": x,
            "source_y": y,
            "num_added": len(self._source.values),
            **self.precision.params,
        }
        return shared | (self._tile_params if self.is_tiled else self._column_params)

    @property
    def _column_params(self) -> dict[str, Param]:
        held_rows, held_columns, held_depth = self.held
        rows, _, depth = self.shape
        if 2 * held_depth >= depth:
            # No cell has a whole star.
            held_rows, held_depth = rows, 0
        return {
            "depth": depth,
            "length": depth + self.padding,
            "held_rows": held_rows,
            "held_columns": held_columns,
            "held_depth": held_depth,
            "depth_reach": self.stencil.reach[2],
            "source_z": (*self._source.cell, 0)[2],
        }

    @property
    def _tile_params(self) -> dict[str, Param]:
        return {
            "tile_rows": self.tile[0],
            "tile_columns": self.tile[1],
            "array_rows": self.shape[0],
            "array_columns": self.shape[1],
            "held_rows": self.held[0],
            "held_columns": self.held[1],
        }


def _check_steps(steps: int) -> None:
    if steps not in range(MAX_STEPS + 1):
        raise error("stencil-steps", f"{steps} steps", help=f"give 0 to {MAX_STEPS:,}")


def _cycles_of_zeros(plan: StencilPlan, steps: int) -> int:
    """Simulated; other numbers take as long."""
    zeros = np.zeros(plan.shape[: plan.stencil.num_dims], plan.precision.given)
    return plan.run(zeros, steps).cycles


def _alike(index: int, size: int, few: int, tile: int) -> int:
    """A cell at the same place of a tile: of few PEs on the one as far from the nearer end."""
    place, middle = index // tile, few // 2
    behind = size - 1 - place
    found = few - 1 - behind if behind < min(place, middle) else min(place, middle)
    return found * tile + index % tile


@takes_operands
def plan_stencil(
    stencil: Stencil,
    shape: tuple[int, ...],
    *,
    size: tuple[int, int] | None = None,
    arch: str = Arch.WSE3,
    precision: str = Precision.F32,
) -> StencilPlan:
    """Plan steps of a stencil.

    Args:
        stencil: what a step does.
        shape: of the array: rows and columns, and depth if offsets have three numbers.
        size: rows and columns of PEs, which share an array of two dims in tiles; None is one PE for
            each row and column of the array.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"``, or ``"f16-f32"``: values are f32 once a step is done, and
            f16 where they are sent and multiplied by coefficients.

    Raises:
        OpenwaferError: it does not fit the fabric, a PE's memory or a message's way, or f16 cannot
            hold its numbers.
    """
    generation, numbers = known_arch(arch), named_precision(precision)
    if len(shape) != stencil.num_dims or min(shape) < 1:
        raise error(
            "kernel-shape",
            f"an array of the shape {shape}; offsets have {stencil.num_dims} numbers",
            help="give an array with a dim for each of them, and with elements",
        )
    rows, columns, depth = (*shape, 1)[:3]
    size = (rows, columns) if size is None else size
    check_rectangle(*size, generation)
    if size[0] > rows or size[1] > columns:
        raise error(
            "kernel-shape",
            f"{size[0]} x {size[1]} PEs for an array of the shape {shape}",
            help="give a PE for each row and column at most",
        )
    plan = StencilPlan(stencil, (rows, columns, depth), size, generation, numbers)
    _check_reach(plan)
    _check_arrays(stencil, shape)
    _check_numbers(stencil, numbers)
    held = f"a tile of {plan.tile[0]} x {plan.tile[1]}" if plan.is_tiled else f"a column of {depth}"
    check_memory(plan.memory_bytes, f"{held} cells of {numbers}")
    return plan


def _check_reach(plan: StencilPlan) -> None:
    """Refuse a star that reaches beyond messages, and PEs that share what they cannot."""
    rows, columns, _ = plan.stencil.reach
    if plan.is_tiled:
        if plan.stencil.num_dims == 3:
            raise error(
                "kernel-shape",
                f"an array of the shape {plan.shape} on {plan.size[0]} x {plan.size[1]} PEs, which "
                "have columns of three dims one by one",
                help="give no size, or one PE for each row and column",
            )
        if rows > plan.tile[0] or columns > plan.tile[1]:
            raise error(
                "stencil-reach",
                f"the star reaches {rows} rows and {columns} columns far; PEs with tiles of "
                f"{plan.tile[0]} x {plan.tile[1]} hear of their neighbours' tiles only",
                help="take fewer PEs, or a PE for each cell",
            )
    elif max(rows, columns) > MAX_REACH:
        raise error(
            "stencil-reach",
            f"the star reaches {max(rows, columns)} PEs far; messages go {MAX_REACH} PEs",
            help="put the longest axis into the depth, or take shorter offsets",
        )


def _check_numbers(stencil: Stencil, precision: Precision) -> None:
    """Refuse what would lose its digits: factors below the normal numbers, and those beyond all."""
    factors = {"coefficients": (np.array([*stencil.coefficients.values()]), precision.given)}
    factors["own and before"] = (np.array([stencil.own, stencil.before]), precision.sums)
    if stencil.scale is not None:
        factors["scale"] = (stencil.scale, precision.sums)
    if stencil.source is not None:
        # What is added may be as small as it likes.
        above = np.maximum(np.abs(stencil.source.values), 1)
        factors["source"] = (above, precision.sums)
    for name, (values, dtype) in factors.items():
        least, most = float(np.finfo(dtype).smallest_normal), float(np.finfo(dtype).max)
        sizes = np.abs(values[values != 0].astype(np.float64))
        wrong = sizes[(sizes < least) | (sizes > most)]
        if wrong.size:
            raise error(
                "stencil-range",
                f"{wrong.size} of {name} have sizes such as {wrong.flat[0]:g}; {dtype} holds "
                f"{least:.2g} to {most:.6g} with all digits",
                help="scale them, or choose precision f32",
            )


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


@takes_operands
def stencil(
    description: Stencil,
    values: NDArray[Any],
    steps: int,
    before: NDArray[Any] | None = None,
    *,
    arch: str = Arch.WSE3,
    precision: str | None = None,
) -> Result:
    """Steps of a stencil on a PE for each row and column: an array to the array after all steps.

    The error of each cell is at most :meth:`StencilPlan.error_bound`. The order of additions
    depends on nothing but the plan, so the bits repeat.

    Args:
        description: what a step does.
        values: (rows, columns) or (rows, columns, depth), float32 or float16.
        steps: 0 or more.
        before: the values a step before; None is zeros.
        arch: ``"wse2"`` or ``"wse3"``.
        precision: ``"f32"``, ``"f16"`` or ``"f16-f32"``; None sums float16 in f32.

    Raises:
        OpenwaferError: shape or type do not fit, or the fabric or a PE's memory is too small.
    """
    numbers = precision_of(precision, values.dtype)
    plan = plan_stencil(description, values.shape, arch=arch, precision=numbers)
    return plan.run(values, steps, before)
