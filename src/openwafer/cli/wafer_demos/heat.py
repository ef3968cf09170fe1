"""Heat in a plate whose rim is cold: against the exact solution, and as a picture."""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from openwafer.cli.pictures import BLUE, picture
from openwafer.cli.wafer_demos.shown import Line, Shown, by_the_clock, order_check
from openwafer.sdk import kernels
from openwafer.sdk.kernels import Result, Stencil

SIZES: Final = (7, 15, 31)
"""Cells inside of the rim, a side."""
RATE: Final = 0.2
"""Of what flows to a neighbour in a step; a rate of 1/4 or less is stable."""
TIME: Final = 0.05
"""In which a plate of side 1 and diffusivity 1 loses two thirds of its slowest wave."""
PICTURED_STEPS: Final = (0, 10, 60, 300)

HEAT: Final = Stencil(
    {(0, 0): 1 - 4 * RATE, (0, 1): RATE, (0, -1): RATE, (1, 0): RATE, (-1, 0): RATE}
)


def run(arch: str) -> Shown:
    """Compare the slowest wave with its exact solution on three grids, and spread hot squares."""
    errors, last = [], None
    for size in SIZES:
        last, steps = slowest_wave(size, arch)
        inside = np.arange(1, size + 1) / (size + 1)
        exact = np.exp(-2 * np.pi**2 * TIME) * np.outer(*[np.sin(np.pi * inside)] * 2)
        errors.append(float(np.abs(last.values - exact).max()))
    spacings = [1 / (size + 1) for size in SIZES]
    assert last is not None
    a_step = last.cycles / steps
    figures = (
        Line("PEs, a cell each", f"{SIZES[-1]} x {SIZES[-1]}"),
        Line("cycles a step", f"{a_step:.1f}"),
        Line("the same by the clock, on any rectangle", by_the_clock(a_step, arch)),
        Line("largest errors", ", ".join(f"{one:.2e}" for one in errors)),
    )
    plates = [spread(n, arch) for n in PICTURED_STEPS]
    check = order_check(spacings, errors, 2, 0.1)
    return Shown(figures, (check,), lambda file: draw(file, plates, spacings, errors))


def slowest_wave(size: int, arch: str) -> tuple[Result, int]:
    """It after :data:`TIME` on a grid of so many cells a side, and the number of steps."""
    spacing = 1 / (size + 1)
    steps = round(TIME / (RATE * spacing**2))
    inside = np.sin(np.pi * spacing * np.arange(1, size + 1))
    return kernels.stencil(
        HEAT, np.outer(inside, inside).astype(np.float32), steps, arch=arch
    ), steps


def spread(steps: int, arch: str) -> NDArray[np.float32]:
    """Hot squares after so many steps."""
    plate = np.zeros((SIZES[-1], SIZES[-1]), np.float32)
    for row, column, side in ((4, 5, 6), (8, 20, 8), (21, 9, 5), (22, 22, 3)):
        plate[row : row + side, column : column + side] = 1
    return kernels.stencil(HEAT, plate, steps, arch=arch).values


def draw(
    file: Path, plates: list[NDArray[np.float32]], spacings: list[float], errors: list[float]
) -> None:
    """Plates beside each other, and the errors by the spacing of cells."""
    with picture(file, (14.0, 3.0), ncols=len(plates) + 1) as panels:
        for axes, plate, steps in zip(panels, plates, PICTURED_STEPS, strict=False):
            axes.imshow(plate, cmap="inferno", vmin=0, vmax=1)
            axes.set(title=f"{steps} steps", xticks=[], yticks=[])
        panels[-1].loglog(spacings, errors, "o-", color=BLUE)
        panels[-1].loglog(spacings, [errors[-1] * (h / spacings[-1]) ** 2 for h in spacings], ":")
        panels[-1].set(title="largest error, and order 2", xlabel="spacing")
