"""Cross-sections of particles in a mixture of nuclides, as Monte Carlo transport asks for them.

Tables are spread in bands of energy over rows of PEs and by nuclides over columns; particles come
to them (arXiv 2311.01739): they are sorted into their bands, dealt evenly, and go around.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import openwafer.sdk as wafer
from openwafer.cli.pictures import BLUE, INK, RED, picture
from openwafer.cli.wafer_demos.shown import Check, Line, Shown, by_the_clock
from openwafer.diagnostics import error
from openwafer.sdk.kernels.operands import check_finite
from openwafer.sdk.kernels.precision import gamma
from openwafer.sdk.kernels.running import (
    CODE_BYTES,
    STRICT,
    check_memory,
    cycles_of,
    known_arch,
)

REACTIONS: Final = 5
RECORD: Final = 2 + REACTIONS
SHAPE: Final = (12, 16)
PARTICLES: Final = 20
"""Of a PE."""
POINTS: Final = 400
RANGE: Final = (1e-2, 1e4)
NUM_ROUNDINGS: Final = 12
"""Of an interpolation, beside the sum over nuclides."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Nuclide:
    """A table.

    Attributes:
        density: of the mixture.
        energies: (points,), float32, each greater than the one before.
        sections: (points, 5), float32, a column for each reaction.
    """

    density: np.float32
    energies: NDArray[np.float32]
    sections: NDArray[np.float32]


@dataclass(frozen=True)
class Found:
    """Macroscopic cross-sections.

    Attributes:
        sums: (particles, 5), float32.
        cycles: of all phases.
        most: particles of a PE at the beginning, after sorting, and after dealing.
    """

    sums: NDArray[np.float32]
    cycles: int
    most: tuple[int, int, int]


def mixture(num: int, points: int) -> list[Nuclide]:
    """Nuclides with resonances at random energies over a background that falls with velocity."""
    rng = np.random.default_rng(11)
    low, high = np.log(RANGE)
    found = []
    for _ in range(num):
        inner = rng.uniform(low, high, points - 2)
        energies = np.exp(np.sort(np.concatenate([[low, high], inner])))
        peaks, widths = np.exp(rng.uniform(low, high, 8)), rng.uniform(0.02, 0.2, 8)
        shapes = 1 / (1 + ((energies[:, None] / peaks - 1) / widths) ** 2)
        resonant = shapes @ rng.uniform(5, 60, (8, REACTIONS))
        sections = 2 / np.sqrt(energies[:, None]) + resonant
        # The rim of the float32 table is that of the range.
        energies[0], energies[-1] = RANGE[0] * 0.999, RANGE[1] * 1.001
        density = np.float32(rng.uniform(0.1, 1))
        found.append(Nuclide(density, energies.astype(np.float32), sections.astype(np.float32)))
    return found


