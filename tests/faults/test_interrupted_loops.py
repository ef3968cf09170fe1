"""A signal to a process of an own loop on several systems ends all of them, and the next begins."""

import signal
from pathlib import Path

import pytest

from tests.faults.interrupted_systems import Launcher, Target, started, wait_for

pytestmark = pytest.mark.slow
PROGRAM = ("-m", "tests.faults.interrupted_loop")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("target", [Target.AGENT, Target.LEADER, Target.FOLLOWER])
def test_no_system_of_a_loop_stays_and_its_folder_can_be_used_again(
    target: Target, number: signal.Signals, tmp_path: Path
) -> None:
    stores, words = str(tmp_path / "stores"), tmp_path / "said"
    with started(Launcher.TORCHRUN, [stores, "1000000"], words, PROGRAM) as run:
        wait_for(lambda: "step 5/" in run.said, run)
        ranks = run.ranks()
        run.tell(target, number)
        run.end()
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    assert (tmp_path / "stores").exists()
    with started(Launcher.TORCHRUN, [stores, "3"], words, PROGRAM) as run:
        wait_for(lambda: "step 2/" in run.said, run)
        assert run.end() == [0], run.said
