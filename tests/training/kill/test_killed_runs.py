"""A run that is killed at any moment goes on to the bits of the unbroken one."""

from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.training.session import RunConfig
from tests.training.kill.killed_runs import (
    NUM_STEPS,
    Moment,
    final_arrays,
    first_steps,
    kill_at,
    random_moment,
    run_to_the_end,
)
from tests.training.session.tiny_runs import differing

# An update that waits for its step's norm is committed one step later.
MAX_LOST_STEPS = {0.1: 2, None: 1, 3.1: 2}


def kill_and_resume(config: RunConfig, moment: Moment) -> int:
    """Kill a run at a moment, bring it to its end, and return how many steps were lost."""
    num_told = kill_at(config, moment)
    run_to_the_end(config)
    began = first_steps(config.path)
    return num_told - began[1] if len(began) > 1 else 0


def test_a_killed_run_goes_on_bit_for_bit(unbroken: RunConfig, tmp_path: Path) -> None:
    config = replace(unbroken, folder=tmp_path)
    lost = kill_and_resume(config, Moment(6, random_moment(2, 1).delay_seconds / 4))
    assert differing(final_arrays(config), final_arrays(unbroken)) == []
    assert lost <= MAX_LOST_STEPS[unbroken.clip_norm]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(50))
def test_a_run_killed_at_any_random_moment_goes_on_bit_for_bit(
    unbroken: RunConfig, tmp_path: Path, number: int
) -> None:
    config = replace(unbroken, folder=tmp_path)
    lost = kill_and_resume(config, random_moment(number, NUM_STEPS))
    assert differing(final_arrays(config), final_arrays(unbroken)) == []
    assert lost <= MAX_LOST_STEPS[unbroken.clip_norm]
