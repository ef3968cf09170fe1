"""The predicted time of a step is near the real one, which the first steps tell."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from openwafer.figures import Origin
from openwafer.training.data import SizeChange
from openwafer.training.metrics import load_run
from openwafer.training.models import GptConfig
from openwafer.training.session import RunConfig, Session
from openwafer.training.session.data_config import BatchConfig
from openwafer.training.sparsity.multiplication import Products
from openwafer.training.stream.plan.placement import StoreTier
from tests.training.session.tiny_runs import TinyData, quiet, tiny_config, train_quietly
from tests.training.stream.axes import TIERS

MODEL = GptConfig(hidden_size=512, num_layers=4, num_heads=8, context_length=128)
# The first steps are metered, and others correct the plan.
WARM_UP_STEPS = 6
# Other programs may begin or end between the prediction and the steps.
MOST_OFF = 2.0
# Before a step has run, shapes and caches are left out.
MOST_OFF_BEFORE = 5.0


def is_near(config: RunConfig) -> bool:
    """Whether the median step takes about as long as was predicted, and corrected by the first."""
    before = Session(config, console=quiet()).plan().predicted_step_seconds
    run = load_run(train_quietly(config).folder)
    seconds = statistics.median(row.seconds for row in run.metrics.rows[WARM_UP_STEPS:])
    predicted = run.plan.predicted_step_seconds
    assert before is not None
    assert seconds / MOST_OFF_BEFORE < before < seconds * MOST_OFF_BEFORE
    return predicted is not None and seconds / MOST_OFF < predicted < seconds * MOST_OFF


def timed_config(data: TinyData, folder: Path, tier: StoreTier, num_samples: int) -> RunConfig:
    return replace(
        tiny_config(data, folder, tier),
        model=MODEL,
        data=replace(data.config(), folder=folder / "tokens"),
        batch=BatchConfig(size=num_samples, sequence_length=64),
        steps=WARM_UP_STEPS + 7,
    )


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("num_samples", [1, 8])
def test_a_step_takes_about_as_long_as_predicted(
    data: TinyData, tmp_path: Path, tier: StoreTier, num_samples: int
) -> None:
    assert is_near(timed_config(data, tmp_path, tier, num_samples))


@pytest.mark.slow
@pytest.mark.parametrize("products", [Products.SPARSE, Products.DENSE])
@pytest.mark.parametrize("num_samples", [1, 8])
def test_a_sparse_step_takes_about_as_long_as_predicted(
    data: TinyData, tmp_path: Path, products: Products, num_samples: int
) -> None:
    config = timed_config(data, tmp_path, StoreTier.DRAM, num_samples)
    assert is_near(replace(config, sparsity=0.9, sparse_products=products))


def test_the_first_steps_that_nothing_meters_correct_the_plan(
    data: TinyData, tmp_path: Path
) -> None:
    run = load_run(train_quietly(replace(tiny_config(data, tmp_path), steps=7)).folder)
    seconds = [row.seconds for row in run.metrics.rows]
    assert run.plan.predicted_step_seconds == sorted(seconds[3:6])[1]
    assert run.plan.origins["predicted_step_seconds"] is Origin.MEASURED


def test_smaller_batches_than_the_plan_is_of_do_not_correct_it(
    data: TinyData, tmp_path: Path
) -> None:
    config = replace(tiny_config(data, tmp_path), steps=7)
    batch = replace(config.batch, schedule=(SizeChange(6, 12),))
    plan = load_run(train_quietly(replace(config, batch=batch)).folder).plan
    assert plan.origins["predicted_step_seconds"] is Origin.INFERRED
