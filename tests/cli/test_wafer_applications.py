"""Applications of the wafer, small, against programs that share nothing with them."""

import numpy as np
import pytest

from openwafer.cli.wafer_demos import fluid, lookup
from openwafer.diagnostics import OpenwaferError


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_fluid_between_walls_is_numpys_and_keeps_its_mass(arch: str) -> None:
    start = fluid.equilibrium(np.zeros((3, 4)), np.full((3, 4, 2), 0.05)).astype(np.float32)
    end = fluid.flow(start, 7, 1.3, arch, lid=0.1, is_slip=False).values
    assert np.abs(end - fluid.by_numpy(start, 7, 1.3, 0.1)).max() < 1e-7
    assert abs(end.sum(dtype=float) - start.sum(dtype=float)) < 1e-6


@pytest.mark.parametrize(
    ("arch", "shape"), [("wse2", (3, 2, 4)), ("wse3", (2, 3, 3)), ("wse3", (1, 1, 3))]
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
