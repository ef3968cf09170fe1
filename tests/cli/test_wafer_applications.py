"""Applications of the wafer, small, against programs that share nothing with them."""

import numpy as np
import pytest

from openwafer.cli.wafer_demos import copper, fluid, lookup, tlr
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk import kernels
from tests.tables import case

WSE2_SLOWLY = ["wse3", case("wse2", by_default=False)]
WSE3_SLOWLY = ["wse2", case("wse3", by_default=False)]
WARM = copper.crystal((2, 2)) + np.random.default_rng(3).normal(0, 0.02, (8, 4, 3))


@pytest.mark.parametrize("arch", WSE2_SLOWLY)
def test_a_fluid_between_walls_is_numpys_and_keeps_its_mass(arch: str) -> None:
    start = fluid.equilibrium(np.zeros((3, 4)), np.full((3, 4, 2), 0.05)).astype(np.float32)
    end = fluid.flow(start, 7, 1.3, arch, lid=0.1, is_slip=False).values
    assert np.abs(end - fluid.by_numpy(start, 7, 1.3, 0.1)).max() < 1e-7
    assert abs(end.sum(dtype=float) - start.sum(dtype=float)) < 1e-6


@pytest.mark.parametrize(
    ("arch", "shape"),
    [("wse2", (3, 2, 4)), case("wse3", (1, 4, 3), by_default=False)],
)
def test_cross_sections_are_those_of_a_walk_through_all_tables(
    arch: str, shape: tuple[int, int, int]
) -> None:
    nuclides = lookup.mixture(shape[1], 40)
    energies = lookup.particles(shape, 2)
    exact = lookup.walk(nuclides, energies.ravel())
    off = np.abs(lookup.look_up(nuclides, energies, arch).sums - exact)
    assert (off <= lookup.error_bound(exact, shape[1])).all()


def test_particles_that_a_pe_has_no_room_for_are_refused() -> None:
    energies = np.ones((1, 1, 2000), np.float32)
    with pytest.raises(OpenwaferError) as raised:
        lookup.look_up(lookup.mixture(1, 40), energies, "wse3")
    assert "2000 particles and" in str(raised.value)


@pytest.mark.parametrize(
    ("energy", "words"),
    [
        (np.nan, "1 of the 2 values of energies are infinite or no numbers"),
        (9e-3, "1 of the 2 energies are out of the range of 0.01 to 10000; the first one is 0.009"),
        (1.1e4, "the first one is 11000"),
    ],
)
def test_energies_that_no_band_has_are_refused(energy: float, words: str) -> None:
    with pytest.raises(OpenwaferError, match=words):
        lookup.look_up(lookup.mixture(1, 40), np.array([[[1, energy]]], np.float32), "wse3")


def test_tiles_of_the_seismic_operator_are_of_low_rank() -> None:
    dense = tlr.operator(64)
    a = kernels.compress(dense, (16, 16), 1e-4)
    assert np.linalg.norm(a.matrix - dense) <= 1e-4 * np.linalg.norm(dense)
    assert 1 < a.ranks.max() < 16


@pytest.mark.parametrize("arch", WSE3_SLOWLY)
def test_atoms_move_by_the_forces_of_all_pairs(arch: str) -> None:
    start = copper.crystal((2, 2))
    last = copper.states(start, copper.warmed(start.shape, copper.START, 1), [5], arch)[-1]
    _, forces = copper.energy_and_forces(last.places)
    assert np.abs(last.forces - forces).max() <= 1e-5 * np.abs(forces).max()
    assert copper.num_unheard(last) == 0


POTENTIAL = {
    "embedded_energy": np.array([lambda density: -copper.FACTOR * np.sqrt(density)]),
    "d_embedded_energy": np.array([lambda density: -0.5 * copper.FACTOR / np.sqrt(density)]),
    "electron_density": np.array([lambda r: copper.pair(r**2)[1]]),
    "d_electron_density": np.array([lambda r: 2 * r * copper.slopes(r**2)[1]]),
    "phi": np.array([[lambda r: copper.pair(r**2)[0]]]),
    "d_phi": np.array([[lambda r: 2 * r * copper.slopes(r**2)[0]]]),
}


def test_energy_and_forces_of_the_plain_loop_are_those_of_ase() -> None:
    ase = pytest.importorskip("ase", reason="ASE is not installed")
    eam = pytest.importorskip("ase.calculators.eam").EAM
    of_copper = eam(elements=["Cu"], cutoff=copper.CUTOFF, form="alloy", **POTENTIAL)
    atoms = ase.Atoms("Cu32", positions=WARM.reshape(-1, 3), calculator=of_copper)
    energy, forces = copper.energy_and_forces(WARM)
    assert energy == pytest.approx(atoms.get_potential_energy(), rel=1e-12)
    assert forces.reshape(-1, 3) == pytest.approx(atoms.get_forces(), abs=1e-9)


def test_forces_of_the_plain_loop_are_the_slopes_of_its_energy() -> None:
    _, forces = copper.energy_and_forces(WARM)
    moved = np.zeros_like(WARM)
    moved[1, 0, 2] = 1e-5
    (more, _), (less, _) = (copper.energy_and_forces(WARM + way * moved) for way in (1, -1))
    assert forces[1, 0, 2] == pytest.approx((less - more) / 2e-5, rel=1e-6)


@pytest.mark.slow
def test_energy_stays_within_a_ten_thousandth_over_a_thousand_steps() -> None:
    start = copper.crystal(copper.CELLS)
    found = copper.states(start, copper.warmed(start.shape, copper.START, 8), [100] * 10, "wse3")
    energies = np.array([copper.total_energy(state) for state in found])
    assert np.abs(energies / energies[0] - 1).max() < 1e-4
    assert sum(copper.num_unheard(state) for state in found) == 0
