"""A seismic operator, compressed by tiles of low rank, times a wavefield.

The operator of one frequency is what receivers at a depth hear of sources at the surface. Its tiles
are nearly of low rank, and U V^H of each is kept (doi 10.1145/3581784.3627042): the product reads a
fraction of the dense matrix, on PEs that need nothing of each other but the sums of rows.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from openwafer.cli.pictures import BLUE, RED, picture
from openwafer.cli.wafer_demos.shown import Check, Line, Shown, by_the_clock
from openwafer.sdk import kernels
from openwafer.sdk.kernels import Result, TlrMvmPlan

SIZE: Final = 512
"""Sources and receivers."""
TILE: Final = 32
TILES_OF_PE: Final = 4
SPACING: Final = 10.0
"""Of sources and of receivers, in metres."""
DEPTH: Final = 400.0
SPEED: Final = 2000.0
"""Of sound, in metres a second."""
FREQUENCY: Final = 20.0
TOLERANCE: Final = 1e-3
"""Of the compression: part of the operator's Frobenius norm."""

Array = NDArray[Any]


def operator(size: int = SIZE) -> Array:
    """What receivers at :data:`DEPTH` hear of sources above: spherical waves of one frequency."""
    places = SPACING * np.arange(size)
    distances = np.hypot(places[:, None] - places, DEPTH)
    wave = np.exp(-2j * np.pi * FREQUENCY * distances / SPEED)
    return np.asarray(wave * DEPTH / distances)


def run(arch: str) -> Shown:
    """Focus a wavefield at a receiver, and compare it with the dense product."""
    dense = operator()
    a = kernels.compress(dense, (TILE, TILE), TOLERANCE)
    num_tiles = SIZE // TILE
    plan = kernels.plan_tlr_mvm(a, (num_tiles // TILES_OF_PE, num_tiles), arch=arch)
    focus = 2 * SIZE // 3
    x = (dense[focus].conj() / SIZE).astype(np.complex64)
    found = plan.run(x)
    exact = dense @ x.astype(complex)
    checked = checks(plan, x, found, exact, focus)
    return Shown(figures(plan, found), checked, lambda file: draw(file, plan, found.values, exact))


def figures(plan: TlrMvmPlan, found: Result) -> tuple[Line, ...]:
    """Sizes and cycles."""
    ranks = plan.a.ranks
    share = 2 * ranks.sum() / (ranks.size * TILE)
    # A rank has a column of U and one of V, each of two parts, and meets four real products.
    most = 2 * TILE * int(plan.ranks.sum((2, 3)).max())
    return (
        Line("PEs, 4 tiles of 32 x 32 each", f"{plan.rows} x {plan.columns}"),
        Line("ranks: least, mean, most", f"{ranks.min()}, {ranks.mean():.1f}, {ranks.max()}"),
        Line("words of the dense matrix", f"{share:.0%}"),
        Line("cycles of the product", f"{found.cycles:,}, {by_the_clock(found.cycles, plan.arch)}"),
        Line("cycles of the plan", f"{plan.cycles:,}"),
        Line("multiply-adds of a PE, of the cycles", f"{4 * most / found.cycles:.0%}"),
        Line("bytes a cycle that a PE takes of U and V", f"{8 * most / found.cycles:.2f}"),
    )


def checks(
    plan: TlrMvmPlan, x: Array, found: Result, exact: Array, focus: int
) -> tuple[Check, ...]:
    """Roundings, the compression, and where the wavefield is strongest."""
    off = found.values - plan.a.matrix @ x.astype(complex)
    both = np.maximum(np.abs(off.real), np.abs(off.imag))
    worst = float((both / plan.error_bound(x)).max())
    norm = np.linalg.norm(operator(len(x))) * np.linalg.norm(x)
    compression = float(np.linalg.norm(found.values - exact) / norm)
    at = int(np.abs(found.values).argmax())
    return (
        Check(
            "errors against the same tiles", f"{worst:.2f} of their bound", "at most 1", worst <= 1
        ),
        Check(
            "error against the dense product",
            f"{compression:.1e} of the norms",
            f"at most {TOLERANCE:g}",
            compression <= TOLERANCE,
        ),
        Check("receiver that hears most", f"{at}", f"{focus}", at == focus),
    )


def draw(file: Path, plan: TlrMvmPlan, values: Array, exact: Array) -> None:
    """Ranks of all tiles, and what receivers hear."""
    with picture(file, (11.0, 3.6), ncols=2, width_ratios=(1, 2)) as (left, right):
        image = left.imshow(plan.a.ranks, cmap="viridis")
        left.figure.colorbar(image, ax=left)
        left.set(title="ranks of tiles", xlabel="sources", ylabel="receivers")
        places = SPACING * np.arange(len(values))
        right.plot(places, np.abs(exact), color=BLUE, linewidth=2, label="dense product")
        right.plot(places, np.abs(values), ".", color=RED, markersize=3, label="on the wafer")
        right.set(title="wavefield focused at a receiver", xlabel="receiver, m")
        right.legend()
