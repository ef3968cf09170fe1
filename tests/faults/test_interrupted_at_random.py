"""Signals at random moments to random processes of a run: no step is lost, and none hangs.

A case is drawn by its seed: what starts two systems, who gets which signal when, and the store.
"""

import os
import re
import signal
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

import pytest

from openwafer.training.plan_record import Mode
from openwafer.training.session import RunConfig
from openwafer.training.session.config_sections import CheckpointConfig
from openwafer.training.stream.plan.placement import StoreTier
from openwafer.training.stream.replicas.ownership import StoreSystems
from tests.faults.interrupted_systems import (
    GRACE_SECONDS,
    NUM_STEPS,
    SAVED,
    Launcher,
    Started,
    Target,
    differing_when_resumed,
    in_mode,
    read_steps,
    run_config,
    started,
    wait_for,
)

pytestmark = pytest.mark.slow
NUM_CASES = int(os.environ.get("INTERRUPTED_CASES", "30"))
FIRST_SEED = int(os.environ.get("INTERRUPTED_SEED", "0"))
NUM_SYSTEMS = 2
STEP = re.compile(r"^step (\d+)/", re.MULTILINE)
START_SECONDS = 8.0
"""In which two systems import torch, meet, plan and begin their first step."""


class Moment(StrEnum):
    """When the signal comes."""

    BEGINNING = "before the first step"
    STEPS = "in a step or between two"
    SAVING = "while each step is followed by a checkpoint"


@dataclass(frozen=True)
class Case:
    """What is drawn by a seed."""

    launcher: Launcher
    target: Target
    moment: Moment
    tier: StoreTier
    number: signal.Signals
    delay: float
    changes: dict[str, Any]

    @classmethod
    def drawn(cls, seed: int) -> "Case":
        """The case of a seed."""
        chance = Random(seed)
        moment = chance.choice(list(Moment))
        ways: list[dict[str, Any]] = [
            {"store_systems": StoreSystems.ALL},
            {"store_systems": StoreSystems.FIRST},
            {"mode": Mode.PIPELINED},
        ]
        changes = chance.choice(ways)
        is_staged = "mode" in changes
        if moment is Moment.SAVING:
            changes["checkpoint"] = CheckpointConfig(every=1)
        return cls(
            chance.choice(list(Launcher)),
            chance.choice(list(Target)),
            moment,
            StoreTier.DRAM if is_staged else chance.choice([StoreTier.DRAM, StoreTier.DISK]),
            chance.choice([signal.SIGINT, signal.SIGTERM]),
            chance.uniform(0, START_SECONDS if moment is Moment.BEGINNING else 0.5),
            changes,
        )

    def config(self, folder: Path) -> RunConfig:
        """The run."""
        others = {key: value for key, value in self.changes.items() if key != "mode"}
        config = run_config(folder, self.tier, systems_timeout=GRACE_SECONDS / 2, **others)
        return in_mode(config, self.changes["mode"], folder) if "mode" in self.changes else config

    def interrupt(self, run: Started) -> None:
        """Send the signal at its moment, to who is there by then."""
        if self.moment is not Moment.BEGINNING:
            wait_for(lambda: "step 2/" in run.said, run)
        time.sleep(self.delay)
        wait_for(lambda: len(run.ranks()) == NUM_SYSTEMS, run)
        run.tell(self.target, self.number)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + NUM_CASES))
def test_no_signal_loses_a_step_or_leaves_a_system_waiting(seed: int, tmp_path: Path) -> None:
    case = Case.drawn(seed)
    config = case.config(tmp_path)
    with started(case.launcher, ["train", str(tmp_path / "tiny.yaml")], tmp_path / "said") as run:
        case.interrupt(run)
        codes = run.end()
    assert 0 not in codes, (case, codes, run.said)
    steps = [int(step) for step in STEP.findall(run.said)]
    saved = [int(step) for _, step in SAVED.findall(run.said)]
    assert (saved[-1:] or [0]) >= (steps[-1:] or [0]), (case, codes, run.said)
    if case.moment is not Moment.BEGINNING:
        assert set(codes) <= {1, 130}, (case, codes, run.said)
        assert "error[" not in run.said, (case, codes, run.said)
    if (config.path / "config.yaml").exists():
        assert read_steps(config) < NUM_STEPS
        assert differing_when_resumed(config, read_steps(config)) == [], case