def particles(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """Energies in the range, evenly by their logarithm."""
    low, high = np.log(RANGE)
    return np.exp(np.random.default_rng(seed).uniform(low, high, shape)).astype(np.float32)


def walk(nuclides: list[Nuclide], energies: Array) -> Array:
    """The same sums by a walk through each whole table in float64, (particles, 5)."""
    total = np.zeros((len(energies), REACTIONS))
    for one in nuclides:
        for reaction in range(REACTIONS):
            values = np.interp(energies, one.energies, one.sections[:, reaction])
            total[:, reaction] += float(one.density) * values
    return total


def error_bound(exact: Array, num_nuclides: int) -> Array:
    """Of sums of positive terms: so many roundings each may have gone through."""
    return np.asarray(gamma(NUM_ROUNDINGS + num_nuclides, np.dtype(np.float32)) * exact)


def parts(nuclides: list[Nuclide], bounds: Array) -> tuple[Array, Array]:
    """Energies and sections of each band and nuclide, padded to the search's power of two."""
    begins = [np.searchsorted(n.energies, bounds[:-1], side="right") - 1 for n in nuclides]
    ends = [np.searchsorted(n.energies, bounds[1:], side="left") + 1 for n in nuclides]
    longest = max(int((e - b).max()) for b, e in zip(begins, ends, strict=True))
    size = 1 << max(1, (longest - 1).bit_length())
    rows = len(bounds) - 1
    energies = np.full((rows, len(nuclides), size + 1), np.finfo(np.float32).max, np.float32)
    sections = np.zeros((rows, len(nuclides), size + 1, REACTIONS), np.float32)
    for x, one in enumerate(nuclides):
        for y in range(rows):
            part = slice(int(begins[x][y]), int(ends[x][y]))
            length = part.stop - part.start
            energies[y, x, :length] = one.energies[part]
            sections[y, x, :length] = one.sections[part]
    return energies, sections.reshape(rows, len(nuclides), -1)


def most_of(energies: Array, bounds: Array) -> tuple[int, int, int]:
    """Particles of a PE in its band, dealt evenly, and on their way, at most.

    Args:
        energies: (rows, columns, particles): of those that begin on each PE.
        bounds: (rows + 1,): of the bands.
    """
    rows, columns, _ = energies.shape
    band = np.searchsorted(bounds, energies, side="right") - 1
    arrivals = np.array([(band == y).sum((0, 2)) for y in range(rows)])
    even = int(-(-arrivals.sum(1).max() // columns))
    begun_elsewhere = (band != np.arange(rows)[:, None, None]).sum(2)
    return int(arrivals.max()), even, int(max(begun_elsewhere.max(), arrivals.max() - even))


def check_energies(energies: Array) -> None:
    """Refuse energies that no band has: their particles would not come back.

    Raises:
        OpenwaferError: there are some.
    """
    check_finite("energies", energies)
    low, high = np.array(RANGE, np.float32)
    wrong = energies[(energies < low) | (energies > high)]
    if wrong.size:
        raise error(
            "kernel-range",
            f"{wrong.size} of the {energies.size} energies are out of the range of {low:g} to "
            f"{high:g}; the first one is {wrong[0]:g}",
            help="leave these particles out",
        )


def look_up(nuclides: list[Nuclide], energies: Array, arch: str) -> Found:
    """Cross-sections of particles on the wafer.

    Args:
        nuclides: one for each column of PEs.
        energies: (rows, columns, particles), float32, in the range: of those that begin on a PE.
        arch: ``"wse2"`` or ``"wse3"``.

    Raises:
        OpenwaferError: an energy is no number or out of range, or a PE has no room for so many
            particles or points.
    """
    check_energies(energies)
    rows, columns, num = energies.shape
    bounds = np.quantile(energies, np.linspace(0, 1, rows + 1)).astype(np.float32)
    bounds[0], bounds[-1] = RANGE[0], RANGE[1] * np.float32(1.0005)
    points, sections = parts(nuclides, bounds)
    sorted_most, even, moved = most_of(energies, bounds)
    kept = max(sorted_most, even)
    words = 2 * num + 2 * kept + 2 * max(2 * moved, RECORD * even) + 7 * points.shape[2]
    check_memory(4 * words + CODE_BYTES, f"{kept} particles and {points.shape[2]} points")
    params = {
        "rows": rows,
        "columns": columns,
        "num_points": points.shape[2] - 1,
        "most_begun": num,
        "most_kept": kept,
        "most_moved": moved,
        "most_dealt": even,
    }
    layout = Path(__file__).parent / "programs" / "lookup_layout.csl"
    program = wafer.compile(layout, arch=arch, params=params, options=STRICT)
    begun = np.zeros((rows, columns, 1 + 2 * num), np.uint32)
    begun[..., 0] = num
    begun[..., 1::2] = energies.astype(np.float32).view(np.uint32)
    begun[..., 2::2] = np.arange(energies.size).reshape(energies.shape)
    with program.run() as run:
        run["begun"], run["energies"], run["sections"] = begun, points, sections
        run["per_width"] = 1 / np.maximum(np.diff(points), np.finfo(np.float32).tiny)
        run["band"] = np.repeat(np.stack([bounds[:-1], bounds[1:]], -1)[:, None], columns, 1)
        densities = np.array([one.density for one in nuclides])
        run["density"] = np.broadcast_to(densities[:, None], (rows, columns, 1))
        run.launch("main")
        lists = run["first" if columns % 2 else "second"].copy()
        cycles = cycles_of(run, known_arch(arch))
    return Found(collected(lists, energies.size), cycles, (num, sorted_most, even))


def collected(lists: NDArray[np.uint32], size: int) -> NDArray[np.float32]:
    """Sums in the order of particles' numbers; what did not come back is NaN."""
    sums = np.full((size, REACTIONS), np.nan, np.float32)
    for found in lists.reshape(-1, lists.shape[-1]):
        records = found[1 : 1 + RECORD * found[0]].reshape(-1, RECORD)
        sums[records[:, 1]] = records[:, 2:].view(np.float32)
    return sums


def run(arch: str) -> Shown:
    """Look up all particles, and compare with a walk through the tables."""
    nuclides = mixture(SHAPE[1], POINTS)
    energies = particles((*SHAPE, PARTICLES), 5)
    found = look_up(nuclides, energies, arch)
    exact = walk(nuclides, energies.ravel())
    worst = float((np.abs(found.sums - exact) / error_bound(exact, SHAPE[1])).max())
    a_lookup = found.cycles / (found.most[2] * SHAPE[1])
    figures = (
        Line("PEs: bands of energy, nuclides", f"{SHAPE[0]} x {SHAPE[1]}"),
        Line("particles of a PE: begun, sorted, dealt", ", ".join(map(str, found.most))),
        Line("cycles of all phases", f"{found.cycles:,}, {by_the_clock(found.cycles, arch)}"),
        Line("cycles a particle and nuclide", f"{a_lookup:.0f}"),
    )
    num_lost = int(np.isnan(found.sums).any(1).sum())
    checks = (
        Check("particles that did not come back", f"{num_lost}", "none", num_lost == 0),
        Check(
            "errors against a walk through tables",
            f"{worst:.2f} of their bound",
            "at most 1",
            worst <= 1,
        ),
    )
    drawn = energies.ravel(), found.sums, nuclides
    return Shown(figures, checks, lambda file: draw(file, *drawn))


def draw(file: Path, energies: Array, sums: Array, nuclides: list[Nuclide]) -> None:
    """Sums by energy: of the walk as a line, of the wafer as points."""
    line = np.geomspace(*RANGE, 4000)
    exact = walk(nuclides, line)
    with picture(file, (12.0, 3.6)) as axes:
        for reaction, color in ((0, BLUE), (2, RED), (4, INK)):
            axes.loglog(line, exact[:, reaction], color=color, linewidth=0.7)
            axes.loglog(energies, sums[:, reaction], ".", color=color, markersize=2)
        axes.set(title="macroscopic cross-sections of three reactions", xlabel="energy")
