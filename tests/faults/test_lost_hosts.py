"""Systems on hosts of their own, of which one is cut off, killed, slow, or has a full disk."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from openwafer.training.session import RunConfig
from tests.faults.hosts import NEEDS_HOSTS, Host, hosts, said, systems_on, wait_until
from tests.faults.runs_of_systems import differing_from_alone, written_config

pytestmark = [
    pytest.mark.slow,
    NEEDS_HOSTS,
]
SIZE = 4
NUM_STEPS = 60
TIMEOUT_SECONDS = 20
LOST = f" s for rank {SIZE - 1} on host 'host-{SIZE - 1}' to "


@pytest.fixture
def network() -> Iterator[list[Host]]:
    with hosts(SIZE) as made:
        yield made


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return written_config(tmp_path, NUM_STEPS, systems_timeout=TIMEOUT_SECONDS)


def break_and_resume(
    network: Sequence[Host],
    config: RunConfig,
    folder: Path,
    harm: Callable[[list[subprocess.Popen[bytes]]], None],
) -> float:
    """Train until something is done to a host after five steps; go on with those that are left.

    Returns:
        Seconds from the harm to the end of the first system.
    """
    with systems_on(network, ["train", str(folder / "tiny.yaml")], folder) as systems:
        wait_until(lambda: "step 5/" in said(folder, 0))
        harm(systems)
        start = time.monotonic()
        wait_until(lambda: systems[0].poll() is not None)
        seconds = time.monotonic() - start
    broken = said(folder, 0)
    with systems_on(network[:-1], ["resume", str(config.path)], folder) as systems:
        wait_until(lambda: systems[0].poll() is not None)
    assert f"step {NUM_STEPS}/{NUM_STEPS}" in said(folder, 0)
    (folder / "said-0.txt").write_text(broken)
    return seconds


def test_a_host_that_is_killed_is_named_at_once(
    network: list[Host], config: RunConfig, tmp_path: Path
) -> None:
    seconds = break_and_resume(network, config, tmp_path, lambda systems: systems[-1].kill())
    assert seconds < TIMEOUT_SECONDS / 2
    assert "error[rank-lost]: rank 0 on host 'host-0' waited" in said(tmp_path, 0)
    assert any(LOST in said(tmp_path, system) for system in range(SIZE - 1))
    assert differing_from_alone(config) == []


def test_a_host_that_is_cut_off_is_named_in_time(
    network: list[Host], config: RunConfig, tmp_path: Path
) -> None:
    seconds = break_and_resume(network, config, tmp_path, lambda _: network[-1].cut_off())
    assert TIMEOUT_SECONDS / 2 < seconds < 2 * TIMEOUT_SECONDS
    assert "error[rank-lost]: rank 0 on host 'host-0' waited" in said(tmp_path, 0)
    assert any(LOST in said(tmp_path, system) for system in range(SIZE - 1))
    assert differing_from_alone(config) == []


def test_a_slow_host_is_waited_for(network: list[Host], tmp_path: Path) -> None:
    config = written_config(tmp_path, 5, systems_timeout=TIMEOUT_SECONDS)
    network[-1].slow_down("5mbit")
    with systems_on(network, ["train", str(tmp_path / "tiny.yaml")], tmp_path) as systems:
        wait_until(lambda: systems[0].poll() is not None)
    assert "step 5/5" in said(tmp_path, 0)
    assert differing_from_alone(config) == []


def test_a_full_disk_ends_all_systems(
    network: list[Host], config: RunConfig, tmp_path: Path
) -> None:
    """Where the run is, there is room for its first steps and for nothing that comes beside."""
    run = config.path
    run.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(run)], check=True)
    try:
        _fill_and_resume(network, config, tmp_path)
    finally:
        subprocess.run(["umount", "-l", str(run)], check=True)


def _fill_and_resume(network: list[Host], config: RunConfig, folder: Path) -> None:
    filler = config.path / "filler"

    def fill(_: object) -> None:
        subprocess.run(["dd", "if=/dev/zero", f"of={filler}"], check=False, capture_output=True)

    with systems_on(network, ["train", str(folder / "tiny.yaml")], folder) as systems:
        wait_until(lambda: "step 5/" in said(folder, 0))
        fill(None)
        wait_until(lambda: all(system.poll() is not None for system in systems))
    assert "error[" in said(folder, 0)
    assert "No space left" in said(folder, 0)
    filler.unlink()
    with systems_on(network, ["resume", str(config.path)], folder) as systems:
        wait_until(lambda: systems[0].poll() is not None)
    assert differing_from_alone(config) == []
