"""A fluid by lattice Boltzmann, a cell on each PE: a decaying vortex, and a cavity with a lid.

Nine velocities and one relaxation time, in the incompressible form of He and Luo (Journal of
Statistical Physics 88, 1997); walls lie half a cell outside.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import openwafer.sdk as wafer
from openwafer.cli.pictures import BLUE, RED, picture
from openwafer.cli.wafer_demos.shown import Check, Line, Shown, by_the_clock, order_check
from openwafer.sdk.kernels.running import STRICT, Result, cycles_of, known_arch

VELOCITIES: Final = np.array(
    [(1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 0), (0, 1), (0, -1)]
)
"""East and north, of each population in the PE's order."""
WEIGHTS: Final = np.array([4, 1, 1, 4, 1, 1, 16, 4, 4]) / 36
OPPOSITE: Final = [3, 5, 4, 0, 2, 1, 6, 8, 7]
VORTEX_SIZES: Final = (6, 12, 24)
VORTEX_VISCOSITY: Final = 0.1
VORTEX_SPEED: Final = 0.24
"""Times one over the number of cells a side, so that errors of both kinds fall with its square."""
VORTEX_TIME: Final = 0.35
"""Exponent of the decay of energy."""
CAVITY: Final = 21
LID: Final = 0.2
REYNOLDS: Final = 100
CAVITY_STEPS: Final = 2000
COMPARED_STEPS: Final = 100
GHIA: Final = np.array(
    [
        (0.0547, -0.03717),
        (0.1016, -0.06434),
        (0.1719, -0.10150),
        (0.2813, -0.15662),
        (0.4531, -0.21090),
        (0.5, -0.20581),
        (0.6172, -0.13641),
        (0.7344, 0.00332),
        (0.8516, 0.23151),
        (0.9531, 0.68717),
    ]
)
"""Height and velocity on the middle line of a cavity (Ghia, Ghia and Shin, 1982, Reynolds 100)."""

Field = NDArray[Any]


def equilibrium(density: Field, velocity: Field) -> Field:
    """Populations above their weights, (..., 9), of a density above 1 and a velocity (..., 2)."""
    along = velocity @ VELOCITIES.T
    square = (velocity**2).sum(-1, keepdims=True)
    total = density[..., None] + 3 * along + 4.5 * along**2 - 1.5 * square
    return np.asarray(WEIGHTS * total)


def velocity_of(populations: Field) -> Field:
    """East and north, (..., 2)."""
    return np.asarray(populations.astype(np.float64) @ VELOCITIES)


def flow(
    populations: Field, steps: int, rate: float, arch: str, *, lid: float = 0.0, is_slip: bool
) -> Result:
    """Populations, (rows, columns, 9), after so many steps on the wafer, from north to south."""
    layout = Path(__file__).parent / "programs" / "fluid_layout.csl"
    rows, columns = populations.shape[:2]
    params = {"rows": rows, "columns": columns, "is_slip": is_slip}
    program = wafer.compile(layout, arch=arch, params=params, options=STRICT)
    with program.run() as run:
        run["populations"] = populations.astype(np.float32)
        run.launch("main", steps, rate, lid)
        return Result(run["populations"].copy(), cycles_of(run, known_arch(arch)))


def by_numpy(populations: Field, steps: int, rate: float, lid: float) -> Field:
    """The same between walls that do not slip, in float64, by a shift of each population."""
    now = populations.astype(np.float64)
    rows, columns = now.shape[:2]
    y, x = np.mgrid[:rows, :columns]
    for _ in range(steps):
        relaxed = now + rate * (equilibrium(now.sum(-1), velocity_of(now)) - now)
        for i, (east, north) in enumerate(VELOCITIES):
            from_x, from_y = x - east, y + north
            is_inside = (from_x >= 0) & (from_x < columns) & (from_y >= 0) & (from_y < rows)
            pushed = np.where(from_y < 0, 6 * WEIGHTS[i] * lid * east, 0)
            back = relaxed[..., OPPOSITE[i]] + pushed
            now[..., i] = np.where(is_inside, relaxed[from_y % rows, from_x % columns, i], back)
    return now


def vortex(size: int, time: float) -> tuple[Field, Field]:
    """Density above 1 and velocity of a vortex between walls that slip, at the exponent `time`."""
    height, place = np.meshgrid(*[np.pi * (np.arange(size) + 0.5) / size] * 2, indexing="ij")
    height = height[::-1]
    speed = VORTEX_SPEED / size * np.exp(-time)
    east, north = np.sin(place) * np.cos(height), -np.cos(place) * np.sin(height)
    density = 0.75 * speed**2 * (np.cos(2 * place) + np.cos(2 * height))
    return density, speed * np.stack([east, north], -1)


