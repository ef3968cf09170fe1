"""The predicted time of a step is near the real one."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.training.metrics import load_run
from openwafer.training.models import GptConfig
from openwafer.training.session.data_config import BatchConfig
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import TinyData, tiny_config, train_quietly
from tests.training.stream.axes import TIERS

MODEL = GptConfig(hidden_size=512, num_layers=4, num_heads=8, context_length=128)
# The first steps are metered.
WARM_UP_STEPS = 4
# Other programs may begin or end between the prediction and the steps.
MOST_OFF = 2.0


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("num_samples", [1, 8])
def test_a_step_takes_about_as_long_as_predicted(
    data: TinyData, tmp_path: Path, tier: StoreTier, num_samples: int
) -> None:
    config = replace(
        tiny_config(data, tmp_path, tier),
        model=MODEL,
        data=replace(data.config(), folder=tmp_path / "tokens"),
        batch=BatchConfig(size=num_samples, sequence_length=64),
        steps=WARM_UP_STEPS + 7,
    )
    run = load_run(train_quietly(config).folder)
    seconds = statistics.median(row.seconds for row in run.metrics.rows[WARM_UP_STEPS:])
    assert run.plan.predicted_step_seconds is not None
    assert seconds / MOST_OFF < run.plan.predicted_step_seconds < seconds * MOST_OFF
