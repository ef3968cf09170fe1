"""The plan says how large the process will be, and the kernel agrees."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.training.plan_record import Activations, Mode
from openwafer.training.stream.plan.placement import StoreTier
from tests.own_process import integers_of
from tests.training.session.host_peak_run import Shape, arguments_of

DRAM = Shape()
DISK = Shape(StoreTier.DISK)
OFFLOAD, KEEP = Activations.OFFLOAD, Activations.KEEP
SMALL = Shape(num_layers=2, hidden_size=256, host_mib=16)
# Without return of free memory, these heaps grow past what is predicted.
SMALL_IN_FOUR = replace(SMALL, batch_size=64, micro_batches=4)
NARROW = Shape(hidden_size=256, batch_size=32, micro_batches=4)
NARROW_DISK = replace(NARROW, tier=StoreTier.DISK, host_mib=24)
DEFAULT_ROWS = {"small on disk": replace(SMALL, tier=StoreTier.DISK)}
SLOW_ROWS = {
    "small, offloaded in 4": replace(SMALL_IN_FOUR, activations=OFFLOAD),
    "small in DRAM": SMALL,
    "small, resident in 4": replace(SMALL_IN_FOUR, activations=KEEP, mode=Mode.RESIDENT),
    "DRAM": DRAM,
    "DRAM, kept, clipped": replace(DRAM, activations=KEEP, batch_size=32, clip_norm=1.0),
    "DRAM, offloaded in 4": replace(DRAM, activations=OFFLOAD, batch_size=32, micro_batches=4),
    "DRAM, 16 layers, offloaded in 4, clipped": replace(
        NARROW, num_layers=16, activations=OFFLOAD, batch_size=16, clip_norm=1.0
    ),
    "DRAM, 32 layers in 4": replace(NARROW, num_layers=32),
    "resident in 4": replace(
        DRAM, mode=Mode.RESIDENT, activations=KEEP, batch_size=32, micro_batches=4
    ),
    "resident, 16 layers, clipped": replace(
        DRAM, mode=Mode.RESIDENT, activations=KEEP, num_layers=16, hidden_size=256, clip_norm=1.0
    ),
    "disk, shallow": DISK,
    "disk, offloaded in 4, clipped": replace(NARROW_DISK, activations=OFFLOAD, clip_norm=1.0),
    "disk, 16 layers, clipped": replace(DISK, num_layers=16, clip_norm=1.0),
    "disk, 16 layers, kept in 4": replace(NARROW_DISK, num_layers=16, activations=KEEP),
    "disk, 16 layers in 4": replace(DISK, num_layers=16, batch_size=64, micro_batches=4),
    "disk, 32 layers in 4, clipped": replace(NARROW_DISK, num_layers=32, clip_norm=1.0),
    "disk, 32 layers, offloaded": replace(
        DISK, num_layers=32, hidden_size=256, activations=OFFLOAD, host_mib=24
    ),
}


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
