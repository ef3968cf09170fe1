"""A signal to any process of a run on several systems ends it after its step, which is saved."""

import signal
from pathlib import Path

import pytest

from openwafer.training.stream.plan.placement import StoreTier
from tests.faults.interrupted_systems import (
    SAVED,
    Launcher,
    Target,
    differing_when_resumed,
    run_config,
    started,
    wait_for,
)

# torchrun ends by an exception of its own.
CODES = {Launcher.TORCHRUN: [1], Launcher.PODS: [130, 130], Launcher.COMMAND: [130]}


def interrupt(
    folder: Path, launcher: Launcher, target: Target, tier: StoreTier, number: signal.Signals
) -> None:
    config = run_config(folder, tier)
    with started(launcher, ["train", str(folder / "tiny.yaml")], folder / "said.txt") as run:
        wait_for(lambda: "step 3/" in run.said, run)
        run.tell(target, number)
        codes = run.end()
    [(name, num_steps)] = SAVED.findall(run.said)
    assert (name, codes) == (number.name, CODES[launcher])
    assert "error[" not in run.said
    assert differing_when_resumed(config, int(num_steps)) == []


# By default test_shared_stores sends signals to systems that are forks.
@pytest.mark.slow
def test_sigterm_to_torchrun_and_all_its_processes_saves_the_step(tmp_path: Path) -> None:
    interrupt(tmp_path, Launcher.TORCHRUN, Target.ALL, StoreTier.DRAM, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("tier", [StoreTier.DRAM, StoreTier.DISK])
@pytest.mark.parametrize("target", [Target.AGENT, Target.RANKS, Target.FOLLOWER])
@pytest.mark.parametrize("launcher", Launcher)
def test_a_signal_to_any_process_saves_the_step(
    launcher: Launcher, target: Target, tier: StoreTier, tmp_path: Path
) -> None:
    number = signal.SIGINT if target is Target.RANKS else signal.SIGTERM
    interrupt(tmp_path, launcher, target, tier, number)
