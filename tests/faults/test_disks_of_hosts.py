"""A run goes on over hosts with disks of their own: as many, more, fewer, in another order.

Each system's store lies where its own host sees it, and no other does.
"""

import re
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from openwafer.training.session import RunConfig, TrainResult
from openwafer.training.session.config_sections import CheckpointConfig
from openwafer.training.store import list_checkpoints
from tests.faults.hosts import (
    NEEDS_HOSTS,
    NOTHING,
    Disk,
    Host,
    hosts,
    said,
    systems_on,
    wait_until,
)
from tests.faults.runs_of_systems import written_config
from tests.training.session.tiny_runs import differing, saved_arrays, train_quietly

pytestmark = [
    pytest.mark.slow,
    NEEDS_HOSTS,
]
MOST_HOSTS = 3
NUM_STEPS = 30
TOLD_STEPS = 5
SAVED_STEPS = 4
# The step that was told last may not be committed yet.
COMMITTED_STEPS = TOLD_STEPS - 1
TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class HostRuns:
    """Runs of one config, whose folder is another disk on each host.

    Attributes:
        network: the hosts.
        config: of the run.
        unbroken: what one system makes of it.
    """

    network: Sequence[Host]
    config: RunConfig
    unbroken: TrainResult

    def train(
        self,
        folder: Path,
        disks: Sequence[Path],
        *arguments: str,
        stop: signal.Signals | None = None,
        instead: Mapping[int, Sequence[str]] = NOTHING,
    ) -> list[int]:
        """Train on one host for each disk; returns the codes with which systems end.

        Args:
            folder: for what systems say.
            disks: their folders.
            arguments: of the command.
            stop: what the first system gets after some steps; None lets the run come to its end.
            instead: what Python runs on some hosts, in the place of the command.
        """
        size = len(disks)
        own = [Disk(disk, self.config.path) for disk in disks]
        with systems_on(self.network[:size], arguments, folder, own, instead) as systems:
            if stop is not None:
                wait_until(lambda: f"step {TOLD_STEPS}/" in said(folder, 0))
                systems[0].send_signal(stop)
            wait_until(lambda: all(system.poll() is not None for system in systems))
            return [system.wait() for system in systems]

    def begin(self, folder: Path, size: int, stop: signal.Signals) -> list[Path]:
        """Train until the first system is stopped; returns the folders of the disks."""
        disks = [empty_disk(folder, f"disk-{index}") for index in range(size)]
        self.train(folder, disks, "train", str(self.config.folder / "tiny.yaml"), stop=stop)
        return disks

    def go_on(self, folder: Path, disks: Sequence[Path], *overrides: str) -> None:
        """Train to the end on one host for each disk."""
        words = [word for one in overrides for word in ("--set", one)]
        codes = self.train(folder, disks, "resume", str(self.config.path), *words)
        assert codes == [0] * len(disks), [said(folder, rank) for rank in range(len(disks))]

    def differing(self, disk: Path) -> list[str]:
        """Arrays at the end of a run that the unbroken one has otherwise."""
        checkpoint = list_checkpoints(disk / "checkpoints")[-1]
        ended = replace(self.unbroken, checkpoint=checkpoint)
        return differing(saved_arrays(ended), saved_arrays(self.unbroken))


def empty_disk(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostRuns]:
    saving = CheckpointConfig(every=SAVED_STEPS)
    config = written_config(
        tmp_path_factory.mktemp("runs"),
        NUM_STEPS,
        checkpoint=saving,
        systems_timeout=TIMEOUT_SECONDS,
    )
    alone = train_quietly(replace(config, name="alone"))
    config.path.mkdir()
    with hosts(MOST_HOSTS) as network:
        yield HostRuns(network, config, alone)


