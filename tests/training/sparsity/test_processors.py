"""Code for processors that have less than this one, which runs on it as well."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from openwafer.training.sparsity.kernels.processor import lanes_here
from openwafer.training.sparsity.kernels.vectors import NARROW
from tests.tables import case

LANES_OF = {"": "(4,)", "+avx,+avx2,+fma": "(8, 4)"}
PRINT_LANES = (
    "from openwafer.training.sparsity.kernels.processor import lanes_here; print(lanes_here())"
)


def python(features: str, *arguments: str) -> str:
    """What Python prints, compiling for a processor that has only these features."""
    environment = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features}
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_processor_runs_the_narrowest_code() -> None:
    assert lanes_here()[-1] == NARROW
    assert sorted(lanes_here(), reverse=True) == [*lanes_here()]


@pytest.mark.parametrize("features", [case(f, by_default=f != "") for f in LANES_OF])
def test_vectors_are_no_wider_than_the_processor_takes(features: str) -> None:
    assert python(features, "-c", PRINT_LANES).strip() == LANES_OF[features]


@pytest.mark.slow
@pytest.mark.parametrize("features", LANES_OF)
def test_products_for_lesser_processors_are_right(features: str) -> None:
    file = Path(__file__).with_name("test_kernels.py")
    assert "passed" in python(features, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file))
