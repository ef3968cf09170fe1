"""The plan says how large the process will be, and the kernel agrees."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.cli.environment import DEFAULTS
from openwafer.training.plan_record import Activations
from openwafer.training.stream.plan.placement import StoreTier
from tests.own_process import integers_of
from tests.training.session.host_peak_run import Shape, arguments_of

DRAM = Shape()
DISK = Shape(StoreTier.DISK)
SMALL = Shape(num_layers=2, hidden_size=256, host_mib=16)
DEFAULT_ROWS = {"small in DRAM": SMALL, "small on disk": replace(SMALL, tier=StoreTier.DISK)}
SLOW_ROWS = {
    "DRAM": DRAM,
    "DRAM, kept activations, clipped": replace(
        DRAM, activations=Activations.KEEP, batch_size=32, clip_norm=1.0
    ),
    "disk, shallow": DISK,
    "disk, deep, clipped": replace(DISK, num_layers=16, clip_norm=1.0),
}


@pytest.fixture(autouse=True)
def variables_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes run with the allocator of `openwafer train`."""
    for name, value in DEFAULTS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("row", DEFAULT_ROWS)
def test_a_small_run_takes_the_host_memory_that_was_predicted(row: str, tmp_path: Path) -> None:
    predicted, real = peaks_of(tmp_path, DEFAULT_ROWS[row])
    assert predicted == pytest.approx(real, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("row", SLOW_ROWS)
def test_a_run_takes_the_host_memory_that_was_predicted(row: str, tmp_path: Path) -> None:
    predicted, real = peaks_of(tmp_path, SLOW_ROWS[row])
    assert predicted == pytest.approx(real, rel=0.1)


def peaks_of(folder: Path, shape: Shape) -> tuple[int, ...]:
    """The predicted peak of the resident set and the kernel's, in bytes."""
    module = "tests.training.session.host_peak_run"
    return integers_of(module, folder, *arguments_of(shape))
