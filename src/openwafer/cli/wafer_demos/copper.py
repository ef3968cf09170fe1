"""Molecular dynamics of copper by an embedded-atom potential, an atom on each PE.

The potential is that of Sutton and Chen (Philosophical Magazine Letters 61, 1990), which ends
between the third and fourth shell; an atom hears of its neighbours as in arXiv 2405.07898.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import openwafer.sdk as wafer
from openwafer.cli.pictures import BLUE, RED, picture
from openwafer.cli.wafer_demos.shown import Check, Line, Shown, by_the_clock
from openwafer.sdk.kernels.running import STRICT, cycles_of, known_arch

LATTICE: Final = 3.61
"""Constant of the crystal in 1e-10 m, the unit of length."""
ENERGY: Final = 1.2382e-2
"""Of the potential in eV, the unit of energy."""
FACTOR: Final = 39.432
"""Of what the density gives."""
MASS: Final = 63.546
"""In atomic units, the unit of mass."""
TIME: Final = LATTICE * (MASS / ENERGY) ** 0.5 * 10.1805
"""The unit of time in femtoseconds."""
BOLTZMANN: Final = 8.617333e-5 / ENERGY
CUTOFF: Final = 1.32
"""In lattice constants: the third shell is at 1.22, the fourth at 1.41."""
ROW_REACH: Final = 3
COLUMN_REACH: Final = 7
"""PEs: three half cells, of which each has two atoms of a column; two hold a crystal at rest."""
SETTLED: Final = np.array([0.97, 0.97, 0.98])
"""Constants of a film of four layers, whose rims pull it together."""
STEP: Final = 2.0 / TIME
CELLS: Final = (4, 4)
START: Final = 150
"""Kelvin, of which half goes into the springs."""
SHELLS: Final = (0.5**0.5, 1.0, 1.5**0.5)
STEPS: Final = 160
SAMPLED: Final = 20

Places = NDArray[Any]


@dataclass(frozen=True)
class State:
    """All atoms at a time.

    Attributes:
        places, velocities, forces: (rows, columns, 3), float32, by the PE that has the atom.
        cycles: that the steps to this state took.
        num_near: atoms within the cutoff of one, at most.
    """

    places: NDArray[np.float32]
    velocities: NDArray[np.float32]
    forces: NDArray[np.float32]
    cycles: int
    num_near: int


def crystal(cells: tuple[int, int]) -> NDArray[np.float64]:
    """A film of four layers, (4 cells along y, 2 cells along x, 3), each atom near to its PE.

    A column of PEs has the atoms of a half cell along x, two rows those of a half cell along y.
    """
    rows, columns = 4 * cells[0], 2 * cells[1]
    y, x = np.mgrid[:rows, :columns]
    half_y = y // 2
    half_z = 2 * (y % 2) + (x + half_y) % 2
    return np.asarray(np.stack([x, half_y, half_z], -1) / 2 * SETTLED)


def warmed(shape: tuple[int, ...], kelvin: float, seed: int) -> NDArray[np.float64]:
    """Velocities of a temperature, of a crystal that neither moves nor turns at first sight."""
    drawn = np.random.default_rng(seed).normal(0, (BOLTZMANN * kelvin) ** 0.5, shape)
    return np.asarray(drawn - drawn.mean((0, 1)))


def pair(square: Any) -> tuple[Any, Any]:
    """V and R of squared distances, which end at the cutoff with their slope."""
    end = CUTOFF**2
    return tuple(
        square**-power - end**-power + power * end ** (-power - 1) * (square - end)
        for power in (4.5, 3)
    )


def slopes(square: float) -> tuple[float, float]:
    """Of both by the squared distance."""
    end = CUTOFF**2
    one, other = (power * (end ** (-power - 1) - square ** (-power - 1)) for power in (4.5, 3))
    return one, other


def near_pairs(places: Places) -> list[tuple[int, int]]:
    """Of atoms within the cutoff, (atoms, 3), the first one's number is the lower one."""
    distances = np.linalg.norm(places[:, None] - places, axis=-1)
    one, other = np.nonzero(np.triu(distances < CUTOFF, 1))
    return list(zip(one.tolist(), other.tolist(), strict=True))


def energy_and_forces(state: Places) -> tuple[float, NDArray[np.float64]]:
    """Potential energy and (rows, columns, 3) forces by a plain loop over pairs in float64."""
    places = state.reshape(-1, 3).astype(np.float64)
    pairs = near_pairs(places)
    energy, density = 0.0, np.zeros(len(places))
    for i, j in pairs:
        value, shared = pair(((places[j] - places[i]) ** 2).sum())
        energy += value
        density[i] += shared
        density[j] += shared
    embedding = -0.5 * FACTOR / np.sqrt(density)
    forces = np.zeros_like(places)
    for i, j in pairs:
        along = places[j] - places[i]
        one, other = slopes(float((along**2).sum()))
        pull = 2 * (one + (embedding[i] + embedding[j]) * other) * along
        forces[i] += pull
        forces[j] -= pull
    return energy - FACTOR * float(np.sqrt(density).sum()), forces.reshape(state.shape)


def total_energy(state: State) -> float:
    """Potential and kinetic."""
    kinetic = 0.5 * float((state.velocities.astype(np.float64) ** 2).sum())
    return energy_and_forces(state.places)[0] + kinetic


def kelvin_of(state: State) -> float:
    """Temperature of the atoms' velocities."""
    return float((state.velocities.astype(np.float64) ** 2).mean()) / BOLTZMANN


