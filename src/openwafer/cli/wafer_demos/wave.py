"""A seismic shot in three dims: the acoustic wave equation by a star of 25 points.

The second-order wave equation in time, with central differences of order 8 in space, as in the
public 25-point example and in arXiv 2204.03775.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.cli.pictures import picture
from openwafer.cli.wafer_demos.shown import Check, Line, Shown, by_the_clock, order_check
from openwafer.sdk import kernels
from openwafer.sdk.kernels import Source, Stencil

DIFFERENCES: Final = (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560)
"""Of the second derivative, by distance."""
EXAMPLE_SPACING: Final = 20
EXAMPLE_SCALE: Final = 10.3703699112
"""Square of the velocity times that of the time step."""
EXAMPLE_RANGE: Final = (-0.0939295, 57.403816)
"""Of the public example after two steps on 10 x 10 x 10 cells."""
PACKETS: Final = ((23, 6), (35, 30), (47, 96))
"""Cells and steps: a step is in proportion to the fourth power of the spacing."""
PACKET_WIDTH: Final = 0.09
PACKET_WAY: Final = 0.1
SHOT: Final = (24, 24, 32)
SHOT_STEPS: Final = 60
TIMED: Final = (100, 300)
"""Cells of a column for which cycles are counted."""


def published_cycles(depth: int) -> float:
    """Of a step on the wafer, as a line through the published points (arXiv 2204.03775)."""
    return 1140 + 63.0 * depth


def wave(axes: tuple[bool, bool, bool], spacing: float = 1.0) -> dict[tuple[int, ...], float]:
    """Coefficients of the sum of second derivatives along some axes."""
    found: dict[tuple[int, ...], float] = {(0, 0, 0): sum(axes) * DIFFERENCES[0] / spacing**2}
    for axis, is_there in enumerate(axes):
        for distance in range(1, 5) if is_there else ():
            for way in (-distance, distance):
                offset = tuple(way if axis == other else 0 for other in range(3))
                found[offset] = DIFFERENCES[distance] / spacing**2
    return found


def ricker(steps: int) -> NDArray[np.float32]:
    """The pulse of the public example: a source's strength in each step."""
    peak, scale, step = 25.0, 8.0, 0.001610153
    sigma = 0.6 * peak
    power = (sigma * step * np.arange(steps) - 1.0) ** 2
    values = -2 * scale * sigma * (sigma - 2 * sigma * scale * power) * np.exp(-scale * power)
    return np.asarray(values, np.float32)


def shot(shape: tuple[int, int, int], cell: tuple[int, int, int], steps: int) -> Stencil:
    """The public example's step, with its pulse in one cell."""
    return Stencil(
        wave((True, True, True), EXAMPLE_SPACING),
        own=2.0,
        before=-1.0,
        scale=np.full(shape, EXAMPLE_SCALE, np.float32),
        source=Source(cell, ricker(steps)),
    )


def example_range(arch: str) -> tuple[float, float]:
    """Least and largest value of the public example after two steps."""
    shape = (10, 10, 10)
    stencil = shot(shape, (0, 0, 0), 2)
    values = kernels.stencil(stencil, np.zeros(shape, np.float32), 2, arch=arch).values
    return float(values.min()), float(values.max())


def packet_errors(axis: int, arch: str) -> list[float]:
    """Largest errors of a packet that moves along an axis, on three grids."""
    errors = []
    for cells, steps in PACKETS:
        spacing, step = 1 / (cells + 1), PACKET_WAY / steps
        ratio = (step / spacing) ** 2
        along = tuple(axis == other for other in range(3))
        coefficients = {k: ratio * c for k, c in wave((along[0], along[1], along[2])).items()}
        places = spacing * np.arange(1, cells + 1)
        shape = tuple(cells if one else 1 for one in along)
        now, before = (packet(places, t).reshape(shape) for t in (0.0, -step))
        moved = kernels.stencil(
            Stencil(coefficients, own=2.0, before=-1.0), now, steps, before, arch=arch
        )
        exact = packet(places, PACKET_WAY)
        errors.append(float(np.abs(moved.values.ravel() - exact).max()))
    return errors


def packet(places: NDArray[Any], time: float) -> NDArray[np.float32]:
    """A plane wave that moves with velocity 1."""
    values = np.exp(-(((places - 0.4 - time) / PACKET_WIDTH) ** 2))
    return np.asarray(values, np.float32)


def cycles_of_a_step(depth: int, arch: str) -> float:
    """On 9 x 9 PEs, of which the one in the middle has all its neighbours."""
    shape = (9, 9, depth)
    plan = kernels.plan_stencil(shot(shape, (4, 4, 0), 1), shape, arch=arch)
    zeros = np.zeros(shape, np.float32)
    few, more = (plan.run(zeros, steps).cycles for steps in (2, 6))
    return (more - few) / 4


def run(arch: str) -> Shown:
    """The public example's values, packets along three axes, cycles, and a picture of a shot."""
    spacings = [1 / (cells + 1) for cells, _ in PACKETS]
    checks = [range_check(example_range(arch))]
    for axis, name in enumerate(("columns", "rows", "depth")):
        check = order_check(spacings, packet_errors(axis, arch), 8, 0.6)
        checks.append(Check(f"{check.what}, along {name}", check.value, check.wanted, check.holds))
    figures = []
    for depth in TIMED:
        taken = cycles_of_a_step(depth, arch)
        text = f"{taken:,.0f}, {by_the_clock(taken, arch)}; published for WSE-2"
        figures.append(
            Line(f"cycles a step, {depth} cells a PE", f"{text} {published_cycles(depth):,.0f}")
        )
    rows, columns, depth = SHOT
    source = (rows // 2, columns // 2, depth // 4)
    zeros = np.zeros(SHOT, np.float32)
    field = kernels.stencil(shot(SHOT, source, SHOT_STEPS), zeros, SHOT_STEPS, arch=arch)
    figures.append(
        Line(f"cycles of {SHOT_STEPS} steps, {rows} x {columns} PEs", f"{field.cycles:,}")
    )
    return Shown(tuple(figures), tuple(checks), lambda file: draw(file, field.values, source))


def range_check(found: tuple[float, float]) -> Check:
    """The public example's range against the published one."""
    holds = np.allclose(found, EXAMPLE_RANGE, rtol=1e-4, atol=0)
    wanted = f"as published, {EXAMPLE_RANGE[0]} to {EXAMPLE_RANGE[1]}, within 1e-4"
    text = f"{found[0]:.7f} to {found[1]:.6f}"
    return Check("10 x 10 x 10 cells, 2 steps", text, wanted, bool(holds))


def draw(file: Path, field: NDArray[np.float32], source: tuple[int, int, int]) -> None:
    """The wave on two planes through the source."""
    most = float(np.abs(field).max()) / 4
    planes = {"from above": field[:, :, source[2]], "along a row": field[source[0]].T}
    with picture(file, (10.0, 4.5), ncols=2) as panels:
        for axes, (name, plane) in zip(panels, planes.items(), strict=True):
            axes.imshow(plane, cmap="seismic", vmin=-most, vmax=most, interpolation="bicubic")
            axes.set(title=name, xticks=[], yticks=[])
