"""Flow through a porous medium: conjugate gradients for two-point fluxes, without a matrix."""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg

from openwafer.cli.pictures import BLUE, RED, picture
from openwafer.cli.wafer_demos.shown import Check, Line, Shown, by_the_clock
from openwafer.sdk import kernels
from openwafer.sdk.kernels import Fluxes

SHAPE: Final = (16, 24, 10)
ITERATIONS: Final = 200
TOLERANCE: Final = 1e-5
COMPARED: Final = 30
"""Iterations whose residuals are compared: later ones differ by what rounding has added up to."""
WITHIN: Final = 1e-3

Field = NDArray[np.float32]


def medium(shape: tuple[int, int, int]) -> Field:
    """Permeabilities over an order of magnitude, alike in neighbouring cells."""
    noise = np.random.default_rng(3).normal(size=shape)
    for axis in range(3):
        for _ in range(4):
            noise += np.roll(noise, 1, axis) + np.roll(noise, -1, axis)
    return np.asarray(10 ** (0.5 * noise / np.abs(noise).max()), np.float32)


def fluxes_of(permeability: Field) -> Fluxes:
    """Harmonic means at the faces, and wells along two sides that hold their pressure."""
    means = []
    for axis in range(3):
        one, other = (np.delete(permeability, at, axis) for at in (-1, 0))
        means.append(2 * one * other / (one + other))
    storage = np.zeros_like(permeability)
    storage[:, 0] = storage[:, -1] = 10
    return Fluxes(means[0], means[1], means[2], storage)


def product(fluxes: Fluxes, pressure: NDArray[np.float64]) -> NDArray[np.float64]:
    """The matrix times a field by numpy in float64."""
    total = fluxes.diagonal.astype(np.float64) * pressure
    for axis in range(3):
        for faces, step in zip(fluxes.faces(axis), (1, -1), strict=True):
            # What is rolled around meets a face without conductance.
            total -= faces * np.roll(pressure, step, axis)
    return total


def by_scipy(fluxes: Fluxes, right_side: Field, iterations: int) -> NDArray[np.float64]:
    """Norms of scipy's residuals, each relative to the first one."""
    shape, size = right_side.shape, right_side.size
    matrix = LinearOperator((size, size), lambda u: product(fluxes, u.reshape(shape)).ravel())
    b = right_side.ravel().astype(np.float64)
    norms = [1.0]

    def note(values: NDArray[np.float64]) -> None:
        norms.append(float(np.linalg.norm(b - matrix @ values) / np.linalg.norm(b)))

    cg(matrix, b, rtol=0, maxiter=iterations, callback=note)
    return np.array(norms)


def run(arch: str) -> Shown:
    """Pressure between two rows of wells, residuals beside scipy's, and what flows in and out."""
    permeability = medium(SHAPE)
    fluxes = fluxes_of(permeability)
    wells = np.zeros(SHAPE, np.float32)
    wells[:, 0], wells[:, -1] = 10, -10
    solution = kernels.conjugate_gradients(fluxes, wells, ITERATIONS, TOLERANCE, arch=arch)
    norms = by_scipy(fluxes, wells, COMPARED)
    off = float(np.abs(solution.norms[: len(norms)] / norms - 1).max())
    flows = fluxes.storage * (np.sign(wells) - solution.values)
    balance = float(abs(flows.sum()) / np.abs(flows).sum())
    num_done = len(solution.norms) - 1
    a_turn = solution.cycles / num_done
    figures = (
        Line("PEs, a column of cells each", f"{SHAPE[0]} x {SHAPE[1]}, {SHAPE[2]} cells"),
        Line(f"iterations to a residual of {TOLERANCE:g}", f"{num_done}"),
        Line("cycles an iteration", f"{a_turn:,.0f}, {by_the_clock(a_turn, arch)}"),
    )
    checks = (
        Check(
            f"{COMPARED} residuals against scipy's", f"{off:.1e}", f"within {WITHIN}", off < WITHIN
        ),
        Check("what flows in and not out", f"{balance:.1e}", "below 1e-3 of all", balance < 1e-3),
    )
    drawn = solution.values[..., SHAPE[2] // 2], permeability[..., SHAPE[2] // 2]
    return Shown(figures, checks, lambda file: draw(file, *drawn, solution.norms, norms))


def draw(
    file: Path,
    pressure: Field,
    permeability: Field,
    ours: NDArray[np.float64],
    theirs: NDArray[np.float64],
) -> None:
    """A layer of both fields, and the residuals."""
    with picture(file, (13.0, 3.2), ncols=3) as panels:
        panels[0].imshow(np.log10(permeability), cmap="copper")
        panels[1].imshow(pressure, cmap="coolwarm")
        for axes, name in zip(panels, ("permeability", "pressure"), strict=False):
            axes.set(title=name, xticks=[], yticks=[])
        panels[2].semilogy(ours, color=BLUE, label="on the wafer")
        panels[2].semilogy(theirs, "--", color=RED, label="scipy in float64")
        panels[2].set(title="residual", xlabel="iteration")
        panels[2].legend(frameon=False)