@pytest.fixture(scope="module")
def killed_two(runs: HostRuns, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Disks of two hosts whose run was killed, without the checkpoint that is older."""
    disks = runs.begin(tmp_path_factory.mktemp("two"), 2, signal.SIGKILL)
    shutil.rmtree(disks[0] / "checkpoints")
    return disks


@pytest.fixture(scope="module")
def killed_three(runs: HostRuns, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return runs.begin(tmp_path_factory.mktemp("three"), 3, signal.SIGKILL)


def copies(disks: Sequence[Path], folder: Path) -> list[Path]:
    return [shutil.copytree(disk, folder / disk.name) for disk in disks]


def step_gone_on_from(disk: Path) -> int:
    begun, gone_on_from = re.findall(r"training from step (\d+) to", (disk / "log.txt").read_text())
    assert begun == "0"
    return int(gone_on_from)


def stores_on(disks: Sequence[Path]) -> list[list[str]]:
    """Names of the stores on each disk."""
    return [sorted(path.name for path in disk.glob("store*")) for disk in disks]


def test_the_same_hosts_open_their_stores(
    runs: HostRuns, killed_two: list[Path], tmp_path: Path
) -> None:
    disks = copies(killed_two, tmp_path)
    runs.go_on(tmp_path, disks)
    assert step_gone_on_from(disks[0]) >= COMMITTED_STEPS
    assert stores_on(disks) == [["store"], ["store-1"]]
    assert runs.differing(disks[0]) == []


def test_a_host_with_an_empty_disk_gets_its_share_of_both_stores(
    runs: HostRuns, killed_two: list[Path], tmp_path: Path
) -> None:
    disks = [*copies(killed_two, tmp_path), empty_disk(tmp_path, "new")]
    runs.go_on(tmp_path, disks)
    assert step_gone_on_from(disks[0]) >= COMMITTED_STEPS
    assert stores_on(disks) == [["store"], ["store-1"], ["store-2"]]
    assert runs.differing(disks[0]) == []


def test_the_first_host_gets_the_records_of_the_other(
    runs: HostRuns, killed_two: list[Path], tmp_path: Path
) -> None:
    disks = copies(killed_two, tmp_path)
    runs.go_on(tmp_path, disks, "store_systems=first")
    assert step_gone_on_from(disks[0]) >= COMMITTED_STEPS
    assert stores_on(disks) == [["store"], []]
    assert runs.differing(disks[0]) == []


def test_records_of_another_kind_become_a_checkpoint_of_all_hosts_first(
    runs: HostRuns, killed_two: list[Path], tmp_path: Path
) -> None:
    disks = copies(killed_two, tmp_path)
    runs.go_on(tmp_path, disks, "streaming.store=dram")
    assert step_gone_on_from(disks[0]) >= COMMITTED_STEPS
    assert runs.differing(disks[0]) == []


def test_a_host_that_dies_while_it_lends_its_store_leaves_it_where_it_is_found(
    runs: HostRuns, killed_two: list[Path], tmp_path: Path
) -> None:
    disks = copies(killed_two, tmp_path)
    dying = ["-m", "tests.faults.dying_system", "the states of '", "0", "store_systems=first"]
    resume = ("resume", str(runs.config.path), "--set", "store_systems=first")
    assert runs.train(tmp_path, disks, *resume, instead={1: dying}) == [2, -signal.SIGKILL]
    told = said(tmp_path, 0)
    assert "[rank-lost]: rank 0 on host 'host-0' waited" in told
    assert "for rank 1 on host 'host-1' to send the states of '" in told
    assert stores_on(disks) == [["store"], ["store-1"]]
    runs.go_on(tmp_path, disks, "store_systems=first")
    assert step_gone_on_from(disks[0]) >= COMMITTED_STEPS
    assert runs.differing(disks[0]) == []


def test_hosts_but_the_first_may_come_in_another_order(
    runs: HostRuns, killed_three: list[Path], tmp_path: Path
) -> None:
    first, second, third = copies(killed_three, tmp_path)
    shutil.rmtree(first / "checkpoints")
    disks = [first, third, second]
    runs.go_on(tmp_path, disks)
    assert step_gone_on_from(first) >= COMMITTED_STEPS
    assert stores_on(disks) == [["store"], ["store-1"], ["store-2"]]
    assert runs.differing(first) == []


def test_a_lost_disk_is_named_and_the_run_goes_on_from_its_checkpoint(
    runs: HostRuns, killed_three: list[Path], tmp_path: Path
) -> None:
    disks = copies(killed_three[:2], tmp_path)
    runs.go_on(tmp_path, disks)
    told = f"3 systems, and store-2 is not in {runs.config.path} on host-0, host-1\n"
    assert told in said(tmp_path, 0)
    assert "[run-stores]" in said(tmp_path, 0)
    assert step_gone_on_from(disks[0]) == SAVED_STEPS
    assert stores_on(disks) == [["store"], ["store-1"]]
    assert runs.differing(disks[0]) == []


def test_an_interrupted_run_loses_no_step_with_a_disk(runs: HostRuns, tmp_path: Path) -> None:
    disks = runs.begin(tmp_path, 2, signal.SIGINT)
    runs.go_on(tmp_path, disks[:1])
    assert "store-1 is not in" in said(tmp_path, 0)
    assert step_gone_on_from(disks[0]) >= TOLD_STEPS
    assert runs.differing(disks[0]) == []


@pytest.mark.parametrize("command", ["train", "resume"])
def test_a_first_host_without_the_run_names_the_one_that_has_it(
    runs: HostRuns, killed_two: list[Path], tmp_path: Path, command: str
) -> None:
    disks = copies(killed_two, tmp_path)[::-1]
    asked = {"train": runs.config.folder / "tiny.yaml", "resume": runs.config.path}[command]
    runs.train(tmp_path, disks, command, str(asked))
    told = f"host 'host-0' leads, and the run {runs.config.path} is with rank 1 on host 'host-1'\n"
    assert told in said(tmp_path, 0)
    assert "[run-elsewhere]" in said(tmp_path, 0)
    assert stores_on(disks) == [["store-1"], ["store"]]
    runs.go_on(tmp_path, disks[::-1])
    assert runs.differing(disks[1]) == []