def num_unheard(state: State) -> int:
    """Pairs within the cutoff whose PEs are too far from each other to hear of them."""
    columns = state.places.shape[1]
    pairs = np.array(near_pairs(state.places.reshape(-1, 3).astype(np.float64)))
    away = np.abs(np.diff(np.stack(np.divmod(pairs, columns)), axis=-1))[..., 0]
    return int(((away[0] > COLUMN_REACH) | (away[1] > ROW_REACH)).sum())


def states(places: Places, velocities: Places, num_steps: list[int], arch: str) -> list[State]:
    """What is after 0 steps and after each number of further ones, by velocity Verlet."""
    rows, columns = places.shape[:2]
    params = {
        "rows": rows,
        "columns": columns,
        "row_reach": min(ROW_REACH, columns - 1),
        "column_reach": min(COLUMN_REACH, rows - 1),
    }
    layout = Path(__file__).parent / "programs" / "copper_layout.csl"
    program = wafer.compile(layout, arch=arch, params=params, options=STRICT)
    end = CUTOFF**2
    numbers = [STEP, STEP / 2, end, FACTOR, -4.5 * end**-5.5, end**-3, -3 * end**-4]
    found = []
    with program.run() as run:
        run["place"], run["velocity"] = places.astype(np.float32), velocities.astype(np.float32)
        run["numbers"] = np.tile(np.array(numbers, np.float32), (rows, columns, 1))
        for steps in [0, *num_steps]:
            run.launch("main", steps)
            place, velocity, force = (run[name].copy() for name in ("place", "velocity", "force"))
            taken, near = cycles_of(run, known_arch(arch)), int(run["num_near"].max())
            found.append(State(place, velocity, force, taken, near))
    return found


def distances(found: list[State]) -> NDArray[np.float64]:
    """Of all pairs in all states, in lattice constants."""
    every = [state.places.reshape(-1, 3).astype(np.float64) for state in found]
    upper = np.triu_indices(len(every[0]), 1)
    return np.concatenate([np.linalg.norm(one[:, None] - one, axis=-1)[upper] for one in every])


def most_often(apart: NDArray[np.float64], shell: float) -> float:
    """The distance near to a shell's that most pairs have."""
    counts, edges = np.histogram(apart, np.linspace(0.88 * shell, 1.12 * shell, 25))
    at = int(np.convolve(counts, np.ones(5), "same").argmax())
    return float(edges[at] + edges[at + 1]) / 2


def run(arch: str) -> Shown:
    """Warm a film, and look at its forces, its energy and its shells."""
    start = crystal(CELLS)
    found = states(start, warmed(start.shape, START, 8), [SAMPLED] * (STEPS // SAMPLED), arch)
    last = found[-1]
    _, wanted = energy_and_forces(last.places)
    off = float(np.abs(last.forces - wanted).max() / np.abs(wanted).max())
    energies = np.array([total_energy(state) for state in found])
    drift = float(np.abs(energies / energies[0] - 1).max())
    apart = distances(found[len(found) // 2 :])
    peaks = [most_often(apart, shell) for shell in SHELLS]
    shift = max(abs(peak / shell - 1) for peak, shell in zip(peaks, SHELLS, strict=True))
    a_step = last.cycles / SAMPLED
    unheard = sum(num_unheard(state) for state in found)
    num_candidates = (1 + 2 * ROW_REACH) * (1 + 2 * COLUMN_REACH) - 1
    figures = (
        Line("PEs, an atom each", f"{start.shape[0]} x {start.shape[1]}"),
        Line("atoms that it hears of, and that it acts on", f"{num_candidates}, {last.num_near}"),
        Line("cycles a step of 2 fs", f"{a_step:,.0f}, {by_the_clock(a_step, arch)}"),
        Line("temperature", f"{kelvin_of(last):.0f} K"),
        Line("shells at", ", ".join(f"{LATTICE * peak:.2f}" for peak in peaks) + " 1e-10 m"),
    )
    checks = (
        Check("forces against a loop over pairs", f"{off:.1e}", "within 1e-5", off <= 1e-5),
        Check(f"energy over {STEPS} steps", f"off by {drift:.1e}", "below 1e-4", drift < 1e-4),
        Check("shells against a crystal's", f"off by {shift:.3f}", "within 0.04", shift <= 0.04),
        Check("pairs that PEs did not hear of", f"{unheard}", "none", unheard == 0),
    )
    return Shown(figures, checks, lambda file: draw(file, found, energies, apart))


def draw(
    file: Path, found: list[State], energies: NDArray[np.float64], apart: NDArray[np.float64]
) -> None:
    """Atoms from above, their distances, and both parts of the energy."""
    last = found[-1].places.reshape(-1, 3) * LATTICE
    kinetic = [1.5 * BOLTZMANN * kelvin_of(state) * len(last) for state in found]
    with picture(file, (13.0, 3.8), ncols=3) as panels:
        order = np.argsort(last[:, 2])
        panels[0].scatter(
            *last[order, :2].T, c=last[order, 2], s=260, cmap="copper", edgecolors="black"
        )
        panels[0].set(title="atoms from above", xlabel="1e-10 m", aspect="equal")
        inner = apart[apart < 1.7] * LATTICE
        panels[1].hist(inner, 160, weights=1 / inner**2, color=BLUE)
        for shell in SHELLS:
            panels[1].axvline(shell * LATTICE, color=RED, linewidth=0.8)
        panels[1].set(title="radial distribution", xlabel="1e-10 m", yticks=[])
        times = np.cumsum([0, *([SAMPLED * 2e-3] * (len(found) - 1))])
        for values, name, color in (
            (kinetic, "kinetic", RED),
            (energies - energies[0], "total, from its start", BLUE),
        ):
            panels[2].plot(times, np.array(values) * ENERGY, color=color, label=name)
        panels[2].set(title="energy in eV", xlabel="picoseconds")
        panels[2].legend(frameon=False)
