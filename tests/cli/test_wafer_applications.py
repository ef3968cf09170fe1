"""Applications of the wafer, small, against programs that share nothing with them."""

import numpy as np
import pytest

from openwafer.cli.wafer_demos import fluid


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_fluid_between_walls_is_numpys_and_keeps_its_mass(arch: str) -> None:
    start = fluid.equilibrium(np.zeros((3, 4)), np.full((3, 4, 2), 0.05)).astype(np.float32)
    end = fluid.flow(start, 7, 1.3, arch, lid=0.1, is_slip=False).values
    assert np.abs(end - fluid.by_numpy(start, 7, 1.3, 0.1)).max() < 1e-7
    assert abs(end.sum(dtype=float) - start.sum(dtype=float)) < 1e-6