def vortex_error(size: int, arch: str) -> tuple[float, float]:
    """Of the velocity, as a share of the exact one, and the mass that was won or lost."""
    steps = round(VORTEX_TIME / (2 * VORTEX_VISCOSITY * (np.pi / size) ** 2))
    start = equilibrium(*vortex(size, 0.0)).astype(np.float32)
    rate = 1 / (3 * VORTEX_VISCOSITY + 0.5)
    end = flow(start, steps, rate, arch, is_slip=True).values
    _, exact = vortex(size, steps * 2 * VORTEX_VISCOSITY * (np.pi / size) ** 2)
    error = np.linalg.norm(velocity_of(end) - exact) / np.linalg.norm(exact)
    lost = end.sum(dtype=np.float64) - start.sum(dtype=np.float64)
    return float(error), float(abs(lost) / size**2)


def run(arch: str) -> Shown:
    """A vortex on three grids, then a cavity: against numpy's, and against published velocities."""
    errors, lost = zip(*[vortex_error(size, arch) for size in VORTEX_SIZES], strict=True)
    rest = np.zeros((CAVITY, CAVITY, 9), np.float32)
    rate = 1 / (3 * LID * CAVITY / REYNOLDS + 0.5)
    early = flow(rest, COMPARED_STEPS, rate, arch, lid=LID, is_slip=False)
    wanted = by_numpy(rest, COMPARED_STEPS, rate, LID)
    off = float(np.abs(early.values - wanted).max())
    left = CAVITY_STEPS - COMPARED_STEPS
    cavity = flow(early.values, left, rate, arch, lid=LID, is_slip=False)
    velocity = velocity_of(cavity.values) / LID
    mass = float(abs(cavity.values.sum(dtype=np.float64))) / CAVITY**2
    heights = 1 - (np.arange(CAVITY) + 0.5) / CAVITY
    middle = np.interp(GHIA[:, 0], heights[::-1], velocity[::-1, CAVITY // 2, 0])
    from_ghia = float(np.abs(middle - GHIA[:, 1]).max())
    a_step = cavity.cycles / left
    figures = (
        Line("PEs, a cell each", f"{CAVITY} x {CAVITY}"),
        Line("cycles a step", f"{a_step:.1f}"),
        Line("the same by the clock, on any rectangle", by_the_clock(a_step, arch)),
    )
    order = order_check([1 / size for size in VORTEX_SIZES], list(errors), 2, 0.2)
    most = max(*lost, mass)
    checks = (
        order,
        Check("mass of a cell won or lost", f"{most:.1e}", "at most 1e-6 of it", most <= 1e-6),
        Check(f"{COMPARED_STEPS} steps against numpy's", f"{off:.1e}", "within 1e-6", off <= 1e-6),
        Check(
            "velocities in the middle, published ones",
            f"off by {from_ghia:.3f}",
            "at most 0.02 of the lid's",
            from_ghia <= 0.02,
        ),
    )
    return Shown(figures, checks, lambda file: draw(file, velocity, heights))


def draw(file: Path, velocity: Field, heights: Field) -> None:
    """Speeds and streamlines in the cavity, the curl, and the middle line."""
    with picture(file, (12.0, 3.8), ncols=3) as panels:
        east, north = velocity[::-1, :, 0], velocity[::-1, :, 1]
        places = heights[::-1]
        panels[0].pcolormesh(places, places, np.hypot(east, north), cmap="turbo", shading="gouraud")
        panels[0].streamplot(places, places, east, north, color="white", linewidth=0.6)
        panels[0].set(title="speed", xticks=[], yticks=[], aspect="equal")
        panels[0].margins(0)
        curl = np.gradient(north, places, axis=1) - np.gradient(east, places, axis=0)
        panels[1].pcolormesh(
            places, places, curl, cmap="seismic", vmin=-8, vmax=8, shading="gouraud"
        )
        panels[1].set(title="curl", xticks=[], yticks=[], aspect="equal")
        panels[2].plot(velocity[:, CAVITY // 2, 0], heights, color=BLUE, label="on the wafer")
        panels[2].plot(GHIA[:, 1], GHIA[:, 0], "o", color=RED, label="Ghia et al. 1982")
        panels[2].set(title="velocity on the middle line", xlabel="of the lid's", ylabel="height")
        panels[2].legend(frameon=False)
